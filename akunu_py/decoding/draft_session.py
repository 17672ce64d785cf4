"""DraftSession: the drafting side of one answer, from proposing to learning.

It asks the planner whether to propose, asks the drafter for a proposal, cuts it where the text
would end or leave its grammar, and asks the planner how much of it to verify. A sampled draft is
planned first and cut afterwards, because its length must not depend on the tokens that were drawn:
see `decoding/loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import FORCED, NO_DRAFT, Draft, Drafter, NoDrafter
from akunu_py.drafting.chain import Chain
from akunu_py.planning.planner import FixedPlanner, Planner, Situation
from akunu_py.rounds import Round

if TYPE_CHECKING:
    from akunu_py.cache.kv_cache import HeadPairs
    from akunu_py.sampling.constraint import Constraint

_FORCED_ACCEPTANCE: Final = 0.98
"""The text of a forced draft is certain, but the model may split it into different tokens."""

_LEAST_SAVING: Final = 1e-9
"""The least that waiting for the step in flight counts as gaining if a draft is forecast: a probe
saves nothing, and must end the pipeline, too."""

_HIDDEN: Final = -1
"""Stands for every token of a sampled draft while it is planned, and for a guess that will be made
once the step in flight is read."""


class DraftTrimmer:
    """Cuts drafts where the text would end: at end tokens and stop strings.

    The token that ends the text is kept, and those after it are dropped. So whether a token is
    verified depends only on the tokens before it, as `loop.py` requires. `decode` is needed
    if there are stop strings.
    """

    def __init__(
        self,
        end_tokens: frozenset[int] = frozenset(),
        stops: Sequence[str] = (),
        decode: Callable[[Sequence[int]], str] = lambda _: "",
    ) -> None:
        self._end_tokens = end_tokens
        self._stops = tuple(stops)
        self._decode = decode
        # Each token has at least one byte, so this many tokens contain the longest stop string.
        self._reach = max((len(stop.encode()) for stop in self._stops), default=0)
        self._recent: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends emitted tokens."""
        if self._reach:
            self._recent = [*self._recent, *tokens][-self._reach :]

    def trim(self, draft: Draft) -> Draft:
        """The draft up to the first token that would end the answer."""
        ends = self._end_tokens
        if not ends.isdisjoint(draft.tokens):
            first = next(index for index, token in enumerate(draft.tokens) if token in ends)
            draft = draft.cut(first + 1)
        # Checking the whole draft first is quicker. A sampled draft must end with the first token
        # that may have been the last, even if the tokens after it change its text.
        is_sampled = draft.probabilities is not None
        if self._stops and draft and (is_sampled or self._stops_within(len(draft), draft)):
            for length in range(1, len(draft)):
                if self._stops_within(length, draft):
                    return draft.cut(length)
        return draft

    def _stops_within(self, length: int, draft: Draft) -> bool:
        text = self._decode([*self._recent, *draft.tokens[:length]])
        return any(stop in text for stop in self._stops)


