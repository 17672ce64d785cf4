"""The states of recurrent layers: checkpoints to return to, and recordings to repeat in part.

A checkpoint is a copy of the layers' attributes. In most families of mlx-lm, a recurrent layer is a
short convolution and one of a few functions, from inputs over the sequence and a state to outputs
and the next state. `record` keeps the inputs of one forward pass; from them,
`Recording.states_after` computes the states after a part of its tokens. This is checked against the
states that the forward pass left; a family that fails the check is not recorded.
"""

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from inspect import signature
from threading import local
from typing import Any, Final, Self, cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import CacheList

_RECURRENCES: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "gated_delta_update": (("q", "k", "v", "a", "b"), 1),  # Qwen3-Next, Qwen3.5, Kimi Linear, OLMo
    "ssm_update": (("hidden_states", "B", "C", "dt"), 1),  # Mamba 2 in its families
    "recurrent_gla": (("q", "k", "v"), 2),  # Bailing's lightning attention
}
"""mlx-lm's functions that advance a state: their inputs over the sequence, and its axis in them."""

_STATES: Final = ("state", "h")
"""Their names for the initial state."""

Recur = Callable[..., tuple[mx.array, mx.array]]
"""Returns the outputs and the next state."""

_SCALARS: Final = (bool, int, float, str, type(None))

