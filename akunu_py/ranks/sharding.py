"""This rank's share of a network: a part of every layer, or some of the layers.

mlx-lm's models split themselves; this module asks them to, and explains failures in a sentence.
"""

from os import SEEK_END
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import mlx.core as mx
from mlx import nn

from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.errors import ModelLoadError
from akunu_py.ranks.group import Ranks

_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096


def take_share(network: nn.Module, config: dict[str, Any], ranks: Ranks, *, pipeline: bool) -> None:
    """Drops what other ranks compute from a network whose weights have not been read, and reads the
    rest. With `pipeline`, ranks divide the list of layers instead of each layer. Raises a
    `ModelLoadError` if the network cannot be split.
    """
    stack = getattr(network, "model", None) or getattr(network, "language_model", None)
    stack = getattr(stack, "model", None) or stack
    can_shard, can_pipeline = hasattr(network, "shard"), hasattr(stack, "pipeline")
    if not (can_pipeline if pipeline else can_shard):
        remedy = "no other way of splitting works either."
        if pipeline and can_shard:
            remedy = "omit --pipeline, to split each layer."
        if not pipeline and can_pipeline:
            remedy = "add --pipeline, to split the list of its layers."
        raise ModelLoadError(
            f"mlx-lm's {config.get('model_type')} cannot be "
            f"{'pipelined' if pipeline else 'sharded'}: {remedy}"
        )
    try:
        if pipeline:
            stack.pipeline(ranks.group)  # type: ignore[union-attr]
        else:
            _check_heads(config.get("text_config") or config, ranks.size)
            network.shard(ranks.group)
        # Building a forward pass, without computing it, fails if a part has no whole heads.
        network(mx.array([[0, 0]]), cache=make_kv_cache(network, 2).layers)
    except Exception as error:  # whatever a network raises about shapes
        raise ModelLoadError(
            f"This model cannot be split among {ranks.size} ranks; try another number, such as one "
            f"that divides its heads ({' '.join(str(error).split())[:200].rstrip('.')})."
        ) from error
    mx.eval(network.parameters())
    cache = make_kv_cache(network, 1)
    ranks.check_same(
        repr((cache.has_states, cache.needs_checkpoints, cache.can_rollback)),
        "Each rank must have layers of every kind; try fewer ranks, or omit --pipeline.",
    )


def sampled_weights(folder: Path) -> int:
    """A checksum of the sizes of a model's weight files and of blocks throughout each file: each
    rank reads only its share, and two models may have the same configuration."""
    checksum = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = file.seek(0, SEEK_END)
            checksum = crc32(f"{path.name} {size}".encode(), checksum)
            for place in range(_SAMPLES):
                file.seek(size * place // _SAMPLES)
                checksum = crc32(file.read(_SAMPLE_BYTES), checksum)
    return checksum


def _check_heads(config: dict[str, Any], size: int) -> None:
    """Refuses numbers of heads where some models would split one head."""
    for name, heads in config.items():
        if name.endswith("heads") and isinstance(heads, int) and heads > 0:
            repeats = "key_value" in name and size % heads == 0  # some models repeat these
            if heads % size and not repeats:
                raise ValueError(f"it has {heads} {name}")
