"""KVCache: a model's whole context, which `rollback` shortens for every kind of layer.

Layers with keys and values roll back by a counter. The states of recurrent layers are kept in
checkpoints, which is free because MLX arrays are immutable. A rollback within the last marked
forward pass repeats the recurrence, if it was recorded (`states.py`). Otherwise it goes to the last
checkpoint before that length: `mark` makes one at the beginning of a draft, `keep` one for later
prompts, with a copy of the windows.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import mlx.core as mx

from akunu_py.cache.layers import CacheGroup, LayerCache, WindowLayerCache, check_room
from akunu_py.cache.quantized import QuantizedLayerCache
from akunu_py.cache.states import (
    Checkpoint,
    Recording,
    arrays_of,
    copy_of,
    form_of,
    is_plain,
    parts_of,
    resembles,
)
from akunu_py.errors import CacheError

MakeLayers = Callable[[int], list[Any]]
"""Makes a model's empty caches for a capacity, in the list that mlx-lm's models take."""


class HeadPairs(Protocol):
    """What a model's head holds of a sequence; see `model_cache.py`."""

    pairs: "KVCache"
    is_wanted: bool

    def note(self, hidden: mx.array, tokens: Sequence[int], at: int) -> None: ...

    def complete(self, token: int) -> None: ...

    def read(self) -> mx.array | None: ...

    def has_room(self, pairs: int) -> bool: ...

    def fill(self, length: int) -> None: ...

    def forget(self, length: int) -> None: ...

    def copy(self, other: "HeadPairs", length: int) -> None: ...


