"""The CPU's feed-forward block computes what mlx-lm's does."""

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models import llama, qwen2

from akunu_py.model.cpu.linear import FusedFeedForward
from tests.tiny_model import CONFIG

HIDDEN = CONFIG["hidden_size"]


@pytest.mark.parametrize("rows", [1, 60])
def test_a_block_computes_the_same(rows: int) -> None:
    for layer in (
        llama.MLP(llama.ModelArgs.from_dict(CONFIG)),
        qwen2.MLP(HIDDEN, 2 * HIDDEN),
    ):
        assert FusedFeedForward.can_replace(layer)
        own = FusedFeedForward(layer)
        x = 8.0 * mx.random.normal((rows, HIDDEN))
        assert mx.allclose(own(x), layer(x), rtol=1e-4, atol=1e-5)


def test_weights_that_cannot_be_joined_stay_as_they_are() -> None:
    layer = qwen2.MLP(HIDDEN, 2 * HIDDEN)
    nn.quantize(layer, group_size=32)
    assert not FusedFeedForward.can_replace(layer)
    half = qwen2.MLP(HIDDEN, 2 * HIDDEN)
    half.set_dtype(mx.bfloat16)
    assert not FusedFeedForward.can_replace(half)
