"""The training loop: batches in, checkpoints and a log of losses out; it resumes at the last one.

The work folder has `tokenizer/` and `shards/`; the loop writes `checkpoint.pt` and `log.jsonl`
(one JSON object a line) there.
"""

# mypy: allow-untyped-decorators, allow-subclassing-any
# PyTorch is not installed where types are checked, so its classes are unknown there.
from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece as spm
import torch
from torch import Tensor
from torch.nn import functional

from models.training import tokenizer as tokenizers
from models.training.batches import EDITS, Batch, Batches
from models.training.examples import END_OF_TEXT, Shard
from models.training.guidance import WEIGHT, guidance_loss
from models.training.model import Llama, Shape, visible_blocks
from models.training.optimizer import Optimizer
from models.training.recipes import Recipe
from models.training.stages import Stage, rate_scale, stage_at, total_steps
from models.training.substitution import high_bytes, request_words, word_pieces

SEED = 20
CLIP = 1.0
LOG_EVERY, CHECKPOINT_EVERY, PROBE_EVERY = 20, 100, 200
"""In steps; the others are multiples of the first."""
PROBE_SHARDS = ("probe", "probe_short", "probe_chats")
FENCE = "```python\n"
_M_MMAP_MAX, _M_TRIM_THRESHOLD = -4, -1
"""Of `mallopt` in glibc's malloc.h."""


def load_shards(folder: Path) -> dict[str, Shard]:
    """Every shard of a folder by the name of its file."""
    return {path.stem: Shard.load(path) for path in sorted(folder.glob("*.npz"))}


def plain_vocabulary(folder: Path) -> np.ndarray:
    """Ids that stand for ordinary text: no control, byte or chat pieces."""
    processor = tokenizers.load(folder)
    first_special = processor.piece_to_id(tokenizers.SPECIAL_TOKENS[0])
    ids = range(processor.get_piece_size())
    return np.array([i for i in ids if i < first_special and not processor.is_byte(i) and i])


def line_breaks(processor: spm.SentencePieceProcessor) -> np.ndarray:
    """Ids of the pieces that begin with a line break."""
    pieces = ((i, processor.id_to_piece(i)) for i in range(processor.get_piece_size()))
    return np.array([i for i, piece in pieces if piece.startswith("\n")])