class DraftSession:
    """Drafts for one answer; without arguments, it drafts nothing.

    `constraint` is the grammar that the text must match, `chain` guesses where copies do not help,
    `num_draft_tokens` is the most tokens of a draft, and `release` returns what later answers may
    draft with. The batch sets whether the chain `may_guess`.
    """

    def __init__(
        self,
        drafter: Drafter | None = None,
        planner: Planner | None = None,
        trimmer: DraftTrimmer | None = None,
        constraint: Constraint | None = None,
        *,
        chain: Chain | None = None,
        num_draft_tokens: int = 0,
        release: Callable[[], object] = lambda: None,
    ) -> None:
        self.num_draft_tokens = num_draft_tokens
        self.release = release
        self._drafter = drafter or NoDrafter()
        self._planner = planner or FixedPlanner(0)
        self._trimmer = trimmer or DraftTrimmer()
        self._constraint = constraint
        self.chain = chain
        if chain is not None and isinstance(drafter, AutoDrafter):
            chain.copy_after = drafter.after
        self.may_guess = True
        self._unread: list[int] = []  # emitted tokens that the drafter does not have yet

    def begin(
        self,
        prompt: Sequence[int],
        references: Sequence[Sequence[int]] = (),
        head_cache: HeadPairs | None = None,
    ) -> None:
        """Starts an answer to `prompt`, for which drafts may be copied from the references;
        `head_cache` is the cache of the model's own head."""
        self._drafter.begin(prompt, references)
        if self.chain is not None:
            self.chain.begin(prompt, head_cache)
        self._planner.begin()

    def propose(
        self, limit: int, context: int, *, replayed: int = 0, pipelined: bool = False
    ) -> Draft:
        """The draft that the next round should verify. With a step in flight, it is only a
        forecast, and the loop asks again once the step has been read."""
        if limit <= 0 or not self._planner.should_propose():
            return NO_DRAFT
        self._update_drafter()
        begun, guessing_s = perf_counter(), self._guessing_s
        draft = self._proposed(Situation(context, limit, replayed, pipelined))
        if not draft:  # without the guesses, whose time the planner counted
            spent = perf_counter() - begun - (self._guessing_s - guessing_s)
            self._planner.observe_proposal(max(0.0, spent))
        return draft

    @property
    def _guessing_s(self) -> float:
        return 0.0 if self.chain is None else self.chain.spent_s

    def _proposed(self, now: Situation) -> Draft:
        """The draft that pays: a part of the drafter's proposal, of a network's guesses, or of
        both."""
        limit = now.limit
        draft = self._drafter.propose(limit)
        # Whether a sampled draft is verified must not depend on its tokens.
        chain = self.chain if self.may_guess and draft.probabilities is None else None
        if chain is not None and chain.is_able and self._planner.should_guess(draft, now, chain):
            if now.pipelined:  # the network does not guess while a step is in flight
                return Draft((_HIDDEN,), chain.name)
            draft, now = self._best_with_guesses(draft, now, chain)
        drawn_from = draft.probabilities
        if drawn_from is None:
            planned = draft = self._cut(draft, limit)
        else:
            draft = replace(draft, accept_probs=())
            planned = replace(draft, tokens=(_HIDDEN,) * limit, probabilities=drawn_from[:0])
        length = self._planner.choose(planned, now) if draft else 0
        if not length:
            return NO_DRAFT
        draft = draft.cut(length)
        return draft if drawn_from is None else self._cut(draft, limit)

    def _best_with_guesses(
        self, copy: Draft, now: Situation, chain: Chain
    ) -> tuple[Draft, Situation]:
        planner = self._planner

        def goes_on(guesses: Draft, with_copy: Draft, next_prob: float) -> bool:
            return planner.goes_on(guesses, with_copy, next_prob, now, chain)

        drafts = chain.drafts(copy, now.limit, goes_on)
        now = now._replace(guessing_s=chain.guesses_s)
        return planner.best_of(drafts, now), now

    def pipeline_gain(self, context: int, forecast: Draft) -> float:
        """What it gains, in steps, to submit a single step before the one in flight is read;
        `forecast` is the draft that would be verified instead."""
        if forecast:
            return -max(_LEAST_SAVING, self._planner.saving)
        return self._planner.pipeline_gain(context)

    def learn(self, outcome: Round) -> None:
        if not self.num_draft_tokens:
            return
        if (chain := self.chain) is not None:
            chain.learn(outcome.tokens)
            if outcome.seconds is not None:
                outcome.seconds -= chain.spent_s
            chain.spent_s = 0.0
        is_own = outcome.draft.source != FORCED
        draft, accepted = (outcome.draft, outcome.accepted) if is_own else (NO_DRAFT, 0)
        self._drafter.feedback(draft, accepted)
        self._unread.extend(outcome.tokens)
        self._trimmer.extend(outcome.tokens)
        self._planner.observe(outcome)

    def end(self) -> None:
        """Gives the drafter the last tokens, which some drafters keep for later requests."""
        self._update_drafter()

    def _cut(self, draft: Draft, limit: int) -> Draft:
        draft = self._trimmer.trim(draft)
        return draft if self._constraint is None else steer(self._constraint, draft, limit)

    def _update_drafter(self) -> None:
        if self._unread:
            self._drafter.extend(tuple(self._unread))
            self._unread.clear()


def steer(constraint: Constraint, draft: Draft, limit: int) -> Draft:
    """The part of a draft that a grammar allows, or the tokens that the grammar forces. A sampled
    draft keeps its first forbidden token, which will be rejected; it is never replaced."""
    allowed = constraint.allowed_length(draft.tokens)
    if draft.probabilities is not None:
        return draft.cut(allowed + 1)
    draft = draft.cut(allowed)
    forced = constraint.forced_tokens(limit)
    if draft.tokens[: len(forced)] == forced:
        return draft
    return Draft(forced, FORCED, accept_probs=(_FORCED_ACCEPTANCE,) * len(forced))
