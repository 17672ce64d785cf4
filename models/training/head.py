"""Trains the head that drafts with the model: it predicts the token after the next one.

    python -m models.training.head --work FOLDER [--minutes M]

The head has the layout of Qwen's (`mtp.*`): a projection of the next token's embedding and the last
hidden state of the model, one layer, a norm; embedding and output matrix are the model's. It learns
the distribution of the bundled model as it is shipped, half of the time over the examples of the
courses and half over the model's own answers to them. The second of two steps begins with the
head's own state, as the second draft does. The work folder has the `shards/` of `python -m
models.training`; `head.safetensors` and the log `head.jsonl` go there.
"""

# mypy: allow-untyped-decorators, allow-subclassing-any
# PyTorch is not installed where types are checked, so its classes are unknown there.
import argparse
import json
import os
import time
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from models.training.batches import CODE, EDITS, Batches, Vocabulary
from models.training.curriculum import WARMUP_STEPS
from models.training.examples import EMBER, SPECIAL_TOKENS, Shard, load_tokenizer
from models.training.export import dense_weights
from models.training.model import (
    HEAD_DIM,
    Block,
    Body,
    Llama,
    RotaryTable,
    Rotation,
    Shape,
    visible_tokens,
)
from models.training.train import DEVICE, LOG_EVERY, SEED, Muon, mixed_precision

ROWS, LENGTH = 32, 1024
MATRIX_RATE, VECTOR_RATE = 0.01, 1e-3  # at first; both fall to zero
MIX: Final = {
    "short_edits": 0.2,
    "chats": 0.2,
    "edits": 0.13,
    "code": 0.25,
    "questions": 0.07,
    "refusals": 0.08,
    "fim": 0.07,
}
OWN_BATCHES, OWN_ROWS, PROMPT, ANSWER = 8, 1024, 256, 256
"""The model answers so many prompts at once, of so many tokens, with as many as that."""
TEST_ROWS = 64
SECOND_STEP_WEIGHT, REQUEST_WEIGHT = 0.5, 0.1

Arrays = tuple[np.ndarray, ...]
"""Tokens, positions, begins (see `model.visible_tokens`) and weights, `[rows, length]` each."""


class Head(nn.Module):
    """What `mtp.*` computes, `[rows, length, hidden_size]` from states and tokens."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.pre_fc_norm_embedding = nn.RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(size, eps=eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([Block(shape)])
        self.norm = nn.RMSNorm(size, eps=eps)
        self.rotary = RotaryTable(shape)
        with torch.no_grad():
            self.fc.weight[:, :size] *= 0.02
            self.fc.weight[:, size:] = torch.eye(size)
            for name, weights in self.layers.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    weights.zero_()

    def forward(
        self, embedded: Tensor, hidden: Tensor, positions: Tensor, visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The states after one step and after a second one, each the state that a draft of the next
        token is read from.

        Pair `i` is the model's `hidden` state of token `i` and the embedding of token `i + 1`; what
        it sees are the pairs up to its own. The second step has the first one's states in place of
        the model's, sees the first step's pairs before it, and itself.
        """
        rotation = self.rotary(positions)
        joined = self._joined(embedded, hidden)
        first = self._after(joined, joined, rotation, visible)
        # Pair i of the second step is the state of pair i - 1 with the embedding of token i + 1.
        own = self._joined(embedded, functional.pad(first, (0, 0, 1, 0))[:, :-1])
        return first, self._after(own, joined, rotation, visible)

    def _joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        parts = self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)
        return self.fc(torch.cat(parts, dim=-1))

    def _after(self, own: Tensor, others: Tensor, rotation: Rotation, visible: Tensor) -> Tensor:
        (layer,) = self.layers
        attention, norm = layer.self_attn, layer.input_layernorm
        queries, keys = attention._queries_and_keys(norm(own), rotation)
        values = attention._heads(attention.v_proj(norm(own)), attention.num_kv_heads)
        mask = visible
        if own is not others:
            _, before = attention._queries_and_keys(norm(others), rotation)
            earlier = attention._heads(attention.v_proj(norm(others)), attention.num_kv_heads)
            keys, values = torch.cat((before, keys), 2), torch.cat((earlier, values), 2)
            itself = torch.eye(visible.shape[-1], dtype=torch.bool, device=visible.device)
            mask = torch.cat((visible & ~itself, itself.expand_as(visible)), dim=-1)
        keys, values = (x.repeat_interleave(attention.group, dim=1) for x in (keys, values))
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask[:, None]
        )
        state = own + attention.o_proj(mixed.transpose(1, 2).reshape(own.shape))
        return self.norm(state + layer.mlp(layer.post_attention_layernorm(state)))


