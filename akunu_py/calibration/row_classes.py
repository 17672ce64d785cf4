"""Finds the forward passes that compute identical rows, by comparing bits.

The search computes the same tokens as single steps padded to a size, and as forward passes of each
size of which a random part is kept, as in decoding. Two sizes agree if every row has the same
logits, and the cache holds the same keys, values and states afterwards. A size that was not
compared counts as different.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate, chain
from math import inf
from random import Random
from time import perf_counter
from typing import Any, Final

import mlx.core as mx
import numpy as np

from akunu_py.cache.model_cache import Rollback
from akunu_py.cache.states import arrays_of
from akunu_py.decoding.batch import why_not_batched
from akunu_py.machine.device_memory import free_device_bytes
from akunu_py.model.target_model import TargetModel
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.row_class import RowClass, runs_of
from akunu_py.planning.theory import best_num_draft_tokens, price_of_blocks, price_of_class

ROWS: Final = 3000
"""If one row in a thousand differs, 95 of 100 searches notice it."""

MOST: Final = MAX_PLANNED_TOKENS + 1
_LEAST: Final = 5
"""Sizes that are compared even if drafts of this length do not pay."""

_FIRST_ROWS: Final = 16
_STRETCH_ROWS: Final = 48
"""Rows compared at a time: at first few, for all sizes, then more for the remaining sizes."""
_ROOM: Final = _STRETCH_ROWS + 2 * MOST

_SEED_TOKENS: Final = 128
"""A longer context is made of copies of this many tokens, because computing it would take long."""

_MEMORY_SHARE: Final = 0.25
_ODD: Final = 0x9E3779B1
_UNSIGNED: Final = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}

Traces = dict[tuple[int, int, int, int, bool], str]
"""Digests by context, size, number of tokens, their stretch, and whether they are of steps."""


class _TimeIsUpError(Exception):
    """There is no time for more comparisons."""


class RowClassSearch:
    """Looks for the row class of a model. If `tick` raises, the next `find` continues.

    Attention may change at `edges`, numbers of keys: both sides are compared, then further
    `contexts`, the shortest first: `rows` at a short context, a tenth of that elsewhere. `most`:
    tokens of a pass.
    """

    def __init__(
        self, edges: Sequence[int], contexts: Sequence[int], *, rows: int = ROWS, most: int = MOST
    ) -> None:
        self._edges = edges
        self._contexts = contexts
        self._rows = rows
        self._most = most
        self._stretch = min(_STRETCH_ROWS, rows)
        self.traces: Traces = {}
        self.spent_s = 0.0
        self.rows = 0

    def find(
        self,
        model: TargetModel,
        curve: CostCurve,
        limit_s: float,
        tick: Callable[[], object],
        most_price: float = inf,
    ) -> RowClass | None:
        """The cheapest class that holds; an empty one if none does, or if `limit_s` seconds are not
        enough to show it. None if all candidates cost more than `most_price`; they are not compared
        then. Calls `tick` between forward passes."""
        quantization = model.kv_quantization
        if quantization is not None and quantization.start:
            return RowClass()
        self.rows = 0

        def watch(seconds: float) -> None:
            if self.spent_s + seconds > limit_s:
                raise _TimeIsUpError
            tick()

        try:
            probe = _Probe(model, self._contexts[0], self, watch)
            useful = 1 + best_num_draft_tokens(curve, 1.0, 0, MOST - 1)
            mixed = [
                probe.digest_by(size, _FIRST_ROWS, steps=False)
                for size in range(1, min(self._most, max(useful, _LEAST)) + 1)
            ]
            runs = [
                run
                for run in runs_of(mixed)
                if probe.digest_by(run[0], _FIRST_ROWS, steps=True) == mixed[run[0] - 1]
            ]
            if model.after_rejection is Rollback.REPLAY:  # padding would be replayed forever
                runs = [run for run in runs if run[0] == 1]
            prices = {run: price_of_class(curve, RowClass(run[0], ((0, run[1]),))) for run in runs}
            for smallest, largest in sorted(runs, key=lambda run: prices[run]):
                if prices[smallest, largest] > price_of_blocks(curve):
                    break
                if prices[smallest, largest] > most_price:
                    return None
                proved = self._largest_alike(probe, smallest, largest, self._rows)
                if proved >= max(2, smallest):
                    del probe  # memory for one cache at a time
                    levels, end = self._levels(model, smallest, proved, watch)
                    alike = RowClass(smallest, tuple(levels), end)
                    shared = self._shared(model, alike, watch)
                    return replace(alike, shared=shared, rows=self.rows, seconds=self.spent_s)
        except _TimeIsUpError:
            pass
        return RowClass(rows=self.rows, seconds=self.spent_s)

    def _largest_alike(self, probe: "_Probe", smallest: int, largest: int, rows: int) -> int:
        """The largest size, up to `largest`, that computes `rows` rows like padded steps."""
        compared = stretch = 0
        least = max(2, smallest)
        while compared < rows and largest >= least:
            wanted = probe.digest_by(smallest, self._stretch, stretch, steps=True)
            for size in range(least, largest + 1):
                if probe.digest_by(size, self._stretch, stretch, steps=False) != wanted:
                    largest = size - 1
                    break
                compared += self._stretch
            stretch += 1
        self.rows += compared
        return largest

    def _levels(
        self, model: TargetModel, smallest: int, largest: int, watch: Callable[[float], None]
    ) -> tuple[list[tuple[int, int]], int | None]:
        """The most tokens of a forward pass between the edges, and where this becomes unknown."""
        levels: list[tuple[int, int]] = []
        for start, contexts in self._between_edges():
            most = largest
            for context in contexts:
                if not _allows(model, context):
                    if levels:
                        return levels, start
                    return [(0, most)], self._edges[0] if self._edges else context
                try:
                    probe = _Probe(model, context, self, watch)
                    most = self._largest_alike(probe, smallest, most, self._rows // 10)
                except _TimeIsUpError:
                    return (levels, start) if levels else ([(0, 1)], None)
            levels.append((start, most))
        return levels, None

    def _shared(self, model: TargetModel, alike: RowClass, watch: Callable[[float], None]) -> int:
        """The most rows of a batched forward pass that agrees with padded steps; 0 if none does."""
        if (
            not alike.allows_drafts
            or alike.smallest > 2
            or why_not_batched(model)
            or model.pads_batches
        ):
            return 0
        first = self._contexts[0]
        try:
            probes = [
                _Probe(model, first + 5 * seat, self, watch)
                for seat in range(min(3, alike.largest))
            ]
            for stretch in range(-(-self._rows // (10 * self._stretch))):
                wanted = [
                    one.digest_by(alike.smallest, self._stretch, stretch, steps=True)
                    for one in probes
                ]
                if (
                    _digests_together(model, probes, alike.largest, self._stretch, stretch)
                    != wanted
                ):
                    return 0
                self.rows += len(probes) * self._stretch
        except _TimeIsUpError:
            return 0
        return alike.largest

    def _between_edges(self) -> Iterator[tuple[int, list[int]]]:
        """Each number of keys at which a level begins, and the contexts to compare in it."""
        others = [context for context in self._contexts[1:] if not self._edges]
        starts = [0, *self._edges]
        for start, stop in zip(starts, [*self._edges, None], strict=True):
            first = start or self._contexts[0]
            yield start, [first, *others] if stop is None else [first, stop - _ROOM]


class _Probe:
    """Computes the same tokens after one context again and again."""

    def __init__(
        self,
        model: TargetModel,
        context: int,
        search: RowClassSearch,
        watch: Callable[[float], None],
    ) -> None:
        self._model, self.context = model, context
        self._search, self._watch = search, watch
        self._begun = 0.0
        self.factors = _factors(model.vocabulary_size)
        self.cache = model.make_cache(context + _ROOM)
        self.cache.head = None
        draw = Random(context)
        seed = min(context, _SEED_TOKENS)
        model.prefill([draw.randrange(model.vocabulary_size) for _ in range(seed)], self.cache)
        self.cache.repeat(context)
        self.cache.keep()

    def digest_by(self, size: int, rows: int, stretch: int = 0, *, steps: bool) -> str:
        """A digest of the logits of `rows` tokens, which differ in each stretch, and of the cache
        after them, with forward passes of this size. Each pass keeps one token (`steps`) or a
        random number of them, as if the others were rejected."""
        key = self.context, size, rows, stretch, steps
        traces = self._search.traces
        if key not in traces:
            self.begin()
            try:
                traces[key] = self._compute(size, rows, stretch, steps=steps)
            finally:
                self.cache.rollback(self.context)
            self.end()
        return traces[key]

    def begin(self) -> None:
        self._begun = perf_counter()

    def end(self) -> None:
        """Counts the time of a comparison; one that was ended early does not count."""
        self._search.spent_s += perf_counter() - self._begun

    def watch(self) -> None:
        self._watch(perf_counter() - self._begun)

    def tokens(self, rows: int, stretch: int, more: int) -> list[int]:
        draw = Random(f"{self.context} {rows} {stretch}")
        return [draw.randrange(self._model.vocabulary_size) for _ in range(rows + more)]

    def _compute(self, size: int, rows: int, stretch: int, *, steps: bool) -> str:
        tokens, draw = self.tokens(rows, stretch, size), Random(size)
        cache, digest, done, replayed = self.cache, sha256(), 0, list[int]()
        while done < rows or replayed:
            room = max(1, size - len(replayed)) if done < rows else 0
            kept = 1 if steps or not room else draw.randint(1, room)
            kept = min(room if replayed else kept, rows - done)
            cache.mark()
            given = [*replayed, *tokens[done : done + room]]
            logits = self._model.forward(mx.array(given), cache)[len(replayed) :][:kept]
            done += kept
            digest.update(_sums(logits, self.factors))
            missing = cache.rollback(min(cache.length, self.context + done))
            replayed = tokens[done - missing : done]
            self.watch()
        return self.digest_of(rows, digest)

    def digest_of(self, rows: int, digest: Any) -> str:
        """The digest with the keys, values and states of the first `rows` tokens."""
        whole = self.cache.checkpoint(whole=True)
        left = self.cache.rows(self.context, self.context + rows), whole.states, whole.windows
        for array in map(mx.flatten, arrays_of(left)):
            digest.update(_sums(array, _factors(array.size)))
        return str(digest.hexdigest())


def _digests_together(
    model: TargetModel, probes: Sequence[_Probe], most: int, rows: int, stretch: int
) -> list[str]:
    """The digest of each sequence if batched passes of at most `most` rows compute them all."""
    draw, done = Random(most), 0
    given = [one.tokens(rows, stretch, most) for one in probes]
    digests = [sha256() for _ in probes]
    probes[0].begin()
    try:
        while done < rows:
            counts = [1] * len(probes)
            for _ in range(draw.randint(0, most - len(probes))):
                counts[draw.randrange(len(probes))] += 1
            kept = min(draw.randint(1, min(counts)), rows - done)
            parts = [own[done : done + many] for own, many in zip(given, counts, strict=True)]
            for one in probes:
                one.cache.mark()
            caches = [one.cache for one in probes]
            logits = model.forward_batch(mx.array([*chain.from_iterable(parts)]), caches, counts)
            split = mx.split(logits, list(accumulate(counts))[:-1])
            done += kept
            for one, digest, own in zip(probes, digests, split, strict=True):
                digest.update(_sums(own[:kept], one.factors))
                if one.cache.rollback(one.context + done):
                    return []
            probes[0].watch()
        probes[0].end()
        return [one.digest_of(rows, digest) for one, digest in zip(probes, digests, strict=True)]
    finally:
        for one in probes:
            one.cache.rollback(one.context)


def _sums(array: mx.array, factors: mx.array) -> bytes:
    """A number for the bits of each row."""
    bits = array.view(_UNSIGNED[array.dtype.size]).astype(mx.uint32)
    return np.asarray(mx.sum(bits * factors, axis=-1)).tobytes()


def _factors(size: int) -> mx.array:
    """Odd numbers, so that no bit that differs is lost."""
    return mx.arange(size, dtype=mx.uint32) * 2 * _ODD + 1


def _allows(model: TargetModel, context: int) -> bool:
    fits = model.cache_bytes(context) <= _MEMORY_SHARE * free_device_bytes()
    return fits and context + _ROOM <= model.context_length
