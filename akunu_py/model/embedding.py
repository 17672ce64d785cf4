"""Computes one vector for a whole text, instead of the next token.

Short texts share forward passes: they are padded at the end, which no earlier token attends to. A
long text is computed in chunks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from akunu_py.errors import ContextOverflowError, InvalidRequestError
from akunu_py.machine.backend import Backend
from akunu_py.machine.device_memory import free_device_bytes
from akunu_py.model.head import Body, output_of
from akunu_py.model.target_model import TargetModel

Ids = Sequence[int]

_SHARES: Final[Mapping[str, Callable[[mx.array, mx.array], mx.array]]] = {
    "lasttoken": lambda places, lengths: places == lengths - 1,
    "mean": lambda places, lengths: (places < lengths) / lengths,
    "cls": lambda places, _: places == 0,
}
"""The weight of the state at each place in the vector of a text of this length."""


def compute_vectors(
    model: TargetModel, backend: Backend, texts: Sequence[Ids], pooling: str, predicted: Ids = ()
) -> Iterator[dict[int, Any]]:
    """Pools the states of texts after the last norm. After each forward pass, yields the vectors
    that it completed, by the index of the text. With `predicted`, these are the logits of those
    tokens. Raises a `ContextOverflowError` if a text does not fit into the free memory."""
    body = None if model.ranks else Body.of(model.network)
    if body is None:
        raise InvalidRequestError(
            f"{model.name} is split over processes, or its parts are unknown; choose another model."
        )
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    longest = len(texts[order[0]])
    if (needed := model.cache_bytes(longest)) > (free := free_device_bytes()):
        fits = int(longest * free / needed)
        why = f"A text of {longest:,} tokens does not fit into the free memory; {fits:,} would."
        raise ContextOverflowError(why, tokens=longest, limit=fits)
    step = backend.prefill_step(model.shape, longest, cancellable=True)
    while order:
        width = len(texts[order[0]])
        group, order = order[: max(1, step // width)], order[max(1, step // width) :]
        padded = mx.array([[*texts[one], *[0] * (width - len(texts[one]))] for one in group])
        lengths = mx.array([[len(texts[one])] for one in group])
        caches, pooled = make_prompt_cache(model.network), mx.array(0.0)
        for start in range(0, width, step):
            if start:
                yield {}
            tokens = padded[:, start : start + step]
            states = body.module(tokens, cache=caches)
            shares = _SHARES[pooling](mx.arange(start, start + tokens.shape[1]), lengths)
            pooled = pooled + mx.sum(states.astype(mx.float32) * shares[..., None], axis=1)
            mx.eval(pooled, [cache.state for cache in caches])
        if predicted:
            logits = output_of(model.network, body)(pooled[None].astype(states.dtype))
            pooled = logits[0][:, mx.array(list(predicted))].astype(mx.float32)
        yield dict(zip(group, np.array(pooled), strict=True))
