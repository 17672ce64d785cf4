"""Head: the layers that a model has for drafting (MTP, "nextn"), besides its network.

A step takes the model's hidden state of a token and the embedding of the next one, and predicts the
token after that. Its layers are mlx-lm's, in a network of the model's own family with one layer.
This module does not decide what to draft, or when.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any, Final, Self, cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList, RotatingKVCache, make_prompt_cache
from mlx_lm.models.cache import KVCache as GrowingLayerCache

from akunu_py.cache.batched import BatchedCaches
from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.cache.states import parts_of
from akunu_py.errors import ModelLoadError
from akunu_py.model.attention import MOST_APART, has_latent_attention, intercept_attention

_MEBI: Final = 2**20
_EMBEDDINGS: Final = (nn.Embedding, nn.QuantizedEmbedding)


class Body:
    """The part of a network between its ids and its output matrix: embedding, layers, last norm.
    `path` is where it is in the network; the others are the names of its parts.
    """

    def __init__(self, path: str, module: nn.Module, embedding: str, norm: str) -> None:
        self.path = path
        self.module = module
        self.embedding = embedding
        self.norm = norm

    @classmethod
    def of(cls, network: nn.Module) -> Self | None:
        """The body of a network; None if it has no such part."""
        for path, part in network.named_modules():
            if path and isinstance(part.get("layers"), list):
                embeddings = [key for key, own in part.items() if type(own) in _EMBEDDINGS]
                norms = [key for key, own in part.items() if "Norm" in type(own).__name__]
                if len(embeddings) == len(norms) == 1:
                    return cls(path, part, embeddings[0], norms[0])
        return None

    @property
    def num_layers(self) -> int:
        return len(self.module.layers)

    def embed(self, tokens: mx.array) -> mx.array:
        return cast(mx.array, self.module[self.embedding](tokens))


class WatchedNorm(nn.Module):  # type: ignore[misc]
    """The last norm of a network, which stores its input or its output."""

    def __init__(self, original: nn.Module, after_norm: bool) -> None:
        super().__init__()
        dict.update(self, original)  # its weights stay where they are
        self._norm = original.__call__
        self._after_norm = after_norm
        self._states: tuple[mx.array, ...] = ()

    def __call__(self, x: mx.array) -> mx.array:
        normed: mx.array = self._norm(x)
        self._states = (normed if self._after_norm else x,)
        return normed

    def take(self) -> mx.array | None:
        """The states of the last forward pass; None if they were taken."""
        states, self._states = self._states, ()
        return states[0] if states else None


class HeadStep(nn.Module):  # type: ignore[misc]
    """One step: both inputs are normed, joined and projected, and then go through the layers.
    `network` has only these layers; its embedding is replaced, and its last norm if there is none.
    """

    def __init__(
        self,
        network: nn.Module,
        body: Body,
        hidden_size: int,
        *,
        hidden_first: bool,
        passes_normed: bool,
    ) -> None:
        super().__init__()
        norm = body.module[body.norm]
        self.embedding_norm, self.hidden_norm, self.norm = copy(norm), copy(norm), copy(norm)
        self.projection = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.body = body.module
        self.body[body.embedding] = nn.Identity()
        self.body[body.norm] = nn.Identity()
        self._hidden_first = hidden_first
        self._passes_normed = passes_normed
        self._caches = tuple(_with_counter(own) for own in make_prompt_cache(network))

    def make_cache(self) -> list[Any]:
        """The method of this name that mlx-lm's models have."""
        return list(self._caches)

    def __call__(self, embedded: mx.array, hidden: mx.array, caches: Sequence[Any]) -> mx.array:
        """The states of pairs, all `[sequences, pairs, hidden_size]`."""
        parts = [self.embedding_norm(embedded), self.hidden_norm(hidden)]
        joined = mx.concatenate(parts[::-1] if self._hidden_first else parts, axis=-1)
        layers = [*caches, None]  # Nemotron-H looks for a state after them
        states: mx.array = self.body(self.projection(joined), cache=layers)
        return self._normed(states) if self._passes_normed else states

    def predicting(self, states: mx.array) -> mx.array:
        """The states in the form that the output matrix takes."""
        return states if self._passes_normed else self._normed(states)

    def _normed(self, states: mx.array) -> mx.array:
        return cast(mx.array, self.norm(states)) if "norm" in self else states


