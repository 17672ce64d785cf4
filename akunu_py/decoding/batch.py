"""Batch: sequences that decode together, with one forward pass for all of them.

Each sequence has the loop of `loop.py`, which yields the forward passes that it wants. A round of
several sequences reads what is in flight, gives each loop its rows, and submits one forward pass
over everything they want next. `BatchPlanner` cuts their drafts, and decides whether a single step
of each follows before the pass is read. A sequence on its own decodes as it does without a batch.

mlx-lm's models do not say whether sequences can share their passes, and their Python code may do
anything with a cache; so that is tried.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from math import inf
from time import perf_counter
from typing import Final

import mlx.core as mx

from akunu_py.cache.batched import has_little_padding
from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Decoding, Limits
from akunu_py.decoding.target import (
    Inputs,
    ModelTarget,
    PendingForward,
    SharedForward,
)
from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.drafting.chain import Chain
from akunu_py.model.target_model import TargetModel
from akunu_py.planning.batch_planner import BatchPlanner, Company, CostsOf
from akunu_py.rounds import Round, RoundClock

_OBSERVE_EVERY: Final = 8
"""Correcting the costs takes one or two percent of a small model's forward pass, so most of the
passes that are like the last one are skipped."""

_JOIN_FROM: Final = 4
_JOIN_AFTER: Final = 4
"""Caches are joined from this many sequences on, and after this many single steps of all: that
copies all caches once, and saves operations in each later step."""


class Member(Decoding[PendingForward]):
    """A sequence that may share forward passes of at most `most_rows` with others; without a limit,
    it is not exact, and at 0, it decodes alone. It `takes_turns` if its last round shared none
    although others had one.
    """

    target: ModelTarget
    takes_turns = False

    def __init__(
        self,
        target: ModelTarget,
        session: DraftSession,
        known: int,
        limits: Limits,
        *,
        most_rows: int | None = None,
        keeps_drafts: bool = False,
    ) -> None:
        super().__init__(target, session, known, limits)
        self.most_rows = most_rows
        self._keeps_drafts = keeps_drafts

    @property
    def draft(self) -> Draft:
        return NO_DRAFT if self.forward is None else self.forward.draft

    def kept_of(self, draft: Draft) -> int:
        """How many tokens of a draft must be verified: all of a sampled one, because its length
        must not depend on its tokens, as estimates may."""
        return len(draft) if self._keeps_drafts or draft.probabilities is not None else 0

    def begin(self) -> Inputs:
        """The inputs of the forward pass that it wants, or of the step after the one in flight."""
        if self.flights:
            return self.target.begin_step_after(self.flights[0])
        assert self.forward is not None
        return self.target.begin(self.forward.known, self.forward.draft)


class Batch:
    """The forward passes of the sequences that decode with one model.

    `forwards` counts its passes over more than one sequence, and `rows` their rows. `may_join` says
    whether there is memory for shared buffers, and frees it.
    """

    def __init__(
        self,
        model: TargetModel,
        costs: CostsOf = lambda _: None,
        may_join: Callable[[Sequence[KVCache]], bool] = lambda _: True,
        rates: AcceptanceRates | None = None,
    ) -> None:
        self._model = model
        self._costs = costs
        self._may_join = may_join
        self._planner = BatchPlanner(costs, rates or AcceptanceRates())
        self._together: tuple[frozenset[int], int] = frozenset(), 0  # caches, and their steps
        self._latest: SharedForward | None = None
        self._clock = RoundClock(lambda: model.forwards)
        self._handed_over = 0.0
        self._observed = (0, 0)  # sequences and rows of the forward last learnt from
        self._unobserved = 0
        self.forwards = 0
        self.rows = 0

    @cached_property
    def why_impossible(self) -> str | None:
        """Why requests do not share forward passes, for the user. The first use tries the model,
        which takes a few short passes."""
        return why_not_batched(self._model)

    def advance(self, members: Sequence[Member]) -> list[Round | Exception | None]:
        """A round of each member, or the error instead; members that share a pass have theirs
        together. A new member has none while a pass of others is in flight: its own first one is
        part of the next.

        The next forward passes are submitted before it returns.
        """
        self._clock.note_pause(perf_counter() - self._handed_over)
        self._break_up(members)
        outcomes = dict[Member, Round | Exception | None]()
        for group in self._groups([one for one in members if one.most_rows != 0]):
            outcomes |= self._advance_together(group)
        for one in members:
            if one not in outcomes:
                one.takes_turns = len(members) > 1
                one.session.may_guess = True
                outcomes[one] = self._outcome(one.advance)
        self._handed_over = perf_counter()
        return [outcomes[one] for one in members]

    def _advance_together(
        self, members: Sequence[Member]
    ) -> dict[Member, Round | Exception | None]:
        chains = [chain for one in members if (chain := one.session.chain) is not None]
        pays = bool(chains) and self._planner.guesses_pay(chains, self._company(members))
        for one in members:
            one.takes_turns = False
            one.session.may_guess = pays
        new = [one for one in members if one.wants_forward]
        in_flight = len(new) < len(members)
        if not in_flight:
            self._submit(new)
            new = []
        if self._steps_ahead(members, pipelined=in_flight):
            self._submit(members, ahead=True)
        outcomes = {one: None if one in new else self._outcome(one.read) for one in members}
        self._submit([one for one in members if one.wants_forward], guessed=chains)
        return outcomes

    def _groups(self, members: Sequence[Member]) -> list[list[Member]]:
        """Groups of two or more that share forward passes. If all are padded to the longest, those
        in a group are about equally long, and there is memory for their padding. A group has no
        more exact members than fit with a row each."""
        if len(members) < 2 or self.why_impossible:
            return []
        if not self._model.pads_batches:
            kinds = defaultdict[int | None, list[Member]](list)
            for one in members:
                kinds[one.most_rows].append(one)
            parts = [
                group[at : at + (most or len(group))]
                for most, group in kinds.items()
                for at in range(0, len(group), most or len(group))
            ]
            return [part for part in parts if len(part) > 1]
        groups: list[list[Member]] = [[]]
        for one in sorted(members, key=lambda one: one.target.cache.capacity):
            caches = [other.target.cache for other in (*groups[-1], one)]
            is_alike = has_little_padding([held.capacity for held in caches])
            if groups[-1] and not (is_alike and self._may_join(caches)):
                groups.append([])
            groups[-1].append(one)
        return [group for group in groups if len(group) > 1]

    def _outcome(self, step: Callable[[], Round]) -> Round | Exception:
        try:
            with self._model.guard():  # which tells a lost rank from other errors
                return step()
        except Exception as error:
            return error

    def _pads(self, members: Sequence[Member]) -> bool:
        """Whether a forward pass costs as much as if all had the longest draft: recurrences run
        over `[sequences, longest]` tokens."""
        return members[0].target.cache.has_states

    def _company(self, members: Sequence[Member]) -> Company:
        context = sum(one.target.length for one in members)
        return Company(len(members), context, self._pads(members))

    def _steps_ahead(self, members: Sequence[Member], *, pipelined: bool) -> bool:
        """Whether a step of each follows before the pass in flight is read."""
        gains = [one.gain_now for one in members]
        if -inf in gains:
            return False
        forecasts = [one.forward.forecast for one in members if one.forward is not None]
        kept = [one.kept_of(own) for one, own in zip(members, forecasts, strict=True)]
        company = self._company(members)
        pays = self._planner.steps_ahead(forecasts, kept, company, pipelined=pipelined)
        return sum(gains) >= 0.0 if pays is None else pays

    def _shorten_drafts(self, members: Sequence[Member]) -> None:
        drafts = [one.draft for one in members]
        kept = [one.kept_of(draft) for one, draft in zip(members, drafts, strict=True)]
        lengths = self._planner.lengths(drafts, kept, self._company(members))
        most = members[0].most_rows
        spare = sum(lengths) if most is None else most - len(members)
        for one, length in zip(members, lengths, strict=True):
            if one.forward is not None:
                one.forward.draft = one.draft.cut(min(length, spare))
                spare -= len(one.draft)

    def _submit(
        self, members: Sequence[Member], *, ahead: bool = False, guessed: Sequence[Chain] = ()
    ) -> None:
        """Submits one forward pass over what all of them want, or over a step `ahead` of each;
        `guessed` are the chains that may have guessed for it."""
        if members and members[0].most_rows is not None:
            members = self._submit_alone(members, ahead=ahead)
        if len(members) <= 1:
            for one in members:
                one.submit_ahead() if ahead else one.submit()
            return
        begun = perf_counter()
        if not ahead:
            self._shorten_drafts(members)
        inputs, parts = list[Inputs](), list[Member]()
        for one in sorted(members, key=lambda one: one.target.cache.seat):
            try:
                inputs.append(one.begin())
                parts.append(one)
            except Exception as error:  # its cache cannot grow
                one.error = error
        if not parts:
            return
        counts = [one.tokens.size for one in inputs]
        if parts[0].most_rows is None and (sum(counts) == len(parts) or self._model.pads_batches):
            self._join([one.target.cache for one in parts])
        shared = SharedForward(
            sequences=len(parts),
            rows=len(parts) * max(counts) if self._pads(parts) else sum(counts),
            context=sum(one.start for one in inputs),
            is_ahead=ahead,
            timed=self._observe,
            guessing_s=sum(one.spent_s for one in guessed),
        )
        try:
            shared.results = self._build(parts, inputs, counts, shared)
            mx.async_eval(shared.results)  # type: ignore[no-untyped-call]
        except Exception as error:
            for one in parts:
                one.error = one.error or error
            return
        self._latest = shared
        shared.seconds = (perf_counter() - begun) / len(parts)

    def _submit_alone(self, members: Sequence[Member], *, ahead: bool) -> list[Member]:
        """Submits the forward passes of exact members that need padding; returns the others."""
        others = []
        for one in members:
            if not one.target.needs_padding(one.flights[0] if ahead else None):
                others.append(one)
            elif ahead:
                one.submit_ahead()
            else:
                one.submit()
        return others

    def _join(self, caches: Sequence[KVCache]) -> None:
        """Joins the caches of sequences that have taken single steps together for a while; at once
        if the model would otherwise copy them into one array."""
        before, steps = self._together
        at_once = self._model.pads_batches and len(caches) > 1
        ids, group = frozenset(map(id, caches)), caches[0].group
        self._together = ids, steps + 1 if ids == before else 1
        if (
            (at_once or (len(caches) >= _JOIN_FROM and steps >= _JOIN_AFTER and ids == before))
            and (group is None or group.left or any(one.group is not group for one in caches))
            and all(one.can_join for one in caches)
            and has_little_padding([one.capacity for one in caches])
            and self._may_join(caches)
        ):
            self._together = ids, 0
            self._clock.skip()
            with suppress(Exception):  # not enough memory: they stay as they were
                caches[0].join(caches[1:])

    def _break_up(self, members: Sequence[Member]) -> None:
        for one in members:
            group = one.target.cache.group
            if group is not None and 2 * group.left >= group.size:
                one.target.cache.separate()
                self._clock.skip()

    def _build(
        self,
        parts: Sequence[Member],
        inputs: Sequence[Inputs],
        counts: Sequence[int],
        shared: SharedForward,
    ) -> list[mx.array]:
        """Builds one forward pass for all; returns the arrays to evaluate."""
        tokens = mx.concatenate([one.tokens for one in inputs])
        logits = self._model.forward_batch(tokens, [one.target.cache for one in parts], counts)
        results = []
        ends = list(accumulate(counts[:-1]))
        hidden: list[mx.array | None] = [None] * len(parts)
        if self._model.head is not None:
            hidden = list(mx.split(self._model.take_hidden(), ends))
        split = mx.split(logits, ends)
        for one, own_inputs, rows, states in zip(parts, inputs, split, hidden, strict=True):
            try:
                pending, own = one.target.finish(own_inputs, rows, states)
            except Exception as error:  # a grammar may become too complex
                one.error = error
                continue
            pending.shared = shared
            one.flights.append(pending)
            results.extend(own)
        self.forwards += 1
        self.rows += sum(counts)
        return results

    def _observe(self, forward: SharedForward, waited_s: float) -> None:
        """Learns from the time of a forward pass; if many are like the last one, only from some. If
        several groups take turns, there is no such time."""
        seconds = self._clock.lap(waited_s)
        is_followed = self._latest is not forward
        shape = forward.sequences, forward.rows
        if seconds is None or is_followed != forward.is_ahead:
            return
        self._unobserved += 1
        if shape == self._observed and self._unobserved < _OBSERVE_EVERY:
            return
        self._observed, self._unobserved = shape, 0
        if (costs := self._costs(forward.sequences)) is not None:
            costs.observe(forward.rows, seconds - forward.guessing_s, forward.context)


_TRIED: Final = ((5, 1), (3, 3), (9, 2))
"""The sequences of the trial pass: tokens before it, and tokens in it."""

_TOLERANCE: Final = 1e-3
_COARSE_TOLERANCE: Final = 0.05
"""How far logits may be from those of separate forward passes, relative to their spread. Rounding
to 16 bits causes one percent, a wrong position or mask more than ten."""


def why_not_batched(model: TargetModel) -> str | None:
    """A line for the user if sequences cannot share a model's forward passes; None if they can.

    Two passes over the last tokens of three short sequences are compared with separate ones: one
    with several tokens of some sequences, and one with a token of each and joined caches.
    """
    if kinds := model.make_cache(1).unknown_kinds:
        return (
            "Requests are answered in turn, not in one batch: this model keeps its context in "
            f"{' and '.join(kinds)}."
        )
    for pads in (False, True):
        model.pads_batches = pads
        if _is_right(model):
            return None
    return (
        "Requests are answered in turn, not in one batch: this model's layers cannot serve "
        "several sequences at once."
    )


def _is_right(model: TargetModel) -> bool:
    caches = [model.make_cache(sum(sizes)) for sizes in _TRIED]
    counts = [count for _, count in _TRIED]
    ones = [1] * len(caches)
    parts, separate, steps = [], [], []
    for step, (before, count), cache in zip((3, 4, 5), _TRIED, caches, strict=True):
        tokens = mx.arange(before + count) * step % model.vocabulary_size
        model.append(tokens[:before], cache)
        cache.mark()
        logits = model.forward(tokens[before:], cache)
        parts.append(tokens[before:])
        separate.append(logits)
        steps.append(logits[-1:])
        mx.eval(logits)
        cache.rollback(before)
        cache.mark()
    try:
        is_right = _are_close(
            model, model.forward_batch(mx.concatenate(parts), caches, counts), separate
        )
        if is_right and (caches[0].can_join or caches[0].has_states):
            missing = [cache.rollback(cache.length - 1) for cache in caches]
            if caches[0].can_join:
                caches[0].join(caches[1:])
            last = mx.concatenate([tokens[-1:] for tokens in parts])
            stepped = model.forward_batch(last, caches, ones)
            is_right = not any(missing) and _are_close(model, stepped, steps)
    except Exception:  # a model's own code may raise anything
        is_right = False
    return is_right


def _are_close(model: TargetModel, together: mx.array, separate: Sequence[mx.array]) -> bool:
    found, wanted = together.astype(mx.float32), mx.concatenate(list(separate)).astype(mx.float32)
    error = mx.linalg.norm(found - wanted) / mx.linalg.norm(wanted - wanted.mean())
    tolerance = _COARSE_TOLERANCE if model.is_coarse else _TOLERANCE
    return bool(error.item() < tolerance)  # type: ignore[operator]
