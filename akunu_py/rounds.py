"""Rounds: what one forward pass of the target verified and emitted, how long it took, and the sums
over the rounds of a request, and over requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import zip_longest
from time import perf_counter
from typing import Any, Final

from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.tokens import Origin, TokenLogprob

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


@dataclass(slots=True)
class Stats:
    """Sums over the rounds of a request, and its clock.

    `generated_tokens == accepted + bonus + corrected + plain` always holds; see `as_dict`.
    `reasoning_tokens` are those of the reasoning at the beginning of the answer, with its marks.
    `shared_forwards` are those `target_forwards` that another request counts too. `plain_s` is the
    time that the tokens would have taken one at a time, by the measured cost of a step; 0 if that
    was not measured, or others were answered meanwhile. `queue_s` is the time in a queue; `setup_s`
    is the time after that for encoding the prompt and for what the first request of a kind
    measures; then the other clocks start. `decode_since` is when decoding began, by `perf_counter`;
    it is None before that and in the sums of several requests.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    reasoning_tokens: int = 0
    target_forwards: int = 0
    shared_forwards: int = 0
    target_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0
    corrected: int = 0
    plain: int = 0
    replayed: int = 0
    plain_s: float = 0.0
    queue_s: float = 0.0
    setup_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    ttft_s: float = 0.0
    draft_s: float = 0.0
    forward_s: float = 0.0
    build_s: float = 0.0
    decode_since: float | None = None
    accepted_by_position: list[int] = field(default_factory=list)
    accepted_counts: Counter[int] = field(default_factory=Counter)
    drafted_by_origin: Counter[Origin] = field(default_factory=Counter)
    accepted_by_origin: Counter[Origin] = field(default_factory=Counter)

    def add(self, outcome: Round) -> None:
        """Adds a round, already cut at a stop."""
        drafted = outcome.drafted
        self.generated_tokens += len(outcome.tokens)
        self.target_forwards += 1
        self.shared_forwards += outcome.is_counted
        self.target_tokens += outcome.replayed + 1 + drafted
        self.replayed += outcome.replayed
        self.drafted += drafted
        self.accepted += outcome.accepted
        own = len(outcome.tokens) - outcome.accepted
        if not drafted:
            self.plain += own
        elif outcome.has_bonus:
            self.bonus += own
        else:
            self.corrected += own
        if drafted:
            # New containers, because the copy of the sums in an event keeps the old ones.
            self.accepted_counts = self.accepted_counts + Counter({outcome.accepted: 1})
            origin = outcome.draft.origin
            self.drafted_by_origin = self.drafted_by_origin + Counter({origin: drafted})
            self.accepted_by_origin = self.accepted_by_origin + Counter({origin: outcome.accepted})
            missing = drafted - len(self.accepted_by_position)
            by_position = [*self.accepted_by_position, *[0] * missing]
            for position in range(outcome.accepted):
                by_position[position] += 1
            self.accepted_by_position = by_position
        self.draft_s += outcome.draft_s
        self.forward_s += outcome.forward_s
        self.build_s += outcome.build_s

    def include(self, other: Stats) -> None:
        """Adds another request's sums; the time to first token becomes the total of them."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        mine, theirs = self.accepted_by_position, other.accepted_by_position
        self.accepted_by_position = [a + b for a, b in zip_longest(mine, theirs, fillvalue=0)]
        self.accepted_counts += other.accepted_counts
        self.drafted_by_origin += other.drafted_by_origin
        self.accepted_by_origin += other.accepted_by_origin

    @property
    def drafts(self) -> dict[str, dict[str, int]]:
        """The tokens drafted and accepted, by origin."""
        return {
            origin.value: {"drafted": count, "accepted": self.accepted_by_origin[origin]}
            for origin, count in self.drafted_by_origin.items()
        }

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens over all draft tokens; 0 if there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_forward(self) -> float:
        """Tokens emitted per forward pass of the target."""
        return self.generated_tokens / self.target_forwards if self.target_forwards else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Decoding speed, without the prefill."""
        return self.generated_tokens / self.decode_s if self.decode_s else 0.0

    @property
    def speedup(self) -> float | None:
        """The speedup of decoding over no drafts; None if it is unknown."""
        return self.plain_s / self.decode_s if self.plain_s and self.decode_s else None

    def as_dict(self) -> dict[str, Any]:
        """The `stats` object of `generate --json`; names that end in `_s` are seconds:

        cached_tokens: tokens of the prompt that were in a cache.
        target_forwards, target_tokens: forward passes of the model, and all tokens in them.
        drafted, accepted, drafts: draft tokens, those that were accepted, and both by origin.
        bonus, corrected, plain: tokens of the model itself, after a draft that was accepted
            completely, in place of a rejected token, and in a pass without a draft.
        replayed: tokens that were computed again after a rollback.
        acceptance_rate, tokens_per_forward: `accepted` per draft token, and all tokens per pass.
        setup_s, prefill_s, decode_s: before the prompt was computed, for that, and for the answer.
        draft_s, forward_s: the parts of `decode_s` for drafts and for forward passes.
        ttft_s: from the beginning of the prefill to the first token.
        tokens_per_s, speedup: the speed of decoding, also over no drafts, or null if that is
            unknown.
        accepted_by_position: how often the first token of a draft was accepted, the second, ...
        """
        return {
            "cached_tokens": self.cached_tokens,
            "target_forwards": self.target_forwards,
            "target_tokens": self.target_tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "drafts": self.drafts,
            "bonus": self.bonus,
            "corrected": self.corrected,
            "plain": self.plain,
            "replayed": self.replayed,
            "acceptance_rate": round(self.acceptance_rate, 4),
            "tokens_per_forward": round(self.tokens_per_forward, 4),
            "setup_s": round(self.setup_s, 6),
            "prefill_s": round(self.prefill_s, 6),
            "decode_s": round(self.decode_s, 6),
            "tokens_per_s": round(self.tokens_per_s, 2),
            "speedup": self.speedup and round(self.speedup, 3),
            "ttft_s": round(self.ttft_s, 6),
            "draft_s": round(self.draft_s, 6),
            "forward_s": round(self.forward_s, 6),
            "accepted_by_position": self.accepted_by_position,
        }


_SUMMED: Final = tuple(f.name for f in fields(Stats) if f.type in ("int", "float"))


@dataclass(slots=True)
class EngineCounters:
    """Counts of an engine's work since it was loaded, of all requests that reached the model, also
    cancelled ones; any thread may read them. A chunk is a forward pass over a part of a prompt. A
    round over several sequences counts once for each.
    """

    requests: int = 0
    prefill_chunks: int = 0
    prefill_tokens: int = 0
    rounds: int = 0
