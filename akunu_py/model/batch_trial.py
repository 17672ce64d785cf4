"""Tries whether sequences can share a model's forward passes.

mlx-lm's models do not say, and their Python code may do anything with a cache.
"""

from collections.abc import Sequence
from typing import Final

import mlx.core as mx

from akunu_py.model.target_model import TargetModel

_TRIED: Final = ((5, 1), (3, 3), (9, 2))
"""The sequences of the trial pass: tokens before it, and tokens in it."""

_TOLERANCE: Final = 1e-3
_COARSE_TOLERANCE: Final = 0.05
"""How far logits may be from those of separate forward passes, relative to their spread. Rounding
to 16 bits causes one percent, a wrong position or mask more than ten."""


def why_not_batched(model: TargetModel) -> str | None:
    """A line for the user if sequences cannot share a model's forward passes; None if they can.

    Two passes over the last tokens of three short sequences are compared with separate ones: one
    with several tokens of some sequences, and one with a token of each and joined caches.
    """
    if kinds := model.make_cache(1).unknown_kinds:
        return (
            "Requests are answered in turn, not in one batch: this model keeps its context in "
            f"{' and '.join(kinds)}."
        )
    for pads in (False, True):
        model.pads_batches = pads
        if _is_right(model):
            return None
    return (
        "Requests are answered in turn, not in one batch: this model's layers cannot serve "
        "several sequences at once."
    )


def _is_right(model: TargetModel) -> bool:
    caches = [model.make_cache(sum(sizes)) for sizes in _TRIED]
    counts = [count for _, count in _TRIED]
    ones = [1] * len(caches)
    parts, separate, steps = [], [], []
    for step, (before, count), cache in zip((3, 4, 5), _TRIED, caches, strict=True):
        tokens = mx.arange(before + count) * step % model.vocabulary_size
        model.append(tokens[:before], cache)
        cache.mark()
        logits = model.forward(tokens[before:], cache)
        parts.append(tokens[before:])
        separate.append(logits)
        steps.append(logits[-1:])
        mx.eval(logits)
        cache.rollback(before)
        cache.mark()
    try:
        is_right = _are_close(
            model, model.forward_batch(mx.concatenate(parts), caches, counts), separate
        )
        if is_right and (caches[0].can_join or caches[0].has_states):
            missing = [cache.rollback(cache.length - 1) for cache in caches]
            if caches[0].can_join:
                caches[0].join(caches[1:])
            last = mx.concatenate([tokens[-1:] for tokens in parts])
            stepped = model.forward_batch(last, caches, ones)
            is_right = not any(missing) and _are_close(model, stepped, steps)
    except Exception:  # a model's own code may raise anything
        is_right = False
    return is_right


def _are_close(model: TargetModel, together: mx.array, separate: Sequence[mx.array]) -> bool:
    """Whether the logits of a batched forward pass equal those of separate ones up to rounding."""
    found, wanted = together.astype(mx.float32), mx.concatenate(list(separate)).astype(mx.float32)
    error = mx.linalg.norm(found - wanted) / mx.linalg.norm(wanted - wanted.mean())
    tolerance = _COARSE_TOLERANCE if model.is_coarse else _TOLERANCE
    return bool(error.item() < tolerance)  # type: ignore[operator]
