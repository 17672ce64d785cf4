"""Adapters that mlx-lm trained: LoRA or DoRA layers, or all weights."""

from pathlib import Path

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_unflatten
from mlx_lm import utils

from akunu_py.errors import ModelLoadError


def add_adapter(network: nn.Module, folder: Path) -> None:
    """Adds an adapter to the network that it was trained on, in place.

    Raises:
        ModelLoadError: if the adapter cannot be read, or does not fit.
    """
    try:
        utils.load_adapters(network, str(folder))
    except Exception as error:  # mlx-lm raises nearly anything on a broken adapter
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ModelLoadError(
            f"The adapter in {folder} does not fit the model, or is damaged ({reason[:200]})."
        ) from error
    network.eval()  # without dropout
    mx.eval(network.parameters())


def merge_adapter(network: nn.Module) -> None:
    """Adds the adapter's layers to the dense weights that they change, in place.

    They cost nothing then. Not for quantized weights: quantizing the sum would change the answers.
    """
    layers = [
        (path, layer.fuse(dequantize=True))
        for path, layer in network.named_modules()
        if hasattr(layer, "fuse")  # mlx-lm's adapters have it, and only they
    ]
    network.update_modules(tree_unflatten(layers))
    mx.eval(network.parameters())