class KVCache:
    """A model's whole cache, with room for `capacity` tokens. mlx-lm's models are called with
    `layers`.

    `checkpoints`, the shortest first, are for later prompts; only caches that cannot roll back far
    need them. Caches of a `group` share buffers, each at its `seat`. Keys and values are quantized
    at `quantized_start` tokens (0: from the beginning or never): forward passes end there, and a
    longer cache can return to no shorter length except 0.
    """

    def __init__(self, make_layers: MakeLayers, capacity: int) -> None:
        self.capacity = capacity
        self.head: HeadPairs | None = None
        self.group: CacheGroup | None = None
        self.seat = 0
        self.stack: Sequence[Any] | None = None
        self._make_layers = make_layers
        self._start()
        self.can_rollback = not self.unknown_kinds
        self.has_states = bool(self._states) and self.can_rollback
        self.needs_checkpoints = self.has_states or (bool(self._windows) and self.can_rollback)
        self._is_recordable: bool | None = None  # unknown before the first recorded forward
        quantized = [part for part in self._counted if isinstance(part, QuantizedLayerCache)]
        self.quantized_start = quantized[0].quantization.start if quantized else 0

    def _start(self) -> None:
        self.layers = self._make_layers(self.capacity)
        parts = list(parts_of(self.layers))
        self._counted = [part for part in parts if isinstance(part, LayerCache)]
        self._windows = [part for part in self._counted if isinstance(part, WindowLayerCache)]
        self._full = [part for part in self._counted if not isinstance(part, WindowLayerCache)]
        self._states = [part for part in parts if not isinstance(part, LayerCache)]
        self.length = 0
        self._empty = self.checkpoint()
        self.checkpoints: list[Checkpoint] = []
        self._mark: Checkpoint | None = None
        self._mark_shares = False  # memory with other sequences
        self.recording: Recording | None = None
        self._recorded: Recording | None = None  # of the last forward, if nothing happened since

    @property
    def unknown_kinds(self) -> list[str]:
        """The names of the caches that cannot be rolled back."""
        return sorted({type(part).__name__ for part in self._states if not is_plain(vars(part))})

    @property
    def quantized_layers(self) -> int:
        return sum(
            any(isinstance(part, QuantizedLayerCache) for part in parts_of([layer]))
            for layer in self.layers
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, states and checkpoints; 0 before the first forward pass."""
        nbytes = sum(layer.nbytes for layer in self._counted)
        if (group := self.group) is not None:  # those that stay share all of its buffers
            nbytes = nbytes * group.size // (group.size - group.left)
        nbytes += sum(array.nbytes for array in arrays_of([vars(part) for part in self._states]))
        nbytes += 0 if self.head is None else self.head.pairs.nbytes
        if self._mark is not None and self._mark.length < self.length:
            nbytes += self._mark.nbytes
        return nbytes + sum(checkpoint.nbytes for checkpoint in self.checkpoints)

    def estimate(self, capacity: int) -> float:
        """Bytes of buffers and states if it had another capacity."""
        growing = sum(layer.nbytes for layer in self._full)
        growing += 0 if self.head is None else self.head.pairs.nbytes
        fixed = self.nbytes - growing - sum(one.nbytes for one in self.checkpoints)
        return growing / self.capacity * capacity + fixed

    def advance(self, tokens: int, stack: Sequence[Any] | None = None) -> None:
        """Counts the tokens of a forward pass that was built, which left its states in a `stack` if
        it was batched. Raises a `CacheError` if a layer did not count them."""
        self.length += tokens
        self.stack = stack
        self._recorded, self.recording = self.recording, None
        if self._mark_shares and self._mark is not None and self._recorded is None:
            # The mark may stay for a long time, and would keep the states of all sequences alive.
            self._mark_shares = False
            mx.async_eval(_unshared(self._mark.states))  # type: ignore[no-untyped-call]
        for layer in self._counted:
            # Some models make caches for layers that never use them.
            if layer.offset != self.length and layer.offset:
                raise CacheError(
                    f"The model's layers disagree on the context: one holds {layer.offset} tokens "
                    f"of {self.length}. Please report its architecture."
                )

    def reach(self, to: int) -> int:
        """The most tokens, `to` or fewer, that it can be rolled back to."""
        return to if self._can_repeat(to) else self._way_back(to).length

    def rollback(self, to: int) -> int:
        """Forgets every token after the first `to`, and more if it has to. Returns how many of the
        wanted tokens are missing: the next forward pass must begin with them.
        """
        if not 0 <= to <= self.length:
            raise ValueError(f"Cannot roll a cache of {self.length} tokens back to {to}.")
        checkpoint = self._repeated(to) if self._can_repeat(to) else self._way_back(to)
        if not self.can_rollback and checkpoint.length < self.length:
            self._start()
        else:
            self._restore(checkpoint, self)
            self._forget(checkpoint.length)
        return to - checkpoint.length

    def checkpoint(self, *, whole: bool = False) -> Checkpoint:
        """A checkpoint at the present length; if it is `whole`, any number of tokens may follow."""
        windows = tuple(layer.snapshot() for layer in self._windows) if whole else None
        return Checkpoint(self.length, tuple(copy_of(vars(part)) for part in self._states), windows)

    def mark(self) -> None:
        """Lets `rollback` return to the present length, until the next mark.

        Call it before a forward pass that may be rolled back. It is free, but the present states
        and the inputs of that forward pass stay in memory until the next forward pass or rollback.
        """
        if self.has_states:
            self._mark, self._mark_shares = self.checkpoint(), self.stack is not None
            self.recording = None if self._is_recordable is False else Recording()

    def keep(self) -> None:
        """Keeps a checkpoint at the present length, for later prompts that begin with it."""
        kept = self.checkpoints[-1].length if self.checkpoints else 0
        if self.needs_checkpoints and self.length > kept:
            self.checkpoints.append(self.checkpoint(whole=True))

    def skip(self, tokens: int) -> None:
        """Counts tokens that were never computed, to time forward passes after a long context."""
        check_room(self.length + tokens, self.capacity)
        for layer in self._counted:
            layer.skip(tokens)
        self.length += tokens

    def repeat(self, tokens: int) -> None:
        """Makes the context as long as `tokens` with copies of what it holds, one token or more."""
        last = replace(self.checkpoint(whole=True), length=tokens)
        while (length := max((one.offset for one in self._full), default=tokens)) < tokens:
            self.append_rows(self.rows(0, min(length, tokens - length)))
        self.resume(tokens, [last])

    def grow(self, capacity: int) -> None:
        """Makes room for more tokens; if there is no memory for them, it stays as it was."""
        if self.group is not None and capacity > self.group.rows:
            self._leave_group()
        for layer in self._counted:
            layer.grow(capacity)
        if self.head is not None:
            self.head.pairs.grow(capacity)
        self.capacity = capacity

    @property
    def can_join(self) -> bool:
        """Whether other caches of its model may share buffers with it."""
        has_content = bool(self._counted) and self.length > 0
        return has_content and all(type(layer) is LayerCache for layer in self._counted)

    def join(self, others: "Sequence[KVCache]") -> None:
        """Moves its content and that of other caches into shared buffers, if there is memory."""
        caches = [self, *others]
        try:
            for layers in zip(*(cache._counted for cache in caches), strict=True):
                if layers[0].keys is not None:
                    LayerCache.join(layers)
        except Exception:
            for cache in caches:
                cache.separate()
            raise
        group = CacheGroup(len(caches), max(cache.capacity for cache in caches))
        for seat, cache in enumerate(caches):
            cache._leave_group()
            cache.group, cache.seat = group, seat

    def separate(self) -> None:
        """Moves its content to its own buffers, if it shares some and there is memory."""
        self._leave_group()
        with suppress(Exception):
            for layer in self._counted:
                layer.separate()
            if self.stack is not None:
                self.stack = None
                mx.eval(_unshared([vars(part) for part in self._states]))

    def _leave_group(self) -> None:
        if self.group is not None:
            self.group.left += 1
            self.group = None

    def copy(self, other: "KVCache", tokens: int) -> None:
        """Becomes a copy of another cache of the same model, rolled back to `tokens`. The other one
        must be able to roll back that far. Raises a `ContextOverflowError` if they do not fit."""
        way = other._way_back(tokens)
        if tokens > other.length or way.length != tokens:
            raise ValueError(f"A cache of {other.length} tokens cannot give {tokens}.")
        check_room(tokens, self.capacity)
        self.rollback(0)
        if tokens:
            self._restore(way, other)
            self.checkpoints = [one for one in other.checkpoints if one.length <= tokens]
            self.length = tokens
            if self.head is not None and other.head is not None:
                self.head.copy(other.head, tokens)

    @property
    def kinds(self) -> list[str]:
        """The kind of each layer's cache; caches of one model and the same kinds exchange rows."""
        kinds = [
            part.kind if isinstance(part, LayerCache) else type(part).__name__
            for part in parts_of(self.layers)
        ]
        return kinds if self.head is None else [*kinds, "head", *self.head.pairs.kinds]

    @property
    def _stored(self) -> list[LayerCache]:
        return self._counted if self.head is None else [*self._counted, *self.head.pairs._counted]

    @property
    def floor(self) -> int:
        """The fewest tokens that a cache with these rows may hold."""
        return max((one.floor for one in self._counted if one not in self._windows), default=0)

    def rows(self, start: int, stop: int) -> list[tuple[mx.array, ...]]:
        """The keys and values of the tokens from `start` to `stop`, for each layer with a counter.

        Windows and recurrent states are in checkpoints. Keep no reference: see `LayerCache`.
        """
        return [layer.rows(start, stop) for layer in self._stored]

    def fits(self, rows: Any, checkpoints: Sequence[Checkpoint], tokens: int) -> bool:
        """Whether rows of this many tokens, and checkpoints, can come from a cache of this model.
        This cache must hold a token."""
        forms = zip(*(layer.forms(tokens) for layer in self._stored), strict=True)
        whole = [list(form) for form in forms] or [[]]
        # Rows of the head may be missing; its pairs then count as zeros.
        own, missing = len(self._counted), [form_of(())] * (len(self._stored) - len(self._counted))
        states = self.checkpoint().states
        return form_of(rows) in [*whole, *([*form[:own], *missing] for form in whole)] and all(
            resembles(one.states, states)
            and form_of(one.windows)
            == tuple(window.snapshot_form(one.length) for window in self._windows)
            for one in checkpoints
        )

    def append_rows(self, rows: Sequence[Sequence[mx.array]]) -> None:
        """Appends what `rows` of a cache of the same kinds returned; `resume` must follow."""
        for layer, own in zip(self._stored, rows, strict=True):
            layer.append_rows(own)
        mx.eval([layer.state for layer in self._stored])

    def resume(self, length: int, checkpoints: Sequence[Checkpoint]) -> None:
        """Completes `append_rows` with whole checkpoints, the shortest first. If the cache needs
        any, the last one is at `length`."""
        if self.needs_checkpoints:
            last = checkpoints[-1]
            for window, content in zip(self._windows, last.windows or (), strict=True):
                window.restore(content, length)
            self._restore_states(last)
        self.checkpoints = list(checkpoints)
        if self.head is not None:
            self.head.pairs.resume(length, ())
        self._forget(length)
        mx.eval(list(arrays_of([[one.states, one.windows] for one in checkpoints])))
        self.evaluate()

    def submit(self) -> None:
        """Starts to compute everything appended so far."""
        states = list(arrays_of([vars(part) for part in self._states]))
        mx.async_eval([layer.state for layer in self._stored], states)  # type: ignore[no-untyped-call]

    def evaluate(self) -> None:
        """Waits until everything appended so far has been computed."""
        self.submit()
        mx.synchronize()

    def _can_repeat(self, to: int) -> bool:
        """Whether the recurrence can be repeated up to `to`, from what the last mark recorded."""
        mark, recorded = self._mark, self._recorded
        if mark is None or recorded is None or not mark.length < to < self.length:
            return False
        if self._is_recordable is None:
            self._is_recordable = recorded.is_right(self._states, self.length - mark.length)
        return self._is_recordable and _reach(self._counted, to)

    def _repeated(self, to: int) -> Checkpoint:
        assert self._mark is not None
        assert self._recorded is not None
        begin = self._mark.length
        repeated = self._recorded.states_after(self._states, to - begin, self.length - begin)
        assert repeated is not None, "checked once"
        return Checkpoint(to, tuple({"cache": states} for states in repeated), None)

    def _way_back(self, to: int) -> Checkpoint:
        if to == self.length:
            return self.checkpoint()
        if not self._states and _reach(self._counted, to):
            return Checkpoint(to, (), None)
        usable = [
            one
            for one in (self._empty, *self.checkpoints, self._mark)
            if one is not None
            and one.length <= to
            and _reach(self._counted if one.windows is None else self._full, one.length)
        ]
        return max(usable, key=lambda one: one.length)

    def _restore(self, checkpoint: Checkpoint, source: "KVCache") -> None:
        """Holds what `source`, which may be this cache, held at a checkpoint. Windows that have
        moved on get their content from the checkpoint."""
        length = checkpoint.length
        contents = iter(checkpoint.windows or ())
        for own, held in zip(self._counted, source._counted, strict=True):
            content = next(contents, ()) if isinstance(own, WindowLayerCache) else ()
            if held.floor > length > 0:
                assert isinstance(own, WindowLayerCache)
                own.restore(content, length)
            elif held is own:
                own.rollback(length)
            else:
                own.copy(held, length)
        self._restore_states(checkpoint)

    def _restore_states(self, checkpoint: Checkpoint) -> None:
        for part, saved in zip(self._states, checkpoint.states, strict=True):
            vars(part).update(copy_of(saved))

    def _forget(self, length: int) -> None:
        self.length = length
        if self.head is not None:
            self.head.forget(length)
        self._recorded = None
        self.checkpoints = [one for one in self.checkpoints if one.length <= length]
        if self._mark is not None and self._mark.length > length:
            self._mark = None


def _unshared(states: Any) -> list[mx.array]:
    """Moves states that are slices of larger arrays to their own memory, in place because a
    recording may refer to them; returns the arrays to evaluate."""
    found = arrays_of(states)
    for state in found:
        state[:] = mx.contiguous(state)
    return found


def _reach(layers: Sequence[LayerCache], to: int) -> bool:
    """Whether all of them can return to `to` tokens by moving their counters."""
    return all(layer.floor <= to for layer in layers) or not to
