"""How many held-out answers the model gets exactly right, without generating any.

The greedy answer equals the expected one exactly when every expected token is the most likely
one after the tokens before it, so one forward pass of the whole example decides it.
"""

# mypy: allow-untyped-decorators
# PyTorch is not installed where types are checked, so its classes are unknown there.
from __future__ import annotations

import torch

from models.training.examples import Shard
from models.training.model import Llama


@torch.no_grad()
def exact_answers(model: Llama, probe: Shard) -> dict[str, float]:
    """The share of examples with every learned token right, and of learned tokens right."""
    exact = right = count = 0
    for index in range(len(probe)):
        tokens, learned = probe.example(index)
        row = torch.from_numpy(tokens.astype("int64"))[None]
        wanted = torch.from_numpy(learned[1:])[None]
        hits = model(row[:, :-1], wanted).argmax(dim=-1) == row[:, 1:][wanted]
        exact += int(hits.all())
        right += int(hits.sum())
        count += hits.numel()
    return {"exact": round(exact / len(probe), 4), "tokens_right": round(right / count, 4)}
