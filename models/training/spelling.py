"""Fits the values and outputs of two heads, so that they write the token they look at.

    python -m models.training.spelling --work FOLDER

A head that looks at the right token is of no use while its values do not tell the token, and
values learn that slowly from nothing. Here least squares finds them, for the layer with two heads
that look for the token to write (`model.guided_heads`). Its values become the linear function of
the layer's input that tells tokens apart best, its outputs the directions that make those tokens
likely. The folder has shards and a checkpoint of `models.training.start`, which is changed.
"""

# mypy: allow-untyped-decorators
# PyTorch is not installed where types are checked, so its classes are unknown there.
from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from models.training.copies import SOURCE
from models.training.examples import Shard
from models.training.model import HEAD_DIM, Body, Llama, Shape, visible_tokens

EXAMPLES, LONGEST = 600, 1000
LOUDNESS = 0.25
"""How large what the heads write is at first, of the stream they write to."""
_RIDGE = 1e-3


def spell(given: Tensor, tokens: Tensor, embedding: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """The values and the outputs of two heads that write the token they look at.

    Args:
        given: what the layer's heads read, `[count, hidden]`.
        tokens: which token stands there, `[count]`.
        embedding: the output matrix, `[vocabulary, hidden]`.
        gain: the weight of the last norm, `[hidden]`.

    Returns:
        `[2 * HEAD_DIM, hidden]` and `[hidden, 2 * HEAD_DIM]`; what is written has unit mean square.
    """
    centred = embedding - embedding.mean(0)
    spread, axes = torch.linalg.eigh(centred.T @ centred / len(centred))
    whiten = axes * (spread + _RIDGE * spread.max()).rsqrt() @ axes.T
    wanted = functional.normalize(centred @ whiten, dim=1)[tokens]
    counts = torch.bincount(tokens, minlength=len(embedding)).clamp_min(1)
    rare = counts[tokens].rsqrt()[:, None]  # a rare token counts for more than its share
    weighted = given * rare
    gram = weighted.T @ weighted
    gram += _RIDGE * gram.trace() / len(gram) * torch.eye(len(gram))
    solved = torch.linalg.solve(gram, weighted.T @ (wanted * rare))
    _, _, kept = torch.linalg.svd(weighted @ solved, full_matrices=False)
    kept = kept[: 2 * HEAD_DIM]
    values, outputs = kept @ solved.T, (whiten @ kept.T) / gain[:, None]
    loudness = (given @ values.T @ outputs.T).square().mean().sqrt()
    balance = (values.norm() * loudness / outputs.norm()).sqrt()  # both matrices of one size
    return values / balance, outputs * balance / loudness


@torch.no_grad()
def fit(model: Llama, shard: Shard) -> float:
    """Make the heads spell, in place; returns how often the examples' tokens are spelled right."""
    body = model.model
    layer, heads = _spelling_layer(body)
    streams, tokens = [], []
    for index in range(0, len(shard), max(1, len(shard) // EXAMPLES)):
        row = torch.from_numpy(shard.example(index)[0][:LONGEST].astype("int64"))
        stream = body.embed_tokens(row[None])
        rotation = body.rotary(torch.arange(len(row))[None])
        visible = visible_tokens(torch.zeros_like(row)[None])
        for before in body.layers[:layer]:
            stream = before(stream, rotation, visible)
        streams.append(stream[0])
        tokens.append(row)
    stream, seen = torch.cat(streams), torch.cat(tokens)
    given = body.layers[layer].input_layernorm(stream)
    gain, embedding = body.norm.weight, body.embed_tokens.weight
    values, outputs = spell(given, seen, embedding, gain)
    loudness = (LOUDNESS * stream.square().mean().sqrt()).sqrt()
    attention = body.layers[layer].self_attn
    for index, head in enumerate(heads):
        own = slice(index * HEAD_DIM, (index + 1) * HEAD_DIM)
        attention.v_proj.weight[own] = values[own] * loudness
        columns = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        attention.o_proj.weight[:, columns] = outputs[:, own] * loudness
    said = functional.linear(given @ values.T @ outputs.T * gain, embedding).argmax(-1)
    return float((said == seen).float().mean())


def _spelling_layer(body: Body) -> tuple[int, list[int]]:
    """The layer in which two heads look for the token to write, and the two."""
    layers = [guided.layer for guided in body.guided if guided.target == SOURCE]
    layer = next(layer for layer in layers if layers.count(layer) == 2)
    return layer, [g.head for g in body.guided if g.layer == layer and g.target == SOURCE]


def main() -> None:
    """Change the checkpoint and say how well its heads spell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    path = work / "checkpoint.pt"
    saved = torch.load(path, weights_only=True, map_location="cpu")
    model = Llama(Shape(**saved["shape"]))
    model.load_state_dict(saved["model"])
    share = fit(model, Shard.load(work / "shards" / "edits.npz"))
    torch.save(saved | {"model": model.state_dict()}, path)
    print(f"spelled right: {share:.3f}")


if __name__ == "__main__":
    main()
