"""Where wrong answers begin, and what each part of the model had to do with it.

    python -m models.training.diagnose --work FOLDER [--shard probe] [--gap POSITIONS]

The folder has a checkpoint (of training, or made of a finished model by `models.training.start`)
and shards. Of the answers in one shard it prints how many are right and whether the others first go
wrong where they copy or where they decide; how often each guided head looks where it should, and
how often at those first wrong tokens; and for each layer how well the stream in front of it tells
tokens apart, and what its attention and its feed-forward add to it where answers copy. A gap in
front of every answer shows whether it could copy the same over a longer distance.
"""

# mypy: allow-untyped-decorators
# PyTorch is not installed where types are checked, so its classes are unknown there.
from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.training import tokenizer as tokenizers
from models.training.copies import NOWHERE, align, line_begins, runs
from models.training.examples import Shard
from models.training.model import Llama, Shape, visible_tokens
from models.training.train import FENCE, line_breaks

TARGET_NAMES = ("place", "source", "ahead", "start", "end", "after", "line")
_RIDGE = 1e-3


@dataclass(frozen=True)
class Trace:
    """One pass over `length` tokens.

    `streams` has `[length, hidden]` in front of each layer and behind the last; `added` what the
    attention and the feed-forward of each add to it; `looks` is `[guided, length]`, the position
    that each guided head attends to most.
    """

    streams: list[Tensor]
    added: list[Tensor]
    logits: Tensor
    looks: Tensor


@torch.no_grad()
def trace(model: Llama, row: Tensor, positions: Tensor) -> Trace:
    """Pass the token ids `[length]` at `positions` `[length]` through the model."""
    body = model.model
    stream = body.embed_tokens(row[None])
    rotation = body.rotary(positions[None])
    visible = visible_tokens(torch.zeros_like(row)[None])
    streams, added, looks = [stream[0]], [], []
    for index, layer in enumerate(body.layers):
        normed = layer.input_layernorm(stream)
        for guided in body.guided:
            if guided.layer == index:
                looks.append(layer.self_attn.looks_at(normed, rotation, visible, guided.head)[0])
        attention = layer.self_attn(normed, rotation, visible)
        forward = layer.mlp(layer.post_attention_layernorm(stream + attention))
        stream = stream + attention + forward
        streams.append(stream[0])
        added += [attention[0], forward[0]]
    logits = functional.linear(body.norm(stream[0]), body.embed_tokens.weight)
    return Trace(streams, added, logits, torch.stack(looks))


def favour(model: Llama, traced: Trace, right: Tensor, at: Tensor) -> list[float]:
    """Direct logit attribution: how far each part puts the `right` token ahead of its best rival.

    Returns:
        The median over the positions `at`, for each of `Trace.added`.
    """
    logits = traced.logits[at].scatter(1, right[:, None], -torch.inf)
    embedding, norm = model.model.embed_tokens.weight, model.model.norm
    direction = (embedding[right] - embedding[logits.argmax(-1)]) * norm.weight
    scale = traced.streams[-1][at].square().mean(-1, keepdim=True).sqrt()
    return [float(((direction / scale) * part[at]).sum(-1).median()) for part in traced.added]


def told_apart(streams: Tensor, tokens: Tensor, embedding: Tensor) -> float:
    """How often a linear function of the stream names the token that stands there.

    It is fitted to these `tokens` themselves, so the share is an upper bound.
    """
    given = functional.normalize(streams, dim=1)
    centred = embedding - embedding.mean(0)
    spread, axes = torch.linalg.eigh(centred.T @ centred / len(centred))
    names = functional.normalize(centred @ axes * (spread + _RIDGE * spread.max()).rsqrt(), dim=1)
    rare = torch.bincount(tokens, minlength=len(names))[tokens].rsqrt()[:, None]
    weighted = given * rare
    gram = weighted.T @ weighted
    gram += 1e-6 * gram.trace() * torch.eye(len(gram))
    said = given @ torch.linalg.solve(gram, weighted.T @ (names[tokens] * rare)) @ names.T
    return float((said.argmax(-1) == tokens).float().mean())


