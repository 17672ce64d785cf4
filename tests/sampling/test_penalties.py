"""Penalties depend on the tokens before each row, for any forwards and rollbacks."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.sample_utils import make_repetition_penalty

from akunu_py.options import Sampling
from akunu_py.sampling.sampler import Sampler

VOCABULARY = 12

FORWARDS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=8)
"""How many rows each has, and how many of them are rolled back."""

PROMPTS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)


def assert_processes(
    sampling: Sampling,
    prompt: list[int],
    forwards: list[tuple[int, int]],
    expected: Callable[[list[int], list[int]], list[float]],
) -> None:
    """Compares processed rows of ones with `expected(all tokens, generated tokens)`."""
    sampler = Sampler(sampling, prompt)
    text = list(prompt)
    draw = np.random.default_rng(len(prompt))
    for rows, taken_back in forwards:
        # The first input is the last known token; the others are draft tokens.
        inputs = [text[-1], *draw.integers(0, VOCABULARY, rows - 1).tolist()]
        processed = sampler.process_logits(mx.ones((rows, VOCABULARY)), len(text), mx.array(inputs))
        known = text[:-1]
        for row in range(rows):
            before = [*known, *inputs[: row + 1]]
            np.testing.assert_allclose(
                np.array(processed[row]), expected(before, before[len(prompt) :]), atol=1e-5
            )
        accepted = max(1, rows - taken_back)
        text = [*known, *inputs[:accepted], int(draw.integers(VOCABULARY))]


@given(forwards=FORWARDS, size=st.integers(1, 9), prompt=PROMPTS)
@settings(max_examples=40)
def test_repetition_counts_in_the_last_few_tokens(
    forwards: list[tuple[int, int]], size: int, prompt: list[int]
) -> None:
    def expected(before: list[int], _: list[int]) -> list[float]:
        return [0.5 if token in before[-size:] else 1.0 for token in range(VOCABULARY)]

    sampling = Sampling(repetition_penalty=2.0, repetition_context_size=size)
    assert_processes(sampling, prompt, forwards, expected)


@given(
    forwards=FORWARDS,
    prompt=PROMPTS,
    presence=st.sampled_from([0.0, 0.75, -1.0]),
    frequency=st.sampled_from([0.0, 0.5, -0.25]),
)
@settings(max_examples=40)
def test_presence_and_frequency_count_in_what_was_generated(
    forwards: list[tuple[int, int]], prompt: list[int], presence: float, frequency: float
) -> None:
    def expected(_: list[int], generated: list[int]) -> list[float]:
        counts = [generated.count(token) for token in range(VOCABULARY)]
        return [1 - frequency * count - presence * (count > 0) for count in counts]

    sampling = Sampling(presence_penalty=presence, frequency_penalty=frequency)
    assert_processes(sampling, prompt, forwards, expected)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_repetition_follows_mlx_lms_rule_to_the_bit(dtype: mx.Dtype) -> None:
    rows, size, prompt = 33, 20, list(range(7))
    logits = (mx.random.normal((rows, VOCABULARY), key=mx.random.key(1)) * 9).astype(dtype)
    inputs = [6, *np.random.default_rng(2).integers(0, VOCABULARY, rows - 1).tolist()]
    penalise: Any = make_repetition_penalty(1.3, size)
    rule = [
        penalise(mx.array([*prompt, *inputs[1 : row + 1]]), logits[row : row + 1] + 0)
        for row in range(rows)
    ]
    sampler = Sampler(Sampling(repetition_penalty=1.3, repetition_context_size=size), prompt)
    assert mx.array_equal(
        sampler.process_logits(logits, len(prompt), mx.array(inputs)), mx.concatenate(rule)
    )
