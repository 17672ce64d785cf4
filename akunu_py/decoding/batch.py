"""Batch: sequences that decode together, with one forward for all of them.

Each sequence runs the loop of `loop.py` on a target of its own. In company, its `submit` only
leaves the known token and the draft with the batch; the first `read` runs one forward over
everything that waits, and each sequence then reads its own rows. So whoever advances several loops
in turn gets batched rounds, and a sequence leaves by not coming back. A sequence without company
decodes as it does without a batch, pipelined.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from time import perf_counter
from typing import Final

import mlx.core as mx

from akunu_py.cache.layers import LayerCache
from akunu_py.decoding.target import FORWARDS_PER_CLEANUP, Inputs, ModelTarget, PendingForward
from akunu_py.drafting.base import Draft
from akunu_py.errors import AkunuError
from akunu_py.model import TargetModel
from akunu_py.planning.acceptance import AcceptanceModel
from akunu_py.planning.live_costs import LiveCosts
from akunu_py.planning.shared_rows import MAX_BATCH_ROWS, share_rows
from akunu_py.planning.theory import expected_tokens
from akunu_py.stats import Round

CostsOf = Callable[[int], LiveCosts | None]
"""What forwards over so many sequences cost, by their rows; None if nothing is known."""

_TRIED: Final = ((5, 1), (3, 3), (9, 2))
"""The sequences of the forward that a model is tried with: tokens before it, and in it."""

_OBSERVE_EVERY: Final = 8
"""Correcting the costs takes a percent or two of a small model's forward."""

_TOLERANCE: Final = 1e-3
_COARSE_TOLERANCE: Final = 0.05
"""How far logits may be from those of separate forwards, as a part of their spread. Rounding to 16
bits leaves one percent, a wrong position or mask more than ten."""


@dataclass(eq=False)
class BatchedForward:
    """A forward of one sequence that waits for the batch's next one, or was a part of it.

    Attributes:
        target: the sequence.
        known: the token that it begins with.
        draft: what it verifies; the batch may shorten it until it runs.
        keeps_draft: whether it may not.
        pending: the forward, once it has been submitted.
        error: why it could not be.
        seconds: how long the host waited for the batched forward, divided by its sequences.
        batched: whether it ran together with others.
    """

    target: ModelTarget
    known: int
    draft: Draft
    keeps_draft: bool
    pending: PendingForward | None = None
    error: Exception | None = None
    seconds: float = 0.0
    batched: bool = False


