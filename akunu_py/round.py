"""Round: what one forward pass of the target verified and emitted, and how long it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.tokens import TokenLogprob

NO_WAIT: Final = 0.02
"""If the host waited for less than this fraction of a pass, the pass was ready long before."""

_SHORT_CALLER: Final = 0.1
"""A caller that takes less than this fraction of a round does not distort its time."""


class Finish(StrEnum):
    """Why a text ended."""

    EOS = "eos"  # an end token, or a grammar was complete
    STOP = "stop"  # a stop string appeared
    LENGTH = "length"  # the token limit of the request
    CONTEXT = "context"  # the cache is full
    CANCELLED = "cancelled"  # the caller no longer wants it


@dataclass(slots=True)
class Round:
    """One round of decoding: the draft that a pass of the target verified, and its outcome. It is
    filled in during the round, and cut where the text ends. Of `tokens`, the first `accepted` were
    drafted; `end_token` is not among them.

    The cache held `context` tokens before, and the pass computed `replayed` ones again, because it
    had been rolled back past them. `seconds` from the end of the previous round are None if they
    include other work; `forward_s` is building the pass (`build_s`) and waiting for it, `draft_s`
    learning and proposing. `pipelined`: submitted before the previous round ended; `is_followed`:
    the next step was submitted before this was read; `is_counted`: another sequence's round counts
    the shared pass; `grammar_complete`: nothing may follow.
    """

    tokens: tuple[int, ...] = ()
    draft: Draft = NO_DRAFT
    accepted: int = 0
    context: int = 0
    pipelined: bool = False
    seconds: float | None = None
    forward_s: float = 0.0
    build_s: float = 0.0
    draft_s: float = 0.0
    replayed: int = 0
    is_followed: bool = False
    is_counted: bool = False
    grammar_complete: bool = False
    finish: Finish | None = None
    end_token: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    end_logprob: TokenLogprob | None = None

    @property
    def drafted(self) -> int:
        """How many drafted tokens the forward pass verified."""
        return len(self.draft.tokens)

    @property
    def has_bonus(self) -> bool:
        """Whether the last token follows a draft that was accepted completely."""
        return 0 < self.drafted < len(self.tokens)

    def cut(self, length: int, finish: Finish) -> None:
        """Ends the text after the first `length` tokens of this round."""
        self.tokens = self.tokens[:length]
        self.accepted = min(self.accepted, length)
        self.logprobs = self.logprobs[:length]
        self.finish, self.end_token, self.end_logprob = finish, None, None

    def cut_at_end_token(self, end_tokens: frozenset[int]) -> None:
        """Ends the text before the first token that is an end token, if there is one."""
        for position, token in enumerate(self.tokens):
            if token in end_tokens:
                logprob = self.logprobs[position] if self.logprobs else None
                self.cut(position, Finish.EOS)
                self.end_token, self.end_logprob = token, logprob
                return


class RoundClock:
    """Times rounds, from the end of one to the end of the next. A round has no time if that would
    say nothing about the device: if the caller held up the loop for longer than the device needed
    for the next round, or if `forwards`, of all sequences, shows that it computed something for
    another one.
    """

    def __init__(self, forwards: Callable[[], int]) -> None:
        self._last: float | None = None
        self._caller_s = 0.0
        self._forwards = forwards
        self._counted = 0

    def note_pause(self, seconds: float) -> None:
        """Notes how long the caller held up the loop after this round."""
        self._caller_s = seconds

    def skip(self) -> None:
        """Gives the next round no time."""
        self._last = None

    def lap(self, waited_s: float) -> float | None:
        """Ends a round in which the loop waited `waited_s` for the device; returns the seconds
        since the end of the previous one, or None (see the class).
        """
        now, last = perf_counter(), self._last
        self._last, caller_s = now, self._caller_s
        before, self._counted = self._counted, self._forwards()
        if last is None or self._counted != before + 1:
            return None
        seconds = now - last
        device_was_slower = waited_s > NO_WAIT * seconds
        return seconds if device_was_slower or caller_s < _SHORT_CALLER * seconds else None