_active = local()


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything needed to return a cache to an earlier length: the attributes of each cache that
    is not a `LayerCache`, and the windows' content; None means not copied: usable while the windows
    hold it.
    """

    length: int
    states: tuple[dict[str, Any], ...]
    windows: tuple[tuple[mx.array, ...], ...] | None

    @cached_property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in arrays_of([*self.states, self.windows]))


def is_plain(value: Any) -> bool:
    """Whether `copy_of` copies all of a value."""
    if type(value) is dict:
        return all(map(is_plain, value.values()))
    if type(value) in (list, tuple):  # a subclass may take other arguments
        return all(map(is_plain, value))
    return isinstance(value, (mx.array, *_SCALARS))


def copy_of(value: Any) -> Any:
    """A copy of a tree; memory is shared until the original is written to."""
    if isinstance(value, dict):
        return {name: copy_of(held) for name, held in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(copy_of, value))
    return mx.array(value) if isinstance(value, mx.array) else value


def arrays_of(value: Any) -> list[mx.array]:
    """The arrays of a tree of containers."""
    return [held for _, held in tree_flatten(value) if isinstance(held, mx.array)]


def form_of(value: Any) -> Any:
    """A tree with the type and the shape of each array, and the type of each other value."""
    if isinstance(value, dict):
        return {name: form_of(held) for name, held in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(form_of, value))
    return (value.dtype, value.shape) if isinstance(value, mx.array) else type(value)


def resembles(held: Any, first: Any) -> bool:
    """Whether a tree may be the state of a layer whose state after one token was `first`. Some
    families collect tokens, so axes of one entry grow, and some arrays are made later."""
    if isinstance(held, mx.array) and isinstance(first, mx.array):
        is_alike = (held.dtype, held.ndim) == (first.dtype, first.ndim)
        is_alike &= held.shape[:1] == first.shape[:1]  # one sequence
        sizes = zip(held.shape[1:], first.shape[1:], strict=False)
        return is_alike and all(own in (1, size) for size, own in sizes)
    if isinstance(held, dict) and isinstance(first, dict):
        return held.keys() == first.keys() and all(resembles(held[key], first[key]) for key in held)
    if isinstance(held, list | tuple) and type(held) is type(first):
        return len(held) == len(first) and all(map(resembles, held, first))
    return type(held) is type(first) or (first is None and isinstance(held, mx.array))


def form_of_rows(rows: Sequence[mx.array], tokens: int) -> tuple[Any, ...]:
    """The form that keys and values would have for this many tokens."""
    return tuple((part.dtype, (*part.shape[:-2], tokens, part.shape[-1])) for part in rows)


def parts_of(layers: Sequence[Any]) -> Iterator[Any]:
    """The single caches in a list that may contain lists."""
    for layer in layers:
        yield from parts_of(layer.caches) if isinstance(layer, CacheList) else (layer,)


@dataclass(frozen=True)
class Recurrence:
    """One call of a recurrence, which returned `state`; perhaps for several sequences."""

    call: Recur
    arguments: dict[str, Any]
    inputs: tuple[str, ...]
    axis: int
    state: mx.array

    def of(self, seat: int, state: mx.array) -> Self:
        """The call for one of several sequences, which it left with `state`."""
        names = (*self.inputs, *_STATES)
        own = {
            name: value[seat : seat + 1]
            for name in names
            if (value := self.arguments.get(name)) is not None
        }
        return replace(self, arguments={**self.arguments, **own}, state=state)

    def state_after(self, tokens: int) -> mx.array:
        part = (slice(None),) * self.axis + (slice(tokens),)
        cut = {name: self.arguments[name][part] for name in self.inputs}
        return self.call(**{**self.arguments, **cut})[1]


@dataclass
class Recording:
    """Calls the functions of recurrent layers in one forward pass, and records their inputs, in the
    order of the layers."""

    convolved: list[mx.array] = field(default_factory=list)
    recurrences: list[Recurrence] = field(default_factory=list)

    def convolve(self, call: Callable[[mx.array], mx.array], given: mx.array) -> mx.array:
        self.convolved.append(given)
        return call(given)

    def advance(
        self, call: Recur, arguments: dict[str, Any], inputs: Sequence[str], axis: int
    ) -> tuple[mx.array, mx.array]:
        """A recurrence, with the names of its inputs over the sequence and their sequence axis."""
        outputs, state = call(**arguments)
        self.recurrences.append(Recurrence(call, arguments, tuple(inputs), axis, state))
        return outputs, state

    def states_after(self, caches: Sequence[Any], tokens: int, of: int) -> list[Any] | None:
        """The entries of mlx-lm's recurrent caches after the first `tokens` of the recorded pass's
        `of`, a list for each cache; None if not everything was recorded. `caches` are as the pass
        left them.
        """
        convolved = iter(self.convolved)
        found = []
        for cache in caches:
            states = []
            for entry in getattr(cache, "cache", [None]):
                recurrence = next((one for one in self.recurrences if one.state is entry), None)
                if recurrence is not None:
                    states.append(recurrence.state_after(tokens))
                    continue
                given = next(convolved, None)
                if given is None or entry is None or entry.ndim != 3:
                    return None
                kept = entry.shape[1]
                if given.shape != (entry.shape[0], of + kept, entry.shape[2]):
                    return None
                states.append(mx.contiguous(given[:, tokens : tokens + kept]))
            found.append(states)
        return found if next(convolved, None) is None else None

    def is_right(self, caches: Sequence[Any], of: int) -> bool:
        """Whether repeating all tokens gives the states that the forward pass left; waits for
        it."""
        repeated = self.states_after(caches, of, of)
        return repeated is not None and all(
            bool(mx.allclose(own, entry, rtol=1e-3, atol=1e-3))
            for cache, states in zip(caches, repeated, strict=True)
            for own, entry in zip(states, cache.cache, strict=True)
        )


@contextmanager
def record(recording: Recording | None) -> Generator[None, None, None]:
    """Records the forward passes that this thread builds in this context; None records nothing."""
    before, _active.recording = getattr(_active, "recording", None), recording
    try:
        yield
    finally:
        _active.recording = before


def make_recordable(network: nn.Module) -> bool:
    """Lets `record` see the recurrent layers of a network from mlx-lm; whether there are any.

    Replaces its convolutions, and functions in mlx-lm's modules for the whole process, by ones that
    compute the same and record their inputs.
    """
    convolutions = [
        (path, _RecordedConv1d(layer))
        for path, layer in network.named_modules()
        if type(layer) is nn.Conv1d
    ]
    network.update_modules(tree_unflatten(convolutions))
    found = bool(convolutions)
    for layer in network.modules():
        module = sys.modules.get(type(layer).__module__)  # that of a model's own code may be absent
        for name in _RECURRENCES.keys() & (vars(module) if module else {}).keys():
            found, call = True, getattr(module, name)
            if not hasattr(call, "__wrapped__"):
                setattr(module, name, _recorded(call, *_RECURRENCES[name]))
    return found


class _RecordedConv1d(nn.Conv1d):  # type: ignore[misc]
    def __init__(self, original: nn.Conv1d) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(vars(original))
        dict.update(self, original)

    def __call__(self, x: mx.array) -> mx.array:
        recorder: Recording | None = getattr(_active, "recording", None)
        call = super().__call__
        return cast(mx.array, call(x) if recorder is None else recorder.convolve(call, x))


def _recorded(call: Recur, inputs: tuple[str, ...], axis: int) -> Recur:
    parameters = signature(call)

    @wraps(call)
    def recorded(*arguments: Any, **named: Any) -> tuple[mx.array, mx.array]:
        recorder: Recording | None = getattr(_active, "recording", None)
        bound = parameters.bind(*arguments, **named).arguments if recorder else {}
        if recorder is None or bound.get("mask") is not None:
            return call(*arguments, **named)
        return recorder.advance(call, bound, inputs, axis)

    return recorded
