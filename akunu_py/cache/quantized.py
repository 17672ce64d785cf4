"""The cache of an attention layer with quantized keys and values: mlx-lm's `--kv-bits`."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from akunu_py.cache.layers import LayerCache
from akunu_py.cache.states import form_of_rows
from akunu_py.errors import InvalidRequestError
from akunu_py.options import KV_GROUP_SIZES, KVQuantization


class QuantizedLayerCache(LayerCache):
    """The keys and values of one layer with full attention, quantized from a length `start` on.

        What a position attends to depends only on the position. The tokens before `start` attend to
    unquantized keys and values. The first forward pass that begins at `start` or later quantizes
    what the layer holds, and attends to quantized keys and values, including its own. Callers end a
    forward pass at `start`: see `KVCache.quantized_start`. (mlx-lm switches after the forward pass
    that reaches `start`, however long it is.) Once quantized, the cache cannot return to fewer than
    `start` tokens except to 0: a prompt of that length would be computed without quantization.

    In the form `packed`, it returns triples of packed numbers, scales and biases, like mlx-lm's
    cache. In the other forms, it dequantizes them for each forward pass, with bit-identical
    results.
    """

    def __init__(self, capacity: int, quantization: KVQuantization) -> None:
        super().__init__(capacity)
        self.quantization = quantization
        self.group_size = quantization.group_size
        self._packed: list[mx.array] = []  # 3 of the keys, 3 of the values; see `_write`

    @property
    def bits(self) -> int:
        """Exists only while packed keys are returned: mlx-lm's attention checks with `hasattr`."""
        if not self._packed or self.quantization.form != "packed":
            raise AttributeError("The keys and values are not packed.")
        return self.quantization.bits

    @property
    def floor(self) -> int:
        return self.quantization.start if self._packed else 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Appends tokens; returns all keys and values so far, in the form the class describes.
        Raises an InvalidRequestError if groups do not divide a head's numbers."""
        if self.offset < self.quantization.start:
            return super().update_and_fetch(keys, values)
        self.append_rows(self._quantize(keys, values))
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Any, Any]:
        if not self._packed:
            return super().keys_and_values()
        parts = [part[..., : self.offset, :] for part in self._packed]
        if self.quantization.form == "packed":
            return tuple(parts[:3]), tuple(parts[3:])
        return self._dequantize(*parts[:3]), self._dequantize(*parts[3:])

    def rollback(self, to: int) -> None:
        super().rollback(to)
        if to < self.floor:
            self._packed = []
            self.nbytes = 0

    def skip(self, tokens: int) -> None:
        self.offset += tokens * (self.keys is not None or bool(self._packed))

    def grow(self, capacity: int) -> None:
        if self._packed:  # other buffers grow when they are written
            larger = QuantizedLayerCache(capacity, self.quantization)
            larger.copy(self, self.offset)
            self._packed, self.nbytes = larger._packed, larger.nbytes
        self.capacity = capacity

    def copy(self, other: LayerCache, tokens: int) -> None:
        self.keys = self.values = None  # what it held before
        self.offset = 0
        self.append_rows(other.rows(0, tokens))
        mx.eval(self.state)

    @property
    def kind(self) -> str:
        return f"{super().kind}({self.quantization})"

    def forms(self, tokens: int) -> tuple[Any, Any]:
        first = self.rows(0, 1)
        packed = first if self._packed or not first else self._quantize(*first)
        return form_of_rows(first, tokens), form_of_rows(packed, tokens)

    def append_rows(self, rows: Sequence[mx.array]) -> None:
        if len(rows) <= 2:  # keys and values of before the start, which are not packed
            super().append_rows(rows)
            return
        end = self.end_of(rows[0])
        if (held := super().state) and self.offset:
            self._write(self._quantize(*(part[..., : self.offset, :] for part in held)), 0)
        self.keys = self.values = None
        self._write(rows, self.offset)
        self.offset = end

    @property
    def state(self) -> tuple[mx.array, ...]:
        return tuple(self._packed) or super().state

    def _buffers(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        rows = min(self.capacity, max(self.quantization.start, self.offset + keys.shape[2]))
        old_keys, old_values = self.keys, self.values
        if old_keys is None or old_values is None or old_keys.shape[2] < rows:
            self.keys, self.values = self._allocate(keys, values, rows)
            if old_keys is not None and old_values is not None:
                self.keys[..., : self.offset, :] = old_keys[..., : self.offset, :]
                self.values[..., : self.offset, :] = old_values[..., : self.offset, :]
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def _quantize(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        size, bits = self.group_size, self.quantization.bits
        for head in (keys.shape[3], values.shape[3]):
            if head % size:
                others = [other for other in KV_GROUP_SIZES if head % other == 0]
                remedy = f"choose --kv-group-size {others[-1]}" if others else "omit --kv-bits"
                raise InvalidRequestError(
                    f"The heads of this model have {head} numbers, which groups of {size} do not "
                    f"divide; {remedy}."
                )
        return [*mx.quantize(keys, size, bits), *mx.quantize(values, size, bits)]

    def _dequantize(self, packed: mx.array, scales: mx.array, biases: mx.array) -> mx.array:
        bits = self.quantization.bits
        if self.quantization.form == "dequantized":
            return mx.dequantize(packed, scales, biases, self.group_size, bits)
        numbers = packed.view(mx.uint8)
        if bits == 4:
            numbers = mx.stack([numbers & 15, numbers >> 4], axis=-1)
        grouped = numbers.reshape(*scales.shape, -1).astype(scales.dtype)
        found = grouped * scales[..., None] + biases[..., None]
        return found.reshape(*scales.shape[:-1], -1)

    def _write(self, parts: Sequence[mx.array], start: int) -> None:
        if not self._packed:
            self._packed = [
                mx.zeros((*part.shape[:2], self.capacity, part.shape[3]), dtype=part.dtype)
                for part in parts
            ]
            self.nbytes = sum(buffer.nbytes for buffer in self._packed)
        for buffer, part in zip(self._packed, parts, strict=True):
            buffer[..., start : start + part.shape[2], :] = part
