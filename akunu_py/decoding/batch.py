"""Batch: sequences that decode together, with one forward for all of them.

Each sequence runs the loop of `loop.py` on a target of its own. In company, its `submit` only
leaves the known token and the draft with the batch, which runs one forward over everything that
waits: as soon as all sequences wait, or when the first of them reads. So whoever advances several
loops in turn gets batched rounds, and a sequence leaves by not coming back. If the sequences of a
forward gain by it on average, single steps of all follow before the forward is read: a draft of one
is worth less than that, several are worth more. A sequence without company decodes as it does
without a batch.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from math import inf
from time import perf_counter
from typing import Final
from weakref import ref

import mlx.core as mx

from akunu_py.cache.batched import has_little_padding
from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.batch_trial import why_not_batched
from akunu_py.decoding.target import FORWARDS_PER_CLEANUP, Inputs, ModelTarget, PendingForward
from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.model.target_model import TargetModel
from akunu_py.planning.live_costs import LiveCosts
from akunu_py.planning.theory import (
    MAX_BATCH_ROWS,
    expected_tokens,
    share_padded_rows,
    share_rows,
)
from akunu_py.round import NO_WAIT, Round

CostsOf = Callable[[int], LiveCosts | None]
"""What forwards over so many sequences cost, by their rows; None if nothing is known."""

_OBSERVE_EVERY: Final = 8
"""Correcting the costs takes a percent or two of a small model's forward."""

_JOIN_FROM: Final = 4
_JOIN_AFTER: Final = 4
"""From so many sequences on, and after so many single steps of all, their caches are joined: that
copies all of them once, and saves operations in each later step."""


@dataclass(eq=False)
class BatchedForward:
    """A forward of one sequence that waits for the batch's next one, or was a part of it.

    Of a step `ahead`, the known token is not known yet. `pending` is its own part of the batched
    forward `run`, or `error` says why there is none.
    """

    target: ModelTarget
    known: int = 0
    draft: Draft = NO_DRAFT
    keeps_draft: bool = False
    step_gain: float = -inf
    pending: PendingForward | None = None
    error: Exception | None = None
    run: "_Run | None" = None
    ahead: "BatchedForward | None" = None


@dataclass(eq=False)
class _Run:
    """One forward over the rows of several sequences, from its submission on.

    Its parts refer to it, so it does not keep them: a cycle would keep the caches of sequences that
    have ended. The shape is how many sequences, how many rows, and how many tokens they had before.
    The results are empty once somebody waited for them; `seconds` is what the host built and
    waited, divided by the sequences.
    """

    _parts: list[ref[BatchedForward]]
    shape: tuple[int, int, int]
    pipelined: bool
    begun: float
    results: list[mx.array]
    seconds: float

    @property
    def parts(self) -> list[BatchedForward]:
        return [part for reference in self._parts if (part := reference()) is not None]


