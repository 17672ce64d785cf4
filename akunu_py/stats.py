"""Stats: sums over the rounds of a request, and over requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any, Final

from akunu_py.round import Round
from akunu_py.tokens import Origin


@dataclass(slots=True)
class Stats:
    """Sums over the rounds of a request, and its clock.

    `generated_tokens == accepted + bonus + corrected + plain` always holds; see `as_dict`.
    `reasoning_tokens` are those of the reasoning at the beginning of the answer, with its marks.
    `shared_forwards` are those `target_forwards` that another request counts too. `plain_s` is the
    time that the tokens would have taken one at a time, by the measured cost of a step; 0 if that
    was not measured. `queue_s` is the time in a queue; `setup_s` is the time after that for
    encoding the prompt and for what the first request of a kind measures; then the other clocks
    start. `decode_since` is when decoding began, by `perf_counter`; it is None before that and in
    the sums of several requests.
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
        target_calls, target_tokens: forward passes of the model, and all tokens in them.
        drafted, accepted, drafts: draft tokens, those that were accepted, and both by origin.
        bonus, corrected, plain: tokens of the model itself, after a draft that was accepted
            completely, in place of a rejected token, and in a pass without a draft.
        replayed: tokens that were computed again after a rollback.
        acceptance_rate, tokens_per_call: `accepted` per draft token, and all tokens per pass.
        setup_s, prefill_s, decode_s: before the prompt was computed, for that, and for the answer.
        draft_s, forward_s: the parts of `decode_s` for drafts and for forward passes.
        ttft_s: from the beginning of the prefill to the first token.
        tokens_per_s: the speed of decoding.
        accepted_by_position: how often the first token of a draft was accepted, the second, ...
        """
        return {
            "cached_tokens": self.cached_tokens,
            "target_calls": self.target_forwards,
            "target_tokens": self.target_tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "drafts": self.drafts,
            "bonus": self.bonus,
            "corrected": self.corrected,
            "plain": self.plain,
            "replayed": self.replayed,
            "acceptance_rate": round(self.acceptance_rate, 4),
            "tokens_per_call": round(self.tokens_per_forward, 4),
            "setup_s": round(self.setup_s, 6),
            "prefill_s": round(self.prefill_s, 6),
            "decode_s": round(self.decode_s, 6),
            "tokens_per_s": round(self.tokens_per_s, 2),
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
