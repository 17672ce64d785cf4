"""Sequences that decode together, for the tests of batches and of joined caches."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from random import Random
from typing import Any

import pytest

from akunu_py.decoding.batch import Batch, BatchedTarget
from akunu_py.decoding.target import ModelTarget
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Sampling
from akunu_py.sampling.sampler import Sampler

SMALLEST: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 16, "vocab_size": 64,
    "num_attention_heads": 2, "head_dim": 8,
}  # fmt: skip
"""A model whose forwards take no time."""


@cache
def prompt_of(number: int) -> list[int]:
    draw = Random(number)
    return [draw.randrange(64) for _ in range(1 + 7 * number)]


def members_of(
    model: TargetModel, batch: Batch, stack: ExitStack, count: int
) -> list[BatchedTarget]:
    """Some greedy sequences that decode together."""
    found = []
    for number in range(count):
        held = model.make_cache(128)
        model.prefill(prompt_of(number)[:-1], held)
        target = ModelTarget(model, held, Sampler(Sampling()), 8)
        found.append(stack.enter_context(batch.member(target)))
    return found


@contextmanager
def joining(after: int) -> Iterator[None]:
    """Caches are joined after so many steps together, whatever their lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("akunu_py.decoding.batch._JOIN_FROM", 2)
        patch.setattr("akunu_py.decoding.batch._JOIN_AFTER", after)
        patch.setattr("akunu_py.cache.batched._MOST_PADDING", 99.0)
        yield