def exchangeable_words(processor: spm.SentencePieceProcessor, edits: Shard) -> np.ndarray:
    """Ids of words, and of bytes outside ASCII, that may stand for each other in edits."""
    (quote,) = processor.encode("`")
    kept = request_words(edits, fence=processor.encode(FENCE)[0], quote=quote)
    return np.setdiff1d(np.union1d(word_pieces(processor), high_bytes(processor)), kept)


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where the model is trained: on an NVIDIA GPU if there is one."""


def mixed_precision() -> torch.autocast:
    """Products in bfloat16 where they are faster than others."""
    faster = DEVICE.type == "cuda" or _bfloat16_is_faster()
    return torch.autocast(DEVICE.type, torch.bfloat16, enabled=faster)


@cache
def _bfloat16_is_faster() -> bool:
    """Whether a product of bfloat16 takes less time here than one of float32.

    A step takes half the time then; but some processors that have bfloat16 are slower in it.
    """
    seconds = {}
    for kind in (torch.bfloat16, torch.float32):
        matrix = torch.ones(768, 768, dtype=kind)
        times = []
        for _ in range(8):
            begun = time.perf_counter()
            matrix @ matrix
            times.append(time.perf_counter() - begun)
        seconds[kind] = min(times)
    return seconds[torch.bfloat16] < seconds[torch.float32]


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
    """The loss `[count]`, in nats, of the tokens that are `right` after some hidden states.

    Multiplying by the vocabulary is a good part of a small model's work, so states that carry no
    loss should not come here.
    """
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

    @property
    def total(self) -> Tensor:
        """What is minimised."""
        return (self.each * self.weights).sum() / self.weights.sum() + WEIGHT * self.guidance


class Trainer:
    """A model, its optimizer and the step it has reached."""

    def __init__(
        self, work: Path, shape: Shape, stages: Sequence[Stage], *, compiled: bool
    ) -> None:
        torch.manual_seed(SEED)
        shards = load_shards(work / "shards")
        self.probes = {name: shards.pop(name) for name in PROBE_SHARDS if name in shards}
        processor = tokenizers.load(work / "tokenizer")
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
        self.optimizer = Optimizer(self.model)
        self.batches = Batches(
            shards,
            vocabulary=plain_vocabulary(work / "tokenizer"),
            words=exchangeable_words(processor, shards[EDITS]),
            positions=shape.row_positions,
            end=processor.piece_to_id(END_OF_TEXT),
            fence=processor.encode(FENCE)[0],
            breaks=line_breaks(processor),
            seed=SEED,
        )

    def resume(self) -> None:
        """Go on from the checkpoint in the work folder, if there is one."""
        path = self.work / "checkpoint.pt"
        if path.exists():
            saved = torch.load(path, weights_only=True, map_location=DEVICE)
            self.model.load_state_dict(saved["model"])
            self.step, self.seconds = saved["step"], saved["seconds"]
            if saved["optimizer"] is None:
                self._fresh_from = self.step
            else:
                self.optimizer.load_state_dict(saved["optimizer"])
                self._fresh_from = saved.get("fresh_from", 0)

    def checkpoint(self) -> None:
        """Write everything that `resume` reads, whole or not at all."""
        saved = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
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
        stage = stage_at(self.stages, self.step)
        # A run from nothing has no layers that are newer than others.
        self.model.learn_only(stage.only if self._fresh_from else ())
        losses = self._losses(batch)
        losses.total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        with mixed_precision():
            scale = rate_scale(self.stages, self.step, fresh_from=self._fresh_from)
            self.optimizer.step(scale, vectors=stage.vectors)
        self.step += 1
        return replace(losses, each=losses.each.detach(), guidance=losses.guidance.detach())

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
                loss = float(losses.each.mean())  # waits for a GPU, so the time is right
                seconds = time.perf_counter() - begun
                self.seconds += seconds
                record = {
                    "step": self.step,
                    "stage": stage_at(self.stages, self.step - 1).name,
                    "tokens_per_s": round(tokens / seconds),
                    "hours": round(self.seconds / 3600, 4),
                    "loss": round(loss, 4),
                    "guidance": round(float(losses.guidance), 4),
                    "by_kind": self._by_kind(losses),
                }
                if self.step % PROBE_EVERY == 0:
                    for name, probe in self.probes.items():
                        record[name] = exact_answers(self.model, probe)
                log.write(json.dumps(record) + "\n")
                log.flush()
                print(progress_line(record, total), flush=True)
                if self.step % CHECKPOINT_EVERY == 0 or self.step == total:
                    self.checkpoint()
                begun, tokens = time.perf_counter(), 0

    def _by_kind(self, losses: Losses) -> dict[str, float]:
        """The mean loss of each kind of token in a batch."""
        kinds, each = losses.kinds.cpu(), losses.each.cpu()
        return {
            name: round(float(each[kinds == index].mean()), 4)
            for index, name in enumerate(self.batches.kind_names)
            if bool((kinds == index).any())
        }


def _as_it_is(batch: Batch) -> Batch:
    """Keeps the loader from turning arrays into tensors."""
    return batch


@torch.no_grad()
def exact_answers(model: Llama, probe: Shard) -> dict[str, float]:
    """The share of examples with every learned token right, and of learned tokens right.

    A greedy answer equals the expected one exactly when each of its tokens is the most likely one
    after those before it, so one forward of the whole example decides it.
    """
    exact = right = count = 0
    for index in range(len(probe)):
        tokens, learned = probe.example(index)
        row = torch.from_numpy(tokens.astype("int64"))[None].to(DEVICE)
        wanted = torch.from_numpy(learned[1:])[None].to(DEVICE)
        hits = model(row[:, :-1], wanted).argmax(dim=-1) == row[:, 1:][wanted]
        exact += int(hits.all())
        right += int(hits.sum())
        count += hits.numel()
    return {"exact": round(exact / len(probe), 4), "tokens_right": round(right / count, 4)}


def progress_line(record: dict[str, Any], total: int) -> str:
    """A bar, the loss and the latest probe for a terminal or a log file."""
    filled = 30 * record["step"] // total
    bar = "#" * filled + "." * (30 - filled)
    probe = f"  exact {record['probe']['exact']:.2f}" if "probe" in record else ""
    speed = f"{record['tokens_per_s']} tokens/s"
    return f"[{bar}] {record['step']}/{total} {record['stage']} {record['loss']:.3f} {speed}{probe}"


def train(work: Path, recipe: Recipe) -> None:
    """Train to the end of the curriculum, from the last checkpoint if there is one."""
    keep_memory()
    if DEVICE.type == "cuda":
        torch.set_float32_matmul_precision("high")
    trainer = Trainer(work, recipe.shape, recipe.stages, compiled=recipe.compiled)
    trainer.resume()
    trainer.run()