class Batch:
    """The sequences that decode with one model, and what the next forward is to compute.

    It has run `forwards` over more than one sequence, of `rows` in all. `joins` says whether it
    joins caches; `benchmarks.batched --without-joins` turns it off.
    """

    def __init__(self, model: TargetModel, costs: CostsOf = lambda _: None) -> None:
        self._model = model
        self._costs = costs
        self._acceptance = AcceptanceRates()
        self._members: set[ModelTarget] = set()
        self._together: tuple[frozenset[int], int] = frozenset(), 0  # sequences, and their steps
        self._observed = (0, 0)  # sequences and rows of the forward last learnt from
        self._unobserved = 0
        self._waiting: list[BatchedForward] = []
        self.forwards = 0
        self.rows = 0
        self.joins = True

    @cached_property
    def why_impossible(self) -> str | None:
        """Why requests do not share forwards, for the user; the model is tried when it is first
        asked, which takes a few short forwards."""
        return why_not_batched(self._model)

    @property
    def has_company(self) -> bool:
        """Whether more than one sequence decodes, and they share forwards."""
        return len(self._members) > 1 and self.why_impossible is None

    @contextmanager
    def member(
        self, target: ModelTarget, *, keeps_drafts: bool = False
    ) -> Generator["BatchedTarget", None, None]:
        """Adds a sequence for as long as it decodes; with `keeps_drafts`, none is shortened."""
        self._members.add(target)
        try:
            yield BatchedTarget(target, self, keeps_drafts=keeps_drafts)
        finally:
            self._members.remove(target)
            self._waiting = [one for one in self._waiting if one.target is not target]
            target.cache.separate()
            self._break_up()

    def submit(self, forward: BatchedForward) -> None:
        """Leaves a forward for the next `run`, which begins once every sequence waits for it."""
        self._waiting.append(forward)
        if len(self._waiting) == len(self._members):
            self.run()

    def run(self) -> None:
        """Submits one forward for all that wait; errors are left with those that they concern."""
        waiting, self._waiting = self._waiting, []
        lengths = self._draft_lengths(waiting)

        def begin(one: BatchedForward, length: int) -> Inputs:
            if length < len(one.draft):
                one.draft = one.draft.cut(length)
            return one.target.begin(one.known, one.draft)

        self._submit(
            [
                (one, partial(begin, one, length))
                for one, length in zip(waiting, lengths, strict=True)
            ]
        )

    def step_after(self, forward: BatchedForward) -> BatchedForward | None:
        """The step after a forward, submitted before that is read; None unless the sequences that
        share the forward can have one and gain by it on average, and no other waits."""
        run = forward.run
        if forward.ahead is not None or run is None or self._waiting or not self.has_company:
            return forward.ahead
        parts = [one for one in run.parts if one.target in self._members]
        begin = [
            (BatchedForward(one.target), partial(one.target.begin_step_after, one.pending))
            for one in parts
            if not one.draft and one.target.room > 0
            if one.ahead is None and one.pending is not None
        ]
        if len(begin) == len(parts) and sum(one.step_gain for one in parts) >= 0.0:
            for one, (ahead, _) in zip(parts, begin, strict=True):
                one.ahead = ahead
            self._submit(begin, pipelined=True)
        return forward.ahead

    def wait(self, run: _Run) -> bool:
        """Waits for a batched forward, and learns how long it took; True if that was done."""
        results, run.results = run.results, []
        if not results:
            return True
        begun = perf_counter()
        try:
            mx.eval(results)
        except Exception as error:
            for one in run.parts:
                one.error = one.error or error
            return False
        now = perf_counter()
        run.seconds += (now - begun) / run.shape[0]
        # The time says nothing if the host came late, or if another forward was in flight as well.
        is_alone = not run.pipelined and all(one.ahead is None for one in run.parts)
        if is_alone and now - begun > NO_WAIT * (now - run.begun):
            self._observe(run.shape, now - run.begun)
        return False

    def learn(self, forward: BatchedForward, accepted: int) -> None:
        if forward.draft:
            self._acceptance.learn_draft(forward.draft, accepted)

    def _pads(self, forwards: Sequence[BatchedForward]) -> bool:
        """Whether every sequence costs what the longest does: recurrences take one after another
        of `[sequences, longest]` tokens."""
        return self._model.pads_batches or forwards[0].target.cache.has_states

    def _draft_lengths(self, waiting: Sequence[BatchedForward]) -> list[int]:
        lengths = [len(one.draft) for one in waiting]
        shared = [one for one in waiting if one.draft and not one.keeps_draft]
        costs = self._costs(len(waiting)) if shared else None
        if costs is None:
            return lengths
        accept_probs = {one: self._acceptance.accept_probs(one.draft) for one in waiting}
        kept = [one for one in waiting if one not in shared]
        emitted = len(shared) + sum(expected_tokens(accept_probs[one])[-1] for one in kept)
        context = sum(one.target.length for one in waiting)
        table = costs.verify_table(context, MAX_BATCH_ROWS)
        if self._pads(waiting):
            longest = max((len(one.draft) for one in kept), default=0)
            every = table[len(waiting) - 1 :: len(waiting)]
            probs = [accept_probs[one] for one in waiting]
            most = max(longest, share_padded_rows(probs, every, len(waiting)))
            return [min(length, most) for length in lengths]
        rows = len(waiting) + sum(len(one.draft) for one in kept)
        seconds = table[rows - 1 :]
        found = share_rows([accept_probs[one] for one in shared], seconds, emitted)
        of = dict(zip(shared, found, strict=True))
        return [of.get(one, length) for one, length in zip(waiting, lengths, strict=True)]

    def _submit(
        self,
        begin: Sequence[tuple[BatchedForward, Callable[[], Inputs]]],
        *,
        pipelined: bool = False,
    ) -> None:
        begun = perf_counter()
        inputs, parts = list[Inputs](), list[BatchedForward]()
        for one, inputs_of in sorted(begin, key=lambda pair: pair[0].target.cache.seat):
            try:
                inputs.append(inputs_of())
                parts.append(one)
            except Exception as error:  # its cache cannot grow
                one.error = error
        if not parts:
            return
        counts = [one.tokens.size for one in inputs]
        if sum(counts) == len(parts) or self._model.pads_batches:
            self._join([one.target.cache for one in parts])
        rows = len(parts) * max(counts) if self._pads(parts) else sum(counts)
        shape = len(parts), rows, sum(one.start for one in inputs)
        try:
            results = self._build(parts, inputs, counts)
            mx.async_eval(results)  # type: ignore[no-untyped-call]
        except Exception as error:
            for one in parts:
                one.error = one.error or error
            return
        seconds = (perf_counter() - begun) / len(parts)
        run = _Run([ref(one) for one in parts], shape, pipelined, begun, results, seconds)
        for one in parts:
            one.run = run

    def _join(self, caches: Sequence[KVCache]) -> None:
        """Joins the caches of sequences that have had single steps together for a while; at once if
        the model would need copies of them in one array."""
        before, steps = self._together
        at_once = self._model.pads_batches and len(caches) > 1
        ids = frozenset(map(id, caches))
        self._together = ids, steps + 1 if ids == before else 1
        if (
            self.joins
            and (at_once or (len(caches) >= _JOIN_FROM and steps >= _JOIN_AFTER and ids == before))
            and any(one.group is None or one.group is not caches[0].group for one in caches)
            and all(one.can_join for one in caches)
            and has_little_padding([one.capacity for one in caches])
        ):
            self._together = ids, 0
            with suppress(Exception):  # no memory for it: they stay as they were
                caches[0].join(caches[1:])
                self._break_up()

    def _break_up(self) -> None:
        """Separates caches that share buffers which half of their caches have left, or more."""
        for one in self._members:
            group = one.cache.group
            if group is not None and 2 * group.left >= group.size:
                one.cache.separate()

    def _build(
        self, parts: Sequence[BatchedForward], inputs: Sequence[Inputs], counts: Sequence[int]
    ) -> list[mx.array]:
        """Builds one forward for all; returns what to evaluate."""
        tokens = mx.concatenate([one.tokens for one in inputs])
        logits = self._model.forward_batch(tokens, [one.target.cache for one in parts], counts)
        results = []
        split = mx.split(logits, list(accumulate(counts[:-1])))
        for one, own_inputs, rows in zip(parts, inputs, split, strict=True):
            try:
                one.pending, own = one.target.finish(own_inputs, rows)
                results.extend(own)
            except Exception as error:  # a grammar may be too complex to follow
                one.error = error
        self.forwards += 1
        self.rows += sum(counts)
        if self.forwards % FORWARDS_PER_CLEANUP == 0:
            mx.clear_cache()
        return results

    def _observe(self, shape: tuple[int, int, int], seconds: float) -> None:
        """Learns from the time of a forward; of many like the last one, from some."""
        sequences, rows, context = shape
        self._unobserved += 1
        if (sequences, rows) == self._observed and self._unobserved < _OBSERVE_EVERY:
            return
        self._observed, self._unobserved = (sequences, rows), 0
        if (costs := self._costs(sequences)) is not None:
            costs.observe(rows, seconds, context)