class Batch:
    """The sequences that decode with one model, and what the next forward is to compute.

    Args:
        model: runs the forwards.
        costs: what they cost; the default leaves all drafts as they were planned.

    Attributes:
        forwards: how many forwards it has run over more than one sequence.
        rows: the rows of all these.
    """

    def __init__(self, model: TargetModel, costs: CostsOf = lambda _: None) -> None:
        self._model = model
        self._costs = costs
        self._acceptance = AcceptanceModel()
        self._members = 0
        self._observed = (0, 0)  # sequences and rows of the forward last learnt from
        self._unobserved = 0
        self._waiting: list[BatchedForward] = []
        self.forwards = 0
        self.rows = 0

    @cached_property
    def why_impossible(self) -> str | None:
        """Why requests do not share forwards, for the user; the model is tried when it is first
        asked, which takes a few short forwards."""
        return why_not_batched(self._model)

    @property
    def has_company(self) -> bool:
        """Whether more than one sequence decodes, and they share forwards."""
        return self._members > 1 and self.why_impossible is None

    @contextmanager
    def member(
        self, target: ModelTarget, *, keeps_drafts: bool = False
    ) -> Generator["BatchedTarget", None, None]:
        """Adds a sequence for as long as it decodes.

        Args:
            target: what it decodes with alone.
            keeps_drafts: whether its drafts may not be shortened.
        """
        self._members += 1
        try:
            yield BatchedTarget(target, self, keeps_drafts=keeps_drafts)
        finally:
            self._members -= 1
            self._waiting = [one for one in self._waiting if one.target is not target]

    def submit(self, forward: BatchedForward) -> None:
        """Leaves a forward for the next `run`."""
        self._waiting.append(forward)

    def run(self) -> None:
        """Runs all forwards that wait; errors are left with those that they concern."""
        waiting, self._waiting = self._waiting, []
        begun = perf_counter()
        lengths = self._draft_lengths(waiting)
        begin = [
            (one, inputs)
            for one, length in zip(waiting, lengths, strict=True)
            if (inputs := _begin(one, length)) is not None
        ]
        try:
            results = self._forward(begin)
            mx.eval(results)
        except Exception as error:
            for one, _ in begin:
                one.error = one.error or error
            return
        seconds = perf_counter() - begun
        for one, _ in begin:
            one.seconds, one.batched = seconds / len(begin), True
        self._observe([inputs for _, inputs in begin], seconds)

    def learn(self, forward: BatchedForward, accepted: int) -> None:
        """Learns how much of a draft was accepted."""
        if forward.draft:
            self._acceptance.learn(forward.draft, accepted)

    def _draft_lengths(self, waiting: Sequence[BatchedForward]) -> list[int]:
        """How many tokens of each draft the forward verifies."""
        lengths = [len(one.draft) for one in waiting]
        shared = [one for one in waiting if one.draft and not one.keeps_draft]
        costs = self._costs(len(waiting)) if shared else None
        if costs is None:
            return lengths
        accept_probs = {one: self._acceptance.accept_probs(one.draft) for one in waiting}
        kept = [one for one in waiting if one not in shared]
        emitted = len(shared) + sum(expected_tokens(accept_probs[one])[-1] for one in kept)
        context = sum(one.target.length for one in waiting)
        rows = len(waiting) + sum(len(one.draft) for one in kept)
        seconds = costs.verify_table(context, MAX_BATCH_ROWS)[rows - 1 :]
        found = share_rows([accept_probs[one] for one in shared], seconds, emitted)
        of = dict(zip(shared, found, strict=True))
        return [of.get(one, length) for one, length in zip(waiting, lengths, strict=True)]

    def _forward(self, begun: Sequence[tuple[BatchedForward, Inputs]]) -> list[mx.array]:
        """Builds one forward for all; returns what to evaluate."""
        counts = [inputs.tokens.size for _, inputs in begun]
        tokens = mx.concatenate([inputs.tokens for _, inputs in begun])
        logits = self._model.forward_batch(tokens, [one.target.cache for one, _ in begun], counts)
        results = []
        parts = mx.split(logits, list(accumulate(counts[:-1])))
        for (one, inputs), rows in zip(begun, parts, strict=True):
            try:
                one.pending, own = one.target.finish(inputs, rows)
                results.extend(own)
            except Exception as error:  # a grammar may be too complex to follow
                one.error = error
        self.forwards += 1
        self.rows += sum(counts)
        if self.forwards % FORWARDS_PER_CLEANUP == 0:
            mx.clear_cache()
        return results

    def _observe(self, inputs: Sequence[Inputs], seconds: float) -> None:
        """Learns from the time of a forward; of many like the last one, from some."""
        shape = len(inputs), sum(one.tokens.size for one in inputs)
        self._unobserved += 1
        if shape == self._observed and self._unobserved < _OBSERVE_EVERY:
            return
        self._observed, self._unobserved = shape, 0
        if inputs and (costs := self._costs(len(inputs))) is not None:
            costs.observe_round(shape[1], seconds, sum(one.start for one in inputs))


