"""Guided attention: while training, a few heads are shown which token an answer is copying.

Copying takes heads that look at the token to be repeated. Left to themselves they form late in
a small training budget; told where to look, by a loss on their attention, they form within a
few hundred steps (Chen et al. 2016, "Guided alignment training for topic-aware neural machine
translation", did so for translation). The trained model is an ordinary Llama.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.training.copies import NOT_COPIED

WEIGHT = 0.5


def guidance_loss(log_attention: Tensor, sources: Tensor) -> Tensor:
    """Minus the log of the attention paid to the right token, averaged over what is copied.

    Args:
        log_attention: `[rows, heads, length, length]`, from each position to the earlier ones.
        sources: `[rows, length]`, the position of the token that should come out at each
            position, or `NOT_COPIED`.
    """
    rows, positions = torch.nonzero(sources != NOT_COPIED, as_tuple=True)
    if not len(rows):
        return log_attention.new_zeros(())
    return -log_attention[rows, :, positions, sources[rows, positions]].mean()