class BatchedTarget:
    """A member of a batch, for the loop: in company, its forwards are rows of the batch's."""

    def __init__(self, target: ModelTarget, batch: Batch, *, keeps_drafts: bool = False) -> None:
        self.target = target
        self._batch = batch
        self._keeps_drafts = keeps_drafts
        self.can_pipeline = target.can_pipeline
        self.draft_limit = target.draft_limit
        self.rollback = target.rollback
        self.note_pause = target.note_pause

    @property
    def length(self) -> int:
        return self.target.length

    @property
    def room(self) -> int:
        return self.target.room

    @property
    def replayed(self) -> int:
        return self.target.replayed

    def submit(self, known: int, draft: Draft) -> PendingForward | BatchedForward:
        if not self._batch.has_company:
            return self.target.submit(known, draft)
        # The length of a sampled draft must not depend on its tokens, as estimates may.
        keeps = self._keeps_drafts or draft.probabilities is not None
        forward = BatchedForward(self.target, known, draft, keeps)
        self._batch.submit(forward)
        return forward

    def submit_step_after(
        self, pending: PendingForward | BatchedForward
    ) -> PendingForward | BatchedForward | None:
        if isinstance(pending, BatchedForward):
            return self._batch.step_after(pending)
        return None if self._batch.has_company else self.target.submit_step_after(pending)

    def read(self, pending: PendingForward | BatchedForward) -> Round:
        if isinstance(pending, PendingForward):
            return self.target.read(pending)
        if pending.run is None and pending.error is None:
            self._batch.run()
        is_counted = pending.run is not None and self._batch.wait(pending.run)
        error, pending.error = pending.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame, and so the cache
        assert pending.pending is not None
        assert pending.run is not None
        outcome = self.target.read(pending.pending)
        pending.step_gain = -inf  # those who read later must not submit a step after it
        outcome.is_counted = is_counted
        outcome.forward_s += pending.run.seconds
        outcome.seconds = None  # it says nothing about a forward of this sequence alone
        self._batch.learn(pending, outcome.accepted)
        return outcome
