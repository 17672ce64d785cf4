"""Muon for the matrices, AdamW for the rest, behind one `step`.

Muon (Jordan 2024) orthogonalises each matrix's momentum with a Newton-Schulz iteration; on a
model this small it reaches a given loss in roughly two thirds of AdamW's steps. Matrices of
the same shape are stacked, so a step is a few batched products.
"""

# mypy: allow-subclassing-any, allow-untyped-decorators
# PyTorch is not installed where types are checked, so its classes are unknown there.
from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(stack: Tensor, *, steps: int = 4) -> Tensor:
    """Push every singular value of each matrix in `stack` `[count, rows, columns]` towards 1."""
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    tall = stack.shape[-2] > stack.shape[-1]
    matrix = stack.mT if tall else stack
    matrix = matrix / (matrix.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = matrix @ matrix.mT
        matrix = a * matrix + (b * gram + c * gram @ gram) @ matrix
    return matrix.mT if tall else matrix


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; one parameter group for each shape of matrix.

    Matrices without a gradient stay as they are."""

    def __init__(self, matrices: list[Tensor], *, lr: float, momentum: float = 0.95) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            by_shape[matrix.shape].append(matrix)
        groups = [{"params": same} for same in by_shape.values()]
        super().__init__(groups, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            gradients = torch.stack([parameter.grad for parameter in parameters])
            state = self.state[parameters[0]]
            if len(state.get("velocity", ())) != len(parameters):
                state["velocity"] = torch.zeros_like(gradients)
            velocity = state["velocity"].lerp_(gradients, 1 - group["momentum"])
            update = orthogonalise(gradients.lerp(velocity, group["momentum"]))
            rows, columns = parameters[0].shape
            scale = group["lr"] * max(1.0, rows / columns) ** 0.5
            # One call for all: on a GPU, each call costs more than its sums.
            torch._foreach_add_(parameters, update.to(gradients.dtype).unbind(), alpha=-scale)


class Optimizer:
    """Both optimizers; learning rates are given for the plateau and scaled by a schedule."""

    def __init__(
        self, model: nn.Module, *, matrix_lr: float = 0.02, vector_lr: float = 3e-3
    ) -> None:
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        self._muon = Muon(matrices, lr=matrix_lr)
        self._adam = torch.optim.AdamW(
            others, lr=vector_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self._plateau = {id(self._muon): matrix_lr, id(self._adam): vector_lr}

    def step(self, scale: float, *, vectors: float = 1.0) -> None:
        """Apply the gradients at `scale` times the plateau rates, then clear them.

        All but the matrices change at `vectors` of that."""
        for optimizer, share in ((self._muon, 1.0), (self._adam, vectors)):
            for group in optimizer.param_groups:
                group["lr"] = self._plateau[id(optimizer)] * scale * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self._muon.state_dict(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._muon.load_state_dict(state["muon"])
        self._adam.load_state_dict(state["adam"])