class Head:
    """A model's head: it guesses the token after the next one, and by chaining, later ones. It uses
    the embedding and output matrix of the network, of which `body` is a part.

    Pair `i` is the model's hidden state of token `i` (after the last norm, if `after_norm`) and the
    token `i + 1`; it has position `i`. It `repeats` if it was trained to continue from its own
    states; if a model has a step for each guess, this is the first of them.
    """

    def __init__(
        self,
        step: HeadStep,
        network: nn.Module,
        body: Body,
        *,
        layout: str,
        after_norm: bool,
        repeats: bool,
    ) -> None:
        self._step = step
        self._body = body
        self._output = output_of(network, body)
        self._layout = layout
        self._is_latent = has_latent_attention(step.body)
        if self._is_latent:
            intercept_attention(step.body)
        self.after_norm = after_norm
        self.repeats = repeats

    @property
    def parameter_bytes(self) -> int:
        return sum(weight.nbytes for _, weight in tree_flatten(self._step.parameters()))

    @property
    def describe(self) -> str:
        layers = len(self._step.body.layers)
        size = f"{self.parameter_bytes / _MEBI:.1f} MiB"
        return f"{self._layout} layout, {layers} layer{'s' * (layers > 1)}, {size}"

    def watch(self) -> WatchedNorm:
        """Lets the network store the hidden states of each forward pass, as this head takes
        them."""
        module, name = self._body.module, self._body.norm
        module[name] = watched = WatchedNorm(module[name], self.after_norm)
        return watched

    def make_cache(self, capacity: int) -> KVCache:
        """An empty cache for `capacity` pairs."""
        return make_kv_cache(self._step, capacity)

    def __call__(self, tokens: mx.array, hidden: mx.array, cache: KVCache) -> mx.array:
        """Appends pairs to the cache: `tokens`, `[rows]`, each the one after its hidden state, of
        the model or the head, `[rows, hidden_size]`. Returns the head's states of them, alike:
        `logits` predicts from them, and the head may continue from them as `hidden`.
        """
        for part in parts_of(cache.layers):
            part.offset = cache.length  # an empty layer did not count missing pairs
        embedded = self._body.embed(tokens)
        if self._is_latent and 1 < tokens.size <= MOST_APART:
            batch = BatchedCaches([cache], [tokens.size], pads=True)
            states = self._step(embedded[:, None], hidden[:, None], batch.layers)[:, 0]
            batch.advance()
            return states
        states = self._step(embedded[None], hidden[None], cache.layers)[0]
        cache.advance(tokens.size)
        return states

    def logits(self, states: mx.array) -> mx.array:
        """The logits `[rows, vocabulary]` of the token after each pair."""
        predicting = self._step.predicting(states)
        if "output" in self._step:
            return cast(mx.array, self._step.output(predicting))
        return cast(mx.array, self._output(predicting[None])[0])


class _Bypass(nn.Module):  # type: ignore[misc]
    """Stands for a network's body, and returns its input as the states."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.__dict__.update(vars(body))
        dict.update(self, body)

    def __call__(self, states: mx.array, *_: Any, **__: Any) -> mx.array:
        return states


def output_of(network: nn.Module, body: Body) -> nn.Module:
    """The computation after a network's body, with the scaling and capping of its family."""
    output = part = copy(network)
    *parents, last = body.path.split(".")
    for name in parents:
        part[name] = copy(part[name])
        part = part[name]
    part[last] = _Bypass(body.module)
    return output


def _with_counter(own: Any) -> Any:
    """A cache like mlx-lm's for a layer; a window keeps all tokens, so that rollbacks are free."""
    if isinstance(own, CacheList):
        return CacheList(*map(_with_counter, own.caches))
    if isinstance(own, GrowingLayerCache | RotatingKVCache):
        return GrowingLayerCache()
    raise ModelLoadError("This head has recurrent layers, which are not supported in heads.")
