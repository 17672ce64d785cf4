"""DraftSession: what one answer is speculated with, from the proposal to what is learnt of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from akunu_py.cache.kv_cache import PreallocatedKVCache
from akunu_py.decoding.draft_trimmer import DraftTrimmer
from akunu_py.decoding.exactness import TieBreaker
from akunu_py.decoding.token_buffer import TokenBuffer
from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter, LearnsFromAlternatives
from akunu_py.planning.planner import Planner, RoundReport
from akunu_py.sampling.constraint import Constraint

FORCED: Final = "forced"
"""The source of drafts that a grammar makes."""

_FORCED_ACCEPTANCE: Final = 0.98
"""The text of a forced draft is certain, but the model may split it into other tokens."""


@dataclass(frozen=True)
class DraftSession:
    """The parts that decide what a round verifies.

    Attributes:
        drafter: guesses.
        planner: says how much of a guess to verify.
        buffer: carries the tokens of a round in and out, and limits the draft.
        trimmer: cuts drafts where the text would end.
        tie_breaker: makes the text exact to the token; None leaves near-ties as they fall.
        constraint: what the text must keep to, if anything.
    """

    drafter: Drafter
    planner: Planner
    buffer: TokenBuffer
    trimmer: DraftTrimmer
    tie_breaker: TieBreaker | None = None
    constraint: Constraint | None = None
    _unread: list[int] = field(default_factory=list)
    """Emitted tokens that the drafter does not know of yet."""

    @property
    def alternatives_wanted(self) -> int:
        """How many of the target's likeliest tokens at each position the drafter learns from."""
        drafter = self.drafter
        return drafter.alternatives_wanted if isinstance(drafter, LearnsFromAlternatives) else 0

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        """Starts an answer to `prompt`; the references are texts that it may be copied from."""
        self._read()
        self.drafter.begin(prompt, references)
        self.planner.begin()

    def propose(self, cache: PreallocatedKVCache, wanted: int, *, pipelined: bool = False) -> Draft:
        """The draft that the next round should verify, an empty one if none.

        Args:
            cache: with what is in it now.
            wanted: tokens that may still be emitted.
            pipelined: whether a single step is under way.
        """
        limit = self.buffer.draft_limit(cache_room=cache.room, tokens_wanted=wanted)
        if limit == 0 or not self.planner.should_propose(pipelined=pipelined):
            return NO_DRAFT
        self._read()
        draft = self.trimmer.trim(self.drafter.propose(limit))
        if self.constraint is not None:
            draft = steer(self.constraint, draft, limit)
        if not draft:
            return NO_DRAFT
        context = cache.length
        length = self.planner.choose(draft, context=context, limit=limit, pipelined=pipelined)
        return draft.cut(length) if length else NO_DRAFT

    def learn(self, report: RoundReport, likeliest: Sequence[Sequence[int]] = ()) -> None:
        """Takes in what became of a round.

        Args:
            report: the round.
            likeliest: by emitted token, the ids likeliest there; none where none are wanted.
        """
        if report.draft.source == FORCED:
            self.drafter.feedback(NO_DRAFT, 0)
        else:
            self.drafter.feedback(report.draft, report.accepted)
        self._unread.extend(report.tokens)
        if likeliest and isinstance(self.drafter, LearnsFromAlternatives):
            self._read()
            self.drafter.learn_alternatives(report.context + 1, likeliest)
        self.trimmer.extend(report.tokens)
        self.planner.observe(report)

    def _read(self) -> None:
        """Tells the drafter what was emitted since it was last asked."""
        if self._unread:
            self.drafter.extend(tuple(self._unread))
            self._unread.clear()


def steer(constraint: Constraint, draft: Draft, limit: int) -> Draft:
    """The part of a draft that a grammar allows; or the tokens that the grammar forces.

    A draft that was sampled from distributions keeps its first forbidden token, which will be
    rejected, and is never replaced: see `decoding/verification.py`.
    """
    allowed = constraint.allowed_length(draft.tokens)
    if draft.probabilities is not None:
        return draft.cut(allowed + 1)
    draft = draft.cut(allowed)
    forced = constraint.forced_tokens(limit)
    if draft.tokens[: len(forced)] == forced:
        return draft
    return Draft(forced, FORCED, accept_probs=(_FORCED_ACCEPTANCE,) * len(forced))
