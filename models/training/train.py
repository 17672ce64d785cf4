"""The training loop: batches in, checkpoints and a log of losses out; it resumes at the last one.

The work folder has `shards/`; the loop writes `checkpoint.pt` and `log.jsonl` (one JSON object a
line) there.
"""

# mypy: allow-untyped-decorators, allow-subclassing-any
# PyTorch is not installed where types are checked, so its classes are unknown there.
import ctypes
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.training.batches import EDITS, Batch, Batches, Vocabulary
from models.training.curriculum import Stage, rate_scale, stage_at, total_steps
from models.training.examples import Shard, load_tokenizer
from models.training.model import Llama, Shape, guidance_loss, visible_blocks

SEED = 20
CLIP = 1.0
GUIDANCE = 0.25  # the weight of the guided attention beside the loss of tokens
MATRIX_RATE, VECTOR_RATE = 0.02, 3e-3  # on the plateau
LOG_EVERY, CHECKPOINT_EVERY = 20, 100  # steps; the second a multiple of the first
_M_MMAP_MAX, _M_TRIM_THRESHOLD = -4, -1  # of `mallopt` in glibc's malloc.h
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mixed_precision() -> torch.autocast:
    """Products in bfloat16 where they are faster than others."""
    faster = DEVICE.type == "cuda" or _bfloat16_is_faster()
    return torch.autocast(DEVICE.type, torch.bfloat16, enabled=faster)


@cache
def _bfloat16_is_faster() -> bool:
    """Whether a product of bfloat16 takes less time here than one of float32.

    A step takes half the time then; but some processors that have bfloat16 are slower in it.
    """

    def seconds(kind: torch.dtype) -> float:
        matrix, times = torch.ones(768, 768, dtype=kind), []
        for _ in range(8):
            begun = time.perf_counter()
            matrix @ matrix
            times.append(time.perf_counter() - begun)
        return min(times)

    return seconds(torch.bfloat16) < seconds(torch.float32)


