"""Guided attention: while training, a few heads are shown what to look at.

An edit is copying with decisions. One head after another learns to look at the beginning of its
line, at the place in the given code that the answer has come to, at what comes after it, from the
end of what the request quotes to where that begins and the other way round, and at the token to be
written next (`model.guided_heads`). Left to themselves such heads form late in a small training
budget; told where to look, by a loss on their attention, they form within a few hundred steps (Chen
et al. 2016, "Guided alignment training for topic-aware neural machine translation", did so for
translation). The trained model is an ordinary Llama.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.training.copies import NOWHERE

WEIGHT = 0.25


def guidance_loss(log_attention: Tensor, targets: Tensor) -> Tensor:
    """Minus the log of the attention paid to the right token, averaged, summed over the heads.

    Args:
        log_attention: `[heads, rows, length, length]`, from each position to the earlier ones.
        targets: `[heads, rows, length]`, the position that the head should look at, or
            `NOWHERE`.
    """
    losses = []
    for attention, target in zip(log_attention, targets, strict=True):
        rows, positions = torch.nonzero(target != NOWHERE, as_tuple=True)
        if len(rows):
            losses.append(-attention[rows, positions, target[rows, positions]].mean())
    return torch.stack(losses).sum() if losses else log_attention.new_zeros(())