@torch.no_grad()
def answered(body: Body, prompts: Tensor, pads: Tensor, length: int) -> Tensor:
    """The prompts `[rows, tokens]`, each after `pads` tokens that nothing sees, and the model's
    greedy answer to each, `length` tokens long."""
    rows, begin = prompts.shape
    total, device = begin + length, prompts.device
    tokens = functional.pad(prompts, (0, length))
    attention = body.layers[0].self_attn
    shape = (rows, attention.num_kv_heads, total, HEAD_DIM)
    caches = [tuple(torch.zeros(shape, device=device, dtype=torch.bfloat16) for _ in "kv")
              for _ in body.layers]  # fmt: skip
    index = torch.arange(total, device=device)
    at = 0
    for end in range(begin, total):
        new = index[at:end]
        hidden = body.embed_tokens(tokens[:, at:end])
        rotation = body.rotary((new - pads[:, None]).clamp(min=0))
        # What fills up sees itself, because of nothing there is no mean.
        mask = (index[:end] <= new[:, None]) & (index[:end] >= pads[:, None, None])
        mask = mask | (index[:end] == new[:, None])
        for layer, (keys, values) in zip(body.layers, caches, strict=True):
            one, normed = layer.self_attn, layer.input_layernorm(hidden)
            queries, keys[:, :, at:end] = one._queries_and_keys(normed, rotation)
            values[:, :, at:end] = one._heads(one.v_proj(normed), one.num_kv_heads)
            mixed = functional.scaled_dot_product_attention(
                queries.to(keys.dtype), keys[:, :, :end], values[:, :, :end],
                attn_mask=mask[:, None], enable_gqa=True,
            )  # fmt: skip
            hidden = hidden + one.o_proj(mixed.transpose(1, 2).reshape(hidden.shape))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        last = body.norm(hidden[:, -1])
        tokens[:, end] = functional.linear(last, body.embed_tokens.weight).argmax(-1)
        at = end
    return tokens


