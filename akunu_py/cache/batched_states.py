"""BatchedStates: the states of one recurrent layer for several sequences, in one forward pass.

If each sequence has one row, the layer computes on stacked states as mlx-lm's own batches do. If
some have more, the rows of each must go through the convolution and the recurrence in order. These
get `[sequences, longest]`, padded at the end, and their inputs are recorded for each sequence, so
that it can roll back. `states.py` has the functions that this serves.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from operator import is_
from typing import Any

import mlx.core as mx

from akunu_py.cache.states import Recording, Recur


class StateRows(Recording):
    """The rows of a forward pass, `counts` of each sequence, and the inputs of recurrent layers:
    `convolved` is `[sequences, kept + longest, width]`.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        super().__init__()
        self.counts = counts
        self.longest = max(counts)

    @cached_property
    def _firsts(self) -> list[int]:
        return [sum(self.counts[:seat]) for seat in range(len(self.counts))]

    @cached_property
    def padded(self) -> mx.array:
        """The row at each place, `[sequences, longest]`; the last one of a sequence is repeated."""
        places = range(self.longest)
        return mx.array(
            [
                [first + min(place, count - 1) for place in places]
                for first, count in zip(self._firsts, self.counts, strict=True)
            ]
        )

    @cached_property
    def places(self) -> mx.array:
        """The place of each row among `sequences * longest`."""
        return mx.array(
            [
                seat * self.longest + row
                for seat, count in enumerate(self.counts)
                for row in range(count)
            ]
        )

    @cached_property
    def seats(self) -> mx.array:
        """The sequence of each row."""
        return mx.array([seat for seat, count in enumerate(self.counts) for _ in range(count)])

    def gather(self, rows: mx.array, axis: int) -> mx.array:
        """`[rows, .., 1, ..]`, with one place on `axis`, as `[sequences, .., longest, ..]`."""
        if self.longest == 1:
            return rows
        if len(self.counts) == 1:
            return rows.swapaxes(0, axis)
        return mx.moveaxis(mx.squeeze(rows, axis)[self.padded], 1, axis)

    def scatter(self, padded: mx.array, axis: int) -> mx.array:
        """The opposite of `gather`."""
        if self.longest == 1:
            return padded
        if len(self.counts) == 1:
            return padded.swapaxes(0, axis)
        flat = mx.moveaxis(padded, axis, 1).flatten(0, 1)
        return mx.expand_dims(flat[self.places], axis)

    def for_rows(self, held: mx.array) -> mx.array:
        """What each row's sequence has of `held`, `[sequences, ..]`."""
        if self.longest == 1:
            return held
        if len(self.counts) == 1:
            return mx.broadcast_to(held, (self.longest, *held.shape[1:]))
        return held[self.seats]

    def convolve(self, call: Callable[[mx.array], mx.array], given: mx.array) -> mx.array:
        """A convolution over `[rows, kept + 1, width]`: each row has the state of its sequence, and
        then its own input."""
        kept = given[mx.array(self._firsts), :-1]
        inputs = mx.concatenate([kept, self.gather(given[:, -1:], 1)], axis=1)
        return self.scatter(super().convolve(call, inputs), 1)

    def advance(
        self, call: Recur, arguments: dict[str, Any], inputs: Sequence[str], axis: int
    ) -> tuple[mx.array, mx.array]:
        """A recurrence over `[rows, 1]` places from the states of all sequences; its second result
        stands for their next states."""
        gathered = {name: self.gather(arguments[name], axis) for name in inputs}
        outputs, state = super().advance(call, arguments | gathered, inputs, axis)
        return self.scatter(outputs, axis), state


class BatchedStates:
    """Takes the place of a recurrent layer's own cache, an `ArraysCache` of mlx-lm.

    `cache` has the entries of all, `[sequences, ..]`; where a sequence has more than one row, those
    of convolutions are `[rows, ..]`. `own` has each sequence's part. States stacked `before`, for
    the last forward pass, are not stacked again.
    """

    lengths = left_padding = None

    def __init__(
        self, parts: Sequence[Any], rows: StateRows, before: "BatchedStates | None"
    ) -> None:
        self._parts, self._rows = parts, rows
        self.own: list[list[mx.array]] = [list(held) for held in _entries(parts)]
        self.cache: list[mx.array | None] = [
            before.cache[index] if before and before.holds(index, held) else _stacked(held)
            for index, held in enumerate(self.own)
        ]
        if rows.longest > 1:
            self.cache = [
                entry[rows.seats] if entry is not None and entry.ndim == 3 else entry
                for entry in self.cache
            ]

    def __getitem__(self, index: int) -> mx.array | None:
        return self.cache[index]

    def __setitem__(self, index: int, entry: mx.array) -> None:
        self.cache[index] = entry

    def make_mask(self, *_: Any, **__: Any) -> None:
        """No row is padding."""

    def advance(self, tokens: int) -> None:
        """See `ArraysCache`."""

    def holds(self, index: int, entries: Sequence[mx.array]) -> bool:
        """Whether an entry still consists of these entries of the sequences."""
        own = self.own[index]
        is_same = len(own) == len(entries) and all(map(is_, own, entries))
        return is_same and self._rows.longest == 1

    def settle(self, recordings: Sequence[Recording | None]) -> None:
        """Gives each sequence its states, and its recording the inputs of the forward pass."""
        rows = self._rows
        for index, entry in enumerate(self.cache):
            if entry is None:
                continue
            recurrence = next((one for one in rows.recurrences if one.state is entry), None)
            convolved = rows.convolved.pop(0) if rows.longest > 1 and recurrence is None else None
            for seat, (count, recording) in enumerate(zip(rows.counts, recordings, strict=True)):
                state = entry[seat : seat + 1]
                if convolved is not None:
                    length = convolved.shape[1] - rows.longest + count
                    whole = convolved[seat : seat + 1, :length]
                    state = whole[:, count:]
                    if recording is not None:
                        recording.convolved.append(whole)
                elif recurrence is not None:
                    if count < rows.longest:  # the padding went into the other
                        state = recurrence.of(seat, state).state_after(count)
                    if recording is not None:
                        recording.recurrences.append(recurrence.of(seat, state))
                self._parts[seat].cache[index] = self.own[index][seat] = state


def _entries(parts: Sequence[Any]) -> Iterator[tuple[mx.array, ...]]:
    return zip(*(part.cache for part in parts), strict=True)


def _stacked(held: Sequence[mx.array | None]) -> mx.array | None:
    """An entry of all sequences; those that have none yet begin at zero."""
    like = next((entry for entry in held if entry is not None), None)
    if like is None:
        return None
    return mx.concatenate([mx.zeros_like(like) if one is None else one for one in held])
