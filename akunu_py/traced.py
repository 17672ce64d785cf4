"""TracedNetwork: a network of mlx-lm whose Python runs once for each number of rows.

Building the graph of a forward takes milliseconds of Python, in which a GPU waits. Between two
attentions, the operations depend on the number of rows alone: they are traced with `mx.compile`,
and replayed. The attentions, and what writes to the caches, run as they are, because their shapes
change with every token.

The network need not be known, and is not modified. To trace from one attention to the next, it is
called with layers that stand in for its own: the earlier ones are skipped, the one that the first
attention belongs to gets its output, and the next attention ends the call. The compiler drops what
is not used. Each number of rows is traced for itself, so forwards of many rows are not traced.
Whether the results are the same to the bit is tried when a model is loaded.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from akunu_py.cache.layers import LayerCache
from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.errors import AkunuError
from akunu_py.machine.backend import MOST_ROUND_TOKENS
from akunu_py.model.attention import intercept_attention

_TRIED_ROWS: Final = (3, 1, 3)


class UntraceableError(Exception):
    """The network computes something in a way that cannot be traced."""


@dataclass(frozen=True)
class _Mask:
    """A mask that the network asked a cache for, which is made anew in each forward."""

    cache: int
    count: int
    return_array: bool
    window_size: int | None

    def made_by(self, caches: Sequence[Any]) -> Any:
        return caches[self.cache].make_mask(
            self.count, return_array=self.return_array, window_size=self.window_size
        )


@dataclass(frozen=True)
class _Cut:
    """The attention that a segment ends at: of which layer, on which cache, and its arguments.

    `named` has the arguments besides queries, keys, values, cache and mask.
    """

    layer: int
    cache: int
    attend: Callable[..., mx.array]
    mask: _Mask | None
    named: dict[str, Any]


class _Reached(Exception):  # noqa: N818  (it ends a traced call, and is no error)
    """The next attention is reached."""

    def __init__(self, cut: _Cut, arrays: list[mx.array]) -> None:
        super().__init__()
        self.cut, self.arrays = cut, arrays


@dataclass
class _Trace:
    """The state of one traced call of the network.

    Attributes:
        offset: how many tokens the caches hold.
        resume: the layer whose attention has its output already; -1 at the beginning.
        x: the input of that layer, then of the one that runs.
        mixed: the output of that attention, until it is used.
        given: what the leaves of that layer returned before its attention, until it is used.
        layer: the layer that runs.
        noted: what its leaves have returned.
        masks: those that the network asked for.
    """

    offset: mx.array
    resume: int
    x: mx.array | None
    mixed: mx.array | None
    given: list[mx.array]
    layer: int = -1
    noted: list[mx.array] = field(default_factory=list)
    masks: list[_Mask] = field(default_factory=list)


class _StandIn:
    """Stands in for a module: has its attributes, and is called in another way."""

    def __init__(self, original: nn.Module, call: Callable[..., Any]) -> None:
        self._original, self._call = original, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._call(self._original, *args, **named)


class _CacheStandIn:
    """Stands in for the cache of an attention layer in a traced call."""

    def __init__(self, index: int, trace: _Trace) -> None:
        self._index, self._trace = index, trace
        self._appended: tuple[mx.array, ...] = ()

    @property
    def offset(self) -> mx.array:
        return mx.array(self._trace.offset)

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> _Mask:
        mask = _Mask(self._index, count, return_array, window_size)
        self._trace.masks.append(mask)
        return mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self._appended = keys, values
        return keys, values

    def attend(
        self,
        attend: Callable[..., mx.array],
        inputs: tuple[mx.array, mx.array, mx.array],
        scale: Any,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """The attention's output if it is known; else the call ends here.

        Raises:
            UntraceableError: if the attention depends on more than its layer's input and cache.
        """
        trace = self._trace
        if trace.layer == trace.resume and trace.mixed is not None:
            mixed, trace.mixed = trace.mixed, None
            return mixed
        if trace.layer == trace.resume or trace.x is None:
            raise UntraceableError("A layer has two attentions.")
        if [id(array) for array in inputs[1:]] != [id(array) for array in self._appended]:
            raise UntraceableError("An attention has keys that its cache did not return.")
        if not isinstance(scale, float | int) or not isinstance(mask, _Mask | None):
            raise UntraceableError("An attention has a scale or a mask that was computed.")
        named = {"scale": scale} if sinks is None else {"scale": scale, "sinks": sinks}
        cut = _Cut(trace.layer, self._index, attend, mask, named)
        raise _Reached(cut, [trace.x, *inputs, *trace.noted])


@dataclass
class _Segment:
    """The operations from one attention to the next, and where they end, by number of rows."""

    compute: Callable[..., list[mx.array]]
    cuts: dict[int, _Cut | None] = field(default_factory=dict)
    masks: dict[int, list[_Mask]] = field(default_factory=dict)


class TracedNetwork:
    """The forwards of a network, from traced operations where that is possible."""

    def __init__(self, network: nn.Module) -> None:
        intercept_attention(network)
        self._network = network
        self._is_right = True
        self._stand_in = self._copy_with_stand_ins(network)
        self._segments: dict[int, _Segment] = {}
        self._trace: _Trace

    def __call__(self, inputs: mx.array, cache: Sequence[Any]) -> mx.array:
        """As the network: ids `[1, rows]` to logits `[1, rows, vocabulary]`."""
        held = [layer.offset for layer in cache if isinstance(layer, LayerCache)]
        if not self._is_right or inputs.shape[1] > MOST_ROUND_TOKENS or len(held) < len(cache):
            return self._by_network(inputs, cache)
        try:
            return self._by_segments(inputs, cache, max(held))
        except AkunuError:
            raise
        except Exception:  # a model's own Python may raise anything
            self._is_right = False
            for layer, offset in zip(cache, held, strict=True):
                layer.rollback(offset)
            return self._by_network(inputs, cache)

    def try_out(self) -> bool:
        """Whether it traces anything, and computes what the network computes, to the bit.

        A few short forwards are computed both ways.
        """
        own, theirs = (make_kv_cache(self._network, sum(_TRIED_ROWS)) for _ in range(2))
        for rows in _TRIED_ROWS:
            tokens = mx.arange(rows)[None]
            computed = self(tokens, own.layers)
            wanted = self._by_network(tokens, theirs.layers)
            if not self._is_right or not mx.array_equal(computed, wanted, equal_nan=True):
                return False
        return bool(self._segments)

    def _by_network(self, inputs: mx.array, cache: Sequence[Any]) -> mx.array:
        logits: mx.array = self._network(inputs, cache=cache)
        return logits

    def _by_segments(self, inputs: mx.array, cache: Sequence[Any], length: int) -> mx.array:
        rows, offset = inputs.shape[1], mx.array(length)
        masks: dict[_Mask | None, Any] = {None: None}
        resume, live = -1, list[mx.array]()
        while True:
            segment = self._segments.get(resume) or self._new_segment(resume, len(cache))
            outputs = segment.compute(inputs, offset, *live)
            cut = segment.cuts[rows]
            if cut is None:
                return outputs[0]
            for mask in segment.masks[rows]:  # before any layer has more tokens
                masks[mask] = mask.made_by(cache)
            x, queries, keys, values, *noted = outputs
            layer = cache[cut.cache]
            keys, values = layer.update_and_fetch(keys, values)
            mixed = cut.attend(
                queries, keys, values, cache=layer, mask=masks[cut.mask], **cut.named
            )
            resume, live = cut.layer, [x, mixed, *noted]

    def _new_segment(self, resume: int, caches: int) -> _Segment:
        """The segment from the attention of a layer on, or from the beginning if that is -1."""
        segment = _Segment(mx.compile(partial(self._run_segment, resume, caches)))
        self._segments[resume] = segment
        return segment

    def _run_segment(
        self, resume: int, caches: int, inputs: mx.array, offset: mx.array, *live: mx.array
    ) -> list[mx.array]:
        """Calls the network from one attention to the next, or to its end.

        Args:
            resume: see `_Trace`.
            caches: how many caches the network takes.
            inputs: ids `[1, rows]`.
            offset: how many tokens the caches hold.
            live: the input of layer `resume`, the output of its attention, and what its leaves
                returned before that.

        Returns:
            The input of the next attention's layer, the queries, the keys, the values, and what
            its leaves returned; or the logits.
        """
        x, mixed, *given = live or (None, None)
        self._trace = trace = _Trace(offset, resume, x, mixed, given)
        cut: _Cut | None = None
        try:
            stand_ins = [_CacheStandIn(index, trace) for index in range(caches)]
            outputs = [self._stand_in(inputs, cache=stand_ins)]
        except _Reached as reached:
            cut, outputs = reached.cut, reached.arrays
        segment, rows = self._segments[resume], inputs.shape[1]
        segment.cuts[rows] = cut
        segment.masks[rows] = trace.masks if resume < 0 else []
        return outputs

    def _run_layer(self, index: int, layer: Any, x: mx.array, *args: Any, **named: Any) -> Any:
        trace = self._trace
        if index < trace.resume:
            return x
        if index > trace.resume or trace.x is None:
            trace.x = x
        trace.layer, trace.noted = index, []
        # An array of its own, because layers may add to it in place.
        return layer(mx.array(trace.x), *args, **named)

    def _run_leaf(self, leaf: nn.Module, *args: Any, **named: Any) -> Any:
        trace = self._trace
        if trace.layer == trace.resume and trace.given:
            return trace.given.pop(0)
        result = leaf(*args, **named)
        if isinstance(result, mx.array):
            trace.noted.append(result)
        return result

    def _copy_with_stand_ins(self, network: nn.Module) -> nn.Module:
        """A copy that shares the weights, with stand-ins for its layers and their leaves.

        Leaves are the modules without parts. What they returned before an attention is kept for
        after it, where some layers use it again, as gates do.
        """
        layers = [id(layer) for layer in network.layers]

        def is_leaf(tree: Any) -> bool:
            return isinstance(tree, nn.Module) and not tree.children() and bool(tree.parameters())

        def copied(tree: Any, within: bool = False) -> Any:
            if isinstance(tree, list) and [id(child) for child in tree] == layers:
                return [
                    _StandIn(copied(layer, within=True), partial(self._run_layer, index))
                    for index, layer in enumerate(tree)
                ]
            if isinstance(tree, list):
                return [copied(child, within) for child in tree]
            if not isinstance(tree, dict):
                return tree
            if within and is_leaf(tree):
                return _StandIn(tree, self._run_leaf)
            twin = copy(tree)
            dict.update(twin, {name: copied(child, within) for name, child in tree.items()})
            return twin

        return copied(network)


def traced(network: nn.Module) -> TracedNetwork | None:
    """A network's forwards from traced operations; None if it cannot be traced."""
    try:
        found = TracedNetwork(network)
        return found if found.try_out() else None
    except Exception:  # it is not built as mlx-lm's models are
        return None