class Rows:
    """Rows to learn from."""

    def __init__(self, work: Path, shape: Shape) -> None:
        processor = load_tokenizer()
        self.shards = {
            path.stem: Shard.load(path) for path in sorted((work / "shards").glob("*.npz"))
        }
        vocabulary = Vocabulary.of(processor, self.shards[EDITS])
        self.batches = Batches(self.shards, vocabulary, positions=shape.row_positions, seed=SEED)
        self.ends = [processor.piece_to_id(token) for token in SPECIAL_TOKENS]

    def drawn(self, step: int, rows: int) -> Arrays:
        """Examples, as the courses have them."""
        batch = self.batches.draw(step, rows=rows, length=LENGTH, mix=MIX)
        weights = np.where(batch.kinds >= 0, 1.0, REQUEST_WEIGHT).astype(np.float32)
        arrays = batch.tokens.astype(np.int64), batch.positions, batch.begins, weights
        return tuple(one[:, :-1] for one in arrays)

    def prompts(self, rng: np.random.Generator, kinds: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Beginnings of examples up to an answer, or of code, of `PROMPT` tokens at most and with
        what fills them up on the left; and how much that is."""
        found = np.full((len(kinds), PROMPT), self.ends[0])
        pads = np.zeros(len(kinds), np.int64)
        for row, kind in enumerate(kinds):
            shard = self.shards[kind]
            while True:
                tokens, learned = shard.example(int(rng.integers(len(shard))))
                begin = 0
                if kind == CODE:
                    if len(tokens) < PROMPT + 2:
                        continue
                    begin = int(rng.integers(len(tokens) - PROMPT))
                    end = begin + PROMPT
                else:
                    end = int(np.argmax(learned))
                if 8 <= end - begin <= PROMPT:
                    break
            found[row, PROMPT - (end - begin) :] = tokens[begin:end]
            pads[row] = PROMPT - (end - begin)
        return found, pads

    def own(self, body: Body, rng: np.random.Generator, kinds: list[str]) -> Arrays:
        """The model's own answers, as `drawn` gives rows, each `PROMPT + ANSWER` long."""
        found, pads = self.prompts(rng, kinds)
        with mixed_precision():
            asked, before = (torch.from_numpy(one).to(DEVICE) for one in (found, pads))
            tokens = answered(body, asked, before, ANSWER).cpu().numpy()
        index = np.arange(tokens.shape[1])
        is_over = np.isin(tokens, self.ends) & (index >= PROMPT)
        over = np.cumsum(is_over, axis=1) - is_over > 0
        weights = np.where(index >= PROMPT, 1.0, REQUEST_WEIGHT) * ~over
        begins = np.broadcast_to(pads[:, None], tokens.shape)
        weights = (weights * (index >= begins)).astype(np.float32)
        return tokens, np.maximum(index - begins, 0), np.minimum(begins, index), weights


class Training:
    """A head that learns from a model, which does not change."""

    def __init__(self, shape: Shape) -> None:
        model = Llama(shape)
        weights = {name: torch.from_numpy(one) for name, one in dense_weights(EMBER).items()}
        model.load_state_dict(weights)
        self.body = model.model.to(DEVICE).requires_grad_(False)
        self.head = Head(shape).to(DEVICE)
        matrices = [one for one in self.head.parameters() if one.ndim == 2]
        norms = [one for one in self.head.parameters() if one.ndim == 1]
        adam = torch.optim.AdamW(norms, lr=VECTOR_RATE, weight_decay=0.0)
        self.optimizers = ((Muon(matrices, lr=MATRIX_RATE), MATRIX_RATE), (adam, VECTOR_RATE))

    def losses(self, arrays: Arrays) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and how often the first and the second draft is the model's choice."""
        tokens, positions, begins, weights = (torch.from_numpy(one).to(DEVICE) for one in arrays)
        matrix = self.body.embed_tokens.weight
        with mixed_precision():
            with torch.no_grad():
                hidden, _ = self.body(tokens, positions, begins)
                # Pair i: the state of token i, the embedding of token i + 1; it drafts i + 2.
                wanted = functional.linear(hidden[:, 1:], matrix).float()
                probabilities, choice = wanted.softmax(-1), wanted.argmax(-1)
                embedded = self.body.embed_tokens(tokens[:, 1:])
            first = functional.pad(weights[:, 2:], (0, 1)) * (begins[:, 1:] == begins[:, :-1])
            second = functional.pad(first[:, 1:] * (begins[:, 2:] == begins[:, :-2]), (1, 0))
            visible = visible_tokens(begins[:, :-1])
            states = self.head(embedded, hidden[:, :-1], positions[:, :-1], visible)
            loss, shares = torch.zeros((), device=DEVICE), []
            for state, counts, weight in zip(
                states, (first, second), (1.0, SECOND_STEP_WEIGHT), strict=True
            ):
                logits = functional.linear(state, matrix).float()
                each = -(probabilities * logits.log_softmax(-1)).sum(-1)
                loss = loss + weight * (each * counts).sum() / counts.sum()
                right = (logits.argmax(-1) == choice) * counts
                shares.append(right.sum() / counts.sum())
        return loss, shares[0], shares[1]

    def step(self, arrays: Arrays, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """Learn from some rows at a share of the rates."""
        found = self.losses(arrays)
        found[0].backward()
        for optimizer, rate in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            with mixed_precision():
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return found


class Draws(torch.utils.data.Dataset[Arrays]):
    """The rows of each step."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, step: int) -> Arrays:
        return self._rows.drawn(step, ROWS)


def train(work: Path, minutes: float) -> None:
    """Train for so long, then write the head and how often its drafts are right."""
    torch.manual_seed(SEED)
    shape = Shape()
    rows, rng, training = Rows(work, shape), np.random.default_rng(SEED), Training(shape)
    kinds = rng.choice(list(MIX), (OWN_BATCHES, OWN_ROWS), p=list(MIX.values()))
    own = [rows.own(training.body, rng, some.tolist()) for some in kinds]
    tests = {kind: rows.own(training.body, rng, [kind] * TEST_ROWS) for kind in MIX}
    workers = max(1, (os.cpu_count() or 1) - 2) if DEVICE.type == "cuda" else 0
    draws = torch.utils.data.DataLoader(
        Draws(rows),
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        prefetch_factor=8 if workers else None,
    )
    begun = time.perf_counter()
    with (work / "head.jsonl").open("a", encoding="utf-8") as log:
        for step, drawn in enumerate(draws):
            left = 1.0 - (time.perf_counter() - begun) / (60 * minutes)
            if left <= 0.0:
                break
            arrays = drawn
            if step % 2:
                batch = own[int(rng.integers(OWN_BATCHES))]
                chosen = rng.choice(OWN_ROWS, 2 * ROWS, replace=False)
                arrays = tuple(one[chosen] for one in batch)
            found = training.step(arrays, left * min(1.0, (step + 1) / WARMUP_STEPS))
            if step % LOG_EVERY < 2:
                print(json.dumps({"step": step, **_named(found)}), file=log, flush=True)
        for kind, arrays in tests.items():
            with torch.no_grad():
                found = training.losses(arrays)
            print(json.dumps({"kind": kind, **_named(found)}), file=log, flush=True)
    weights = {name: one.detach().contiguous() for name, one in training.head.state_dict().items()}
    save_file({f"mtp.{name}": one for name, one in weights.items()}, work / "head.safetensors")


def _named(found: tuple[Tensor, Tensor, Tensor]) -> dict[str, float]:
    names = ("loss", "first_right", "second_right")
    return {name: round(float(one.detach()), 4) for name, one in zip(names, found, strict=True)}


def _as_it_is(arrays: Arrays) -> Arrays:
    """Keeps the loader from turning arrays into tensors."""
    return arrays


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0)
    options = parser.parse_args()
    train(options.work, options.minutes)


if __name__ == "__main__":
    main()
