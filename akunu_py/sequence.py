"""Sequence: one request, with its input, its options and its state.

The caller makes it. The scheduler reads how urgent it is and what it needs next, and the runner
fills in the rest. Plain Python.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import TYPE_CHECKING, Final

from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options
from akunu_py.prompt import Asked, EncodedPrompt
from akunu_py.stats import Stats

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
    """One request.

    Attributes:
        asked: the caller's prompt, or a function that makes it, which is called on the engine's
            thread just before the request begins.
        options: the options of the request.
        kind: its kind, for the scheduler.
        sampler: chooses its tokens; a given one replaces that of the options.
        may_be_cancelled: whether its prompt is computed so that it can end after each chunk.
        cancelled: whether the rest is no longer wanted; any thread may set it.
        reader: receives its events.
        phase: what it needs next.
        prompt: the ids of the prompt, once they are known.
        tokens: the ids of the prompt and of the answer so far.
        end_tokens: ids that end the answer.
        fills_gap: whether the answer fills a gap between two pieces of text.
        session: drafts for it, while it runs.
        slot: its cache, while it runs.
        forwards: computes the rest of its prompt, a chunk at each step.
        decoding: its rounds, once it decodes; `text` turns them into text.
        began, prefilled: when it got its cache, and when its prompt was computed.
        computed_tokens: how many tokens of its prompt it has computed.
        stats: its sums so far; any thread may read them.
        arrival: its place in the order of arrival; `arrived` is the time.
        place: its number among the running sequences, the lowest free one.
        passed: how often in a row it was passed over.
        overtaken: how many chunks of shorter, later prompts were computed before its next one.
        lacks_memory: whether it could not grow at its last turn.
        chunks, rounds: how many it has had.
    """

    asked: Asked | EncodedPrompt | Callable[[], Asked]
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

    def __post_init__(self) -> None:
        if not isinstance(self.options, Options):
            found = type(self.options).__name__
            raise InvalidRequestError(f"The options must be `akunu_py.Options`, not {found}.")

    @classmethod
    def of(cls, asked: "Asked | Sequence", options: Options | None) -> "Sequence":
        """A sequence for a caller's input; a sequence that the caller made is returned unchanged.

        Raises:
            InvalidRequestError: if the sequence was answered before, or comes with other options.
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
