"""What a round did, and sums of rounds. Counters are raised here and nowhere else."""

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import zip_longest
from typing import Any, Final

from akunu_py.sampling.logprobs import TokenLogprob


class Finish(StrEnum):
    """Why a text ended."""

    EOS = "eos"  # an end token closed it, or a grammar was complete
    STOP = "stop"  # a stop string appeared
    LENGTH = "length"  # as many tokens as were asked for
    CONTEXT = "context"  # the cache is full
    CANCELLED = "cancelled"  # the caller no longer wants it


@dataclass(frozen=True, slots=True)
class Round:
    """One forward of the target and what it emitted.

    Attributes:
        tokens: the tokens emitted, in order: the accepted drafts, then the target's own.
        drafted: how many drafts were verified.
        accepted: how many of `tokens` were drafted; they come first.
        is_bonus: whether the target's own token came on top of a draft that stood whole.
        draft_s: seconds spent on proposing and on learning what was emitted.
        forward_s: seconds the loop spent on building the forward and waiting for it.
        decided_again: how many single-token forwards its near-tie was decided by; see
            `decoding/exactness.py`.
        finish: why the text ends with this round; None while it goes on.
        end_token: the end token that finished it, which is not among `tokens`.
        logprobs: one a token, where they were asked for.
        end_logprob: the end token's, likewise.
    """

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    is_bonus: bool = False
    draft_s: float = 0.0
    forward_s: float = 0.0
    decided_again: int = 0
    finish: Finish | None = None
    end_token: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    end_logprob: TokenLogprob | None = None

    def cut(self, length: int, finish: Finish) -> "Round":
        """The same round if the text ends after its first `length` tokens."""
        kept = self.tokens[:length]
        return replace(
            self,
            tokens=kept,
            accepted=min(self.accepted, length),
            is_bonus=self.is_bonus and len(kept) == len(self.tokens),
            finish=finish,
            end_token=None,
            logprobs=self.logprobs[:length],
            end_logprob=None,
        )


@dataclass(slots=True)
class Stats:
    """Sums over the rounds of a request, and its clock.

    `generated_tokens == accepted + bonus + corrected + plain` always holds; `plain` counts the
    tokens of rounds without a draft. `rechecked` counts the near-ties that were decided again, and
    `recheck_forwards` the single-token forwards this took, which `target_forwards` includes.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    target_forwards: int = 0
    target_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0
    corrected: int = 0
    plain: int = 0
    rechecked: int = 0
    recheck_forwards: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    ttft_s: float = 0.0
    draft_s: float = 0.0
    forward_s: float = 0.0
    accepted_by_position: list[int] = field(default_factory=list)
    accepted_counts: Counter[int] = field(default_factory=Counter)

    def add(self, done: Round) -> None:
        """Books a round, already cut at a stop."""
        self.generated_tokens += len(done.tokens)
        self.target_forwards += 1 + done.decided_again
        self.target_tokens += 1 + done.drafted + done.decided_again
        self.rechecked += done.decided_again > 0
        self.recheck_forwards += done.decided_again
        self.drafted += done.drafted
        self.accepted += done.accepted
        own = len(done.tokens) - done.accepted
        if done.drafted == 0:
            self.plain += own
        elif done.is_bonus:
            self.bonus += own
        else:
            self.corrected += own
        if done.drafted:
            self.accepted_counts[done.accepted] += 1
        while len(self.accepted_by_position) < done.drafted:
            self.accepted_by_position.append(0)
        for position in range(done.accepted):
            self.accepted_by_position[position] += 1
        self.draft_s += done.draft_s
        self.forward_s += done.forward_s

    def include(self, other: "Stats") -> None:
        """Adds another request's sums; the time to first token becomes the total of them."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        mine, theirs = self.accepted_by_position, other.accepted_by_position
        self.accepted_by_position = [a + b for a, b in zip_longest(mine, theirs, fillvalue=0)]
        self.accepted_counts += other.accepted_counts

    @property
    def acceptance_rate(self) -> float:
        """Accepted drafts over drafted ones; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_forward(self) -> float:
        """Tokens emitted per forward of the target."""
        return self.generated_tokens / self.target_forwards if self.target_forwards else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Decoding speed, prefill left out."""
        return self.generated_tokens / self.decode_s if self.decode_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The `stats` object of `generate --json`."""
        return {
            "cached_tokens": self.cached_tokens,
            "target_calls": self.target_forwards,
            "target_tokens": self.target_tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "bonus": self.bonus,
            "corrected": self.corrected,
            "plain": self.plain,
            "rechecked": self.rechecked,
            "recheck_calls": self.recheck_forwards,
            "acceptance_rate": round(self.acceptance_rate, 4),
            "tokens_per_call": round(self.tokens_per_forward, 4),
            "prefill_s": round(self.prefill_s, 6),
            "decode_s": round(self.decode_s, 6),
            "tokens_per_s": round(self.tokens_per_s, 2),
            "ttft_s": round(self.ttft_s, 6),
            "draft_s": round(self.draft_s, 6),
            "forward_s": round(self.forward_s, 6),
            "accepted_by_position": self.accepted_by_position,
        }


_SUMMED: Final = tuple(name for name, kind in Stats.__annotations__.items() if kind in (int, float))