def keep_memory() -> None:
    """Let glibc keep what is freed rather than give it back to the system.

    Each step asks for the same large arrays, and mapping and clearing their pages anew would be a
    good part of its time. Elsewhere than on Linux nothing changes.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1)):
            libc.mallopt(parameter, value)


def cross_entropy(hidden: Tensor, embedding: Tensor, right: Tensor) -> Tensor:
    """The loss `[count]`, in nats, of the tokens that are `right` after some hidden states."""
    logits = functional.linear(hidden, embedding)
    return functional.cross_entropy(logits.float(), right, reduction="none")


class Draws(torch.utils.data.Dataset[Batch]):
    """The batch of each step, from `begin` on."""

    def __init__(self, batches: Batches, stages: Sequence[Stage], begin: int) -> None:
        self._batches, self._stages, self._begin = batches, stages, begin

    def __len__(self) -> int:
        return max(0, total_steps(self._stages) - self._begin)

    def __getitem__(self, index: int) -> Batch:
        step = self._begin + index
        stage = stage_at(self._stages, step)
        return self._batches.draw(step, rows=stage.rows, length=stage.length, mix=stage.mix)


@dataclass(frozen=True)
class Losses:
    """What a batch's learned tokens cost in nats, their kinds and weights, `[count]` each; and the
    loss of the guided attention."""

    each: Tensor
    kinds: Tensor
    weights: Tensor
    guidance: Tensor

    def total(self) -> Tensor:
        """What is minimised."""
        return (self.each * self.weights).sum() / self.weights.sum() + GUIDANCE * self.guidance


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised with a Newton-Schulz iteration (Jordan 2024), for matrices.

    On a model this small it reaches a given loss in roughly two thirds of AdamW's steps. Matrices
    of one shape are stacked, so a step is a few batched products; where bfloat16 is slow, it takes
    less than half the time of PyTorch's own.
    """

    def __init__(self, matrices: list[Tensor], *, lr: float, momentum: float = 0.95) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            by_shape[matrix.shape].append(matrix)
        groups = [{"params": same} for same in by_shape.values()]
        super().__init__(groups, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            parameters, momentum = group["params"], group["momentum"]
            gradients = torch.stack([parameter.grad for parameter in parameters])
            state = self.state[parameters[0]]
            velocity = state.setdefault("velocity", torch.zeros_like(gradients))
            velocity.lerp_(gradients, 1 - momentum)
            update = orthogonalised(gradients.lerp(velocity, momentum)).to(gradients.dtype)
            rows, columns = parameters[0].shape
            scale = group["lr"] * max(1.0, rows / columns) ** 0.5
            # One call for all: on a GPU, each call costs more than its sums.
            torch._foreach_add_(parameters, update.unbind(), alpha=-scale)


def orthogonalised(stack: Tensor, *, steps: int = 4) -> Tensor:
    """Every singular value of each matrix in `stack` `[count, rows, columns]` pushed towards 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = stack.shape[-2] > stack.shape[-1]
    matrix = stack.mT if tall else stack
    matrix = matrix / (matrix.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = matrix @ matrix.mT
        matrix = a * matrix + (b * gram + c * gram @ gram) @ matrix
    return matrix.mT if tall else matrix


class Trainer:
    """A model, its optimizers and the step it has reached.

    Muon changes the matrices, AdamW the embedding and the norms.
    """

    def __init__(
        self, work: Path, shape: Shape, stages: Sequence[Stage], *, compiled: bool
    ) -> None:
        torch.manual_seed(SEED)
        shards = {path.stem: Shard.load(path) for path in sorted((work / "shards").glob("*.npz"))}
        vocabulary = Vocabulary.of(load_tokenizer(), shards[EDITS])
        self.batches = Batches(shards, vocabulary, positions=shape.row_positions, seed=SEED)
        self.work, self.stages, self.step, self.seconds = work, stages, 0, 0.0
        self._fresh_from = 0
        self.model = Llama(shape).to(DEVICE)
        self._body, self._cross_entropy = self.model.model, cross_entropy
        if compiled:
            # The body is compiled once for each size of a batch, or not at all beyond the limit.
            sizes = {(stage.rows, stage.length) for stage in stages}
            torch._dynamo.config.recompile_limit = 2 * len(sizes)
            self._body = torch.compile(self._body, dynamic=False)
            self._cross_entropy = torch.compile(cross_entropy, dynamic=True)
        self._in_blocks = compiled and DEVICE.type == "cuda"
        named = list(self.model.named_parameters())
        is_matrix = [weights.ndim == 2 and "embed" not in name for name, weights in named]
        matrices, others = (
            [weights for (_, weights), one in zip(named, is_matrix, strict=True) if one is wanted]
            for wanted in (True, False)
        )
        self._optimizers = {
            "muon": Muon(matrices, lr=MATRIX_RATE),
            "adam": torch.optim.AdamW(
                others, lr=VECTOR_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True
            ),
        }

    def resume(self) -> None:
        """Go on from the checkpoint in the work folder, if there is one."""
        path = self.work / "checkpoint.pt"
        if path.exists():
            saved = torch.load(path, weights_only=True, map_location=DEVICE)
            self.model.load_state_dict(saved["model"])
            self.step, self.seconds = saved["step"], saved["seconds"]
            self._fresh_from = saved["fresh_from"]
            for name, state in saved["optimizers"].items():
                self._optimizers[name].load_state_dict(state)

    def checkpoint(self) -> None:
        """Write everything that `resume` reads, whole or not at all."""
        saved = {
            "model": self.model.state_dict(),
            "optimizers": {name: one.state_dict() for name, one in self._optimizers.items()},
            "shape": asdict(self.model.shape),
            "step": self.step,
            "seconds": self.seconds,
            "fresh_from": self._fresh_from,
        }
        partial = self.work / "checkpoint.partial"
        torch.save(saved, partial)
        partial.replace(self.work / "checkpoint.pt")

    def train_step(self, batch: Batch) -> Losses:
        """Learn from one batch."""
        losses = self._losses(batch)
        losses.total().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        scale = rate_scale(self.stages, self.step, fresh_from=self._fresh_from)
        vectors = stage_at(self.stages, self.step).vectors
        rates = {"muon": MATRIX_RATE * scale, "adam": VECTOR_RATE * scale * vectors}
        for name, optimizer in self._optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = rates[name]
            with mixed_precision():
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return losses

    def _losses(self, batch: Batch) -> Losses:
        def to_device(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(DEVICE, non_blocking=True)

        # The CPU knows which tokens are learned; asking a GPU would mean to wait for it.
        wanted = np.flatnonzero(batch.kinds[:, 1:] >= 0)
        right, kinds, weights = (
            to_device(array[:, 1:].reshape(-1)[wanted])
            for array in (batch.tokens, batch.kinds, batch.weights)
        )
        tokens, positions, begins = (
            to_device(array[:, :-1]) for array in (batch.tokens, batch.positions, batch.begins)
        )
        heads = [guided.target for guided in self.model.model.guided]
        targets = to_device(batch.targets[heads, :, 1:]).long()
        blocks = visible_blocks(begins) if self._in_blocks else None
        with mixed_precision():
            hidden, shares = self._body(tokens, positions, begins, targets, blocks)
            # The vocabulary is a good part of the work, so only states with a loss meet it.
            states = hidden.flatten(0, 1).index_select(0, to_device(wanted))
            each = self._cross_entropy(states, self.model.model.embed_tokens.weight, right)
        return Losses(each, kinds, weights, guidance_loss(shares, targets))

    def run(self) -> None:
        """Train to the end of the curriculum."""
        total = total_steps(self.stages)
        # With a GPU, other processes draw the batches.
        workers = max(1, (os.cpu_count() or 1) - 2) if DEVICE.type == "cuda" else 0
        draws = torch.utils.data.DataLoader(
            Draws(self.batches, self.stages, self.step),
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,  # they share the shards
            prefetch_factor=8 if workers else None,
        )
        begun, tokens = time.perf_counter(), 0
        with (self.work / "log.jsonl").open("a", encoding="utf-8") as log:
            for batch in draws:
                losses = self.train_step(batch)
                tokens += batch.kinds[:, 1:].size
                if self.step % LOG_EVERY and self.step < total:
                    continue
                loss = losses.each.mean().item()  # waits for a GPU, so the time is right
                seconds = time.perf_counter() - begun
                self.seconds += seconds
                stage, speed = stage_at(self.stages, self.step - 1).name, round(tokens / seconds)
                record = {
                    "step": self.step,
                    "stage": stage,
                    "tokens_per_s": speed,
                    "hours": round(self.seconds / 3600, 4),
                    "loss": round(loss, 4),
                    "guidance": round(losses.guidance.item(), 4),
                    "by_kind": self._by_kind(losses),
                }
                log.write(json.dumps(record) + "\n")
                log.flush()
                print(f"{self.step}/{total} {stage} {loss:.3f} {speed} tokens/s", flush=True)
                if self.step % CHECKPOINT_EVERY == 0 or self.step == total:
                    self.checkpoint()
                begun, tokens = time.perf_counter(), 0

    def _by_kind(self, losses: Losses) -> dict[str, float]:
        """The mean loss of each kind of token in a batch."""
        kinds, each = losses.kinds.cpu(), losses.each.detach().cpu()
        return {
            name: round(float(each[kinds == index].mean()), 4)
            for index, name in enumerate(self.batches.kind_names)
            if bool((kinds == index).any())
        }


def _as_it_is(batch: Batch) -> Batch:
    """Keeps the loader from turning arrays into tensors."""
    return batch


def train(work: Path, shape: Shape, stages: Sequence[Stage], *, compiled: bool) -> None:
    """Train to the end of the stages, from the last checkpoint if there is one.

    `compiled` trains a quarter faster after half a minute; it needs a C++ compiler.
    """
    keep_memory()
    if DEVICE.type == "cuda":
        torch.set_float32_matmul_precision("high")
    trainer = Trainer(work, shape, stages, compiled=compiled)
    trainer.resume()
    trainer.run()
