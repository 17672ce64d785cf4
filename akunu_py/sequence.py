"""Sequence: one request, with its input, its options and its state.

The caller makes it. The scheduler reads how urgent it is and what it needs next, and the runner
fills in the rest. Plain Python.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import TYPE_CHECKING, Final

from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options
from akunu_py.prompt import Asked, EncodedPrompt
from akunu_py.rounds import Stats

if TYPE_CHECKING:
    from akunu_py.cache.prefix_pool import PrefixSlot
    from akunu_py.decoding.batch import Member
    from akunu_py.decoding.draft_session import DraftSession
    from akunu_py.events import Event, EventStream
    from akunu_py.sampling.sampler import Sampler
    from akunu_py.text.stream import TextStream


_NO_LIMIT: Final = 1 << 20
_PREFILLED_PER_ROUND: Final = 16
"""This many prompt tokens take about as long as a round."""


class Kind(StrEnum):
    """The kind of a request; a chat lets the others go first, because their users are typing."""

    FILL_IN = "fill-in"
    COMPLETION = "completion"
    CHAT = "chat"


class Phase(StrEnum):
    """What a sequence needs next."""

    NEW = "new"  # its prompt has to be encoded
    WAITING = "waiting"  # a place
    PREFILLING = "prefilling"  # a chunk of its prompt
    DECODING = "decoding"  # a round
    DONE = "done"  # nothing


@dataclass(eq=False)
class Sequence:
    """One request, from what was asked to its sums; the engine has no second record of it. Any
    thread may set `cancelled` and read `stats`.

    A given sampler replaces that of the options. `tokens` are those of prompt and answer so far.
    While it runs, it has a `session` that drafts, its cache in `slot`, `forwards` with the rest of
    its prompt, a chunk each, then `decoding` with its rounds. `may_be_cancelled`: chunks are small.

    For the scheduler: `place` is the lowest free number among running sequences; it was `passed`
    over so often in a row, and `overtaken` by so many chunks of shorter, later prompts; it
    `lacks_memory` if it could not grow at its last turn. `in_company`: others were running in one
    of its rounds.
    """

    asked: Asked | EncodedPrompt
    options: Options = field(default_factory=Options)
    kind: Kind = Kind.COMPLETION
    sampler: "Sampler | None" = None
    may_be_cancelled: bool = False
    cancelled: bool = False
    reader: "EventStream | None" = None
    phase: Phase = Phase.NEW
    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    end_tokens: frozenset[int] = frozenset()
    fills_gap: bool = False
    session: "DraftSession | None" = None
    slot: "PrefixSlot | None" = None
    forwards: "Generator[Event | None, None, None] | None" = None
    decoding: "Member | None" = None
    text: "TextStream | None" = None
    began: float = 0.0
    prefilled: float = 0.0
    computed_tokens: int = 0
    stats: Stats = field(default_factory=Stats)
    arrival: int = 0
    arrived: float = field(default_factory=perf_counter)
    place: int = 0
    passed: int = 0
    overtaken: int = 0
    lacks_memory: bool = False
    chunks: int = 0
    rounds: int = 0
    in_company: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.options, Options):
            found = type(self.options).__name__
            raise InvalidRequestError(f"The options must be `akunu_py.Options`, not {found}.")

    @classmethod
    def of(cls, asked: "Asked | Sequence", options: Options | None) -> "Sequence":
        """A sequence for a caller's input; one that the caller made is returned unchanged. Raises
        InvalidRequestError if that was answered before, or comes with other options.
        """
        if isinstance(asked, Sequence):
            if asked.reader is not None or asked.phase is not Phase.NEW:
                raise InvalidRequestError("A sequence can be answered only once; make another one.")
            if options is not None:
                raise InvalidRequestError("A sequence has its own options; give no others with it.")
            return asked
        return Sequence(asked, Options() if options is None else options)

    @property
    def tokens_left(self) -> int:
        """How many tokens of its prompt are still to be computed."""
        return len(self.prompt) - self.stats.cached_tokens - self.computed_tokens

    @property
    def rank(self) -> tuple[int, bool, int]:
        """How urgent it is; lower goes first. The priority, as in vLLM, counts before the kind, and
        the kind before the amount of work, in steps of four times as much."""
        most = _NO_LIMIT if self.options.max_tokens is None else self.options.max_tokens
        work = most + self.stats.prompt_tokens // _PREFILLED_PER_ROUND
        return self.options.priority, self.kind is Kind.CHAT, work.bit_length() // 2