class BatchedTarget:
    """A member of a batch, for the loop: its forwards are rows of the batch's, if it has company.

    Args:
        target: what it decodes with alone.
        batch: the batch.
        keeps_drafts: whether drafts may not be shortened.
    """

    def __init__(self, target: ModelTarget, batch: Batch, *, keeps_drafts: bool = False) -> None:
        self._target = target
        self._batch = batch
        self._keeps_drafts = keeps_drafts
        self._waiting: BatchedForward | None = None
        self.draft_limit = target.draft_limit
        self.rollback = target.rollback
        self.note_pause = target.note_pause

    @property
    def length(self) -> int:
        return self._target.length

    @property
    def room(self) -> int:
        return self._target.room

    @property
    def replayed(self) -> int:
        return self._target.replayed

    @property
    def can_pipeline(self) -> bool:
        waits = self._batch.has_company or self._waiting is not None
        return not waits and self._target.can_pipeline

    def submit(self, known: int, draft: Draft) -> PendingForward | BatchedForward:
        if not self._batch.has_company:
            return self._target.submit(known, draft)
        # The length of a sampled draft must not depend on its tokens, as estimates may.
        keeps = self._keeps_drafts or draft.probabilities is not None
        self._waiting = BatchedForward(self._target, known, draft, keeps)
        self._batch.submit(self._waiting)
        return self._waiting

    def submit_step_after(self, pending: PendingForward | BatchedForward) -> PendingForward:
        assert isinstance(pending, PendingForward), "what waits cannot be pipelined"
        return self._target.submit_step_after(pending)

    def read(self, pending: PendingForward | BatchedForward) -> Round:
        if isinstance(pending, PendingForward):
            return self._target.read(pending)
        if pending.pending is None and pending.error is None:
            self._batch.run()
        self._waiting = None
        if pending.error is not None:
            raise pending.error
        assert pending.pending is not None
        outcome = self._target.read(pending.pending)
        outcome.forward_s += pending.seconds
        outcome.seconds = None  # it says nothing about a forward of this sequence alone
        self._batch.learn(pending, outcome.accepted)
        return outcome


def why_not_batched(model: TargetModel) -> str | None:
    """One line for the user if sequences cannot share forwards of a model; None if they can.

    A forward over three short sequences is compared with separate ones.
    """
    caches = [model.make_cache(sum(sizes)) for sizes in _TRIED]
    kinds = {type(layer).__name__ for layer in caches[0].layers if not _attends(layer)}
    if kinds:
        return (
            "Requests are answered in turns, not in one batch: this model keeps its context in "
            f"{' and '.join(sorted(kinds))}."
        )
    counts = [count for _, count in _TRIED]
    parts = [
        mx.arange(length + count) * (3 + index) % model.vocabulary_size
        for index, (length, count) in enumerate(_TRIED)
    ]
    separate = []
    for tokens, cache, count in zip(parts, caches, counts, strict=True):
        model.prefill(tokens[:-count].tolist(), cache)  # type: ignore[arg-type]
        separate.append(model.forward(tokens[-count:], cache))
        mx.eval(separate[-1])
        cache.rollback(cache.length - count)
    last = mx.concatenate([tokens[-count:] for tokens, count in zip(parts, counts, strict=True)])
    try:
        together = model.forward_batch(last, caches, counts).astype(mx.float32)
        wanted = mx.concatenate(separate).astype(mx.float32)
        error = mx.linalg.norm(together - wanted) / mx.linalg.norm(wanted - wanted.mean())
        tolerance = _COARSE_TOLERANCE if model.is_coarse else _TOLERANCE
        is_right = error.item() < tolerance  # type: ignore[operator]
    except Exception:  # a model's own Python may raise anything
        is_right = False
    if is_right:
        return None
    return (
        "Requests are answered in turns, not in one batch: this model's attention does not serve "
        "several sequences at once."
    )


def _attends(layer: object) -> bool:
    return isinstance(layer, LayerCache)


def _begin(forward: BatchedForward, draft_length: int) -> Inputs | None:
    """What one sequence adds to the forward; None if its cache cannot grow."""
    if draft_length < len(forward.draft):
        forward.draft = forward.draft.cut(draft_length)
    try:
        return forward.target.begin(forward.known, forward.draft)
    except AkunuError as error:
        forward.error = error
        return None