def _share(hits: list[bool]) -> str:
    return f"{np.mean(hits):.3f}" if hits else "-"


@torch.no_grad()
def report(
    model: Llama, shard: Shard, *, fence: int, breaks: np.ndarray, gap: int = 0
) -> list[str]:
    """The lines to print; code begins with the token `fence`, and `breaks` end lines."""
    begins: list[str] = []
    looks: dict[int, list[bool]] = defaultdict(list)
    looks_there: dict[int, list[bool]] = defaultdict(list)
    traces: list[Trace] = []
    tokens: list[Tensor] = []
    favours: list[list[float]] = []
    for ids, learned in shard.examples():
        row = torch.from_numpy(ids.astype("int64"))
        alignment = align(ids, learned, fence=fence)
        gaps = np.zeros(len(ids), np.int64)
        gaps[[begin for begin, _ in runs(learned)]] = gap
        positions = torch.from_numpy(np.arange(len(ids)) + gaps.cumsum())
        traced = trace(model, row[:-1], positions[:-1])
        answer = np.flatnonzero(learned[1:])
        wrong = answer[(traced.logits.argmax(-1) != row[1:]).numpy()[answer]][:1]
        turns = alignment.turns[1:]
        begins += [("deciding" if turns[at] else "copying") for at in wrong] or ["right"]
        targets = (*alignment.targets, line_begins(ids, breaks))
        for number, guided in enumerate(model.model.guided):
            target = targets[guided.target][1:]
            hits = traced.looks[number].numpy() == target
            looks[number] += hits[target != NOWHERE].tolist()
            looks_there[number] += [bool(hits[at]) for at in wrong if target[at] != NOWHERE]
        copied = torch.from_numpy(answer[~turns[answer]])
        if len(copied):
            favours.append(favour(model, traced, row[1:][copied], copied))
        traces.append(traced)
        tokens.append(row[:-1])
    lines = [f"{kind:9} {begins.count(kind):4}" for kind in ("right", "copying", "deciding")]
    for number, guided in enumerate(model.model.guided):
        place = f"layer {guided.layer} head {guided.head} {TARGET_NAMES[guided.target]}"
        usual, there = (_share(hits) for hits in (looks[number], looks_there[number]))
        lines.append(f"{place}: looks right {usual}, at first wrong tokens {there}")
    gained = np.median(favours, axis=0)
    for index in range(len(model.model.layers)):
        stream = torch.cat([traced.streams[index] for traced in traces])
        apart = told_apart(stream, torch.cat(tokens), model.model.embed_tokens.weight)
        parts = []
        for offset, name in enumerate(("attention", "feed-forward")):
            added = torch.cat([traced.added[2 * index + offset] for traced in traces])
            size = float(added.square().mean(-1).sqrt().median())
            parts.append(f"{name} {size:.1f} ({gained[2 * index + offset]:+.1f})")
        size = float(stream.square().mean(-1).sqrt().median())
        lines.append(
            f"layer {index}: stream {size:.1f}, told apart {apart:.3f}; {', '.join(parts)}"
        )
    return lines


def main() -> None:
    """Print the report on a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--shard", default="probe")
    parser.add_argument("--gap", type=int, default=0, help="positions in front of every answer")
    options = parser.parse_args()
    saved = torch.load(options.work / "checkpoint.pt", weights_only=True, map_location="cpu")
    model = Llama(Shape(**saved["shape"]))
    model.load_state_dict(saved["model"])
    processor = tokenizers.load(options.work / "tokenizer")
    fence, breaks = processor.encode(FENCE)[0], line_breaks(processor)
    shard = Shard.load(options.work / "shards" / f"{options.shard}.npz")
    widest = max(len(ids) + options.gap * sum(1 for _ in runs(on)) for ids, on in shard.examples())
    if options.gap < 0 or widest > model.shape.max_positions:
        parser.error(f"with this gap an example leaves the {model.shape.max_positions} positions")
    print("\n".join(report(model, shard, fence=fence, breaks=breaks, gap=options.gap)))


if __name__ == "__main__":
    main()
