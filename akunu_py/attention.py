"""What happens at the attentions of a network from mlx-lm: their caches decide.

mlx-lm's models call one function for every attention and name the layer's cache. A cache that has
a method `attend` is asked instead.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import mlx.core as mx
from mlx import nn

_NAME: Final = "scaled_dot_product_attention"


def intercept_attention(network: nn.Module) -> None:
    """Lets caches see the attentions of a network from mlx-lm.

    The function is replaced in mlx-lm's modules for the whole process, by one that also looks at
    the cache.
    """
    for layer in network.modules():
        module = sys.modules.get(type(layer).__module__)  # that of a model's own code may be absent
        attend = getattr(module, _NAME, None)
        if attend is not None and not hasattr(attend, "__wrapped__"):
            setattr(module, _NAME, _intercepted(attend))


def _intercepted(attend: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """The same function, which lets a cache answer that has `attend`."""

    @wraps(attend)
    def intercepted(
        queries: mx.array, keys: Any, values: Any, cache: Any, *args: Any, **named: Any
    ) -> mx.array:
        own: Callable[..., mx.array] | None = getattr(cache, "attend", None)
        if own is None:
            return attend(queries, keys, values, cache, *args, **named)
        return own(intercepted, (queries, keys, values), *args, **named)

    return intercepted
