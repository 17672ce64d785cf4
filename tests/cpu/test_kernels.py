"""The CPU's exponential is as exact as MLX's."""

import mlx.core as mx
import numpy as np
import pytest

from akunu_py.model.cpu.kernels import exponential_of

exponential = exponential_of(lambda x: x)


@pytest.mark.parametrize("count", [7, 20_000])
def test_the_exponential_is_as_exact_as_mlxs(count: int) -> None:
    x = mx.linspace(-80.0, 80.0, count)
    right = np.exp(np.array(x).astype(np.float64))
    for computed in (mx.exp(x), exponential(x)):
        assert np.abs(np.array(computed) / right - 1).max() < 8e-6
    near = mx.linspace(-1.0, 1.0, count)
    right = np.exp(np.array(near).astype(np.float64))
    assert np.abs(np.array(exponential(near)) / right - 1).max() < 5e-7


def test_results_beyond_float32_are_clamped() -> None:
    x = mx.array([-mx.inf, -1000.0, 0.0, 1000.0] * 1000)
    low, lower, one, high = np.array(exponential(x)[:4])
    assert 0 <= low < 2e-38
    assert 0 <= lower < 2e-38
    assert one == 1.0
    assert 1e38 < high < float("inf")


def test_the_argument_may_be_a_function() -> None:
    rows, peak = mx.random.normal((100, 64)), mx.array([[2.0]])
    shifted = exponential_of(lambda x, peak: (x - peak) * 0.5)
    assert mx.allclose(shifted(rows, peak), mx.exp((rows - peak) * 0.5), rtol=1e-5)
