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

from torch import Tensor

from models.training.copies import NOWHERE

WEIGHT = 0.25


def guidance_loss(log_shares: Tensor, targets: Tensor) -> Tensor:
    """Minus the log of the attention paid to the right token, averaged, summed over the heads.

    Args:
        log_shares: `[heads, rows, length]`, of the attention paid to each target.
        targets: `[heads, rows, length]`, the position that the head should look at, or
            `NOWHERE`.
    """
    wanted = targets != NOWHERE
    counts = wanted.sum(dim=(1, 2)).clamp(min=1)
    return -(log_shares.where(wanted, 0.0).sum(dim=(1, 2)) / counts).sum()
