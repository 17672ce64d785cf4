"""A plain Llama in PyTorch: what mlx-lm's `llama.py` computes, in the shape that trains fast.

Token ids `[rows, length]` go in, logits of the positions asked for come out. Parameter names
are those of a Hugging Face Llama checkpoint, so the state dict is the export. While it trains, a
few heads are shown what to look at (`guided_heads`); the trained model is an ordinary Llama.
"""

# mypy: allow-subclassing-any
# PyTorch is not installed where types are checked, so its classes are unknown there.
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from models.training.copies import AFTER, AHEAD, END, LINE, NOWHERE, PLACE, SOURCE, START

HEAD_DIM = 64
_PIECE = 256  # tokens whose attention scores are computed at once


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; every one a multiple of 64 so that it quantizes in groups of 64."""

    vocab_size: int = 4096
    hidden_size: int = 384
    intermediate_size: int = 1024
    num_layers: int = 13
    num_heads: int = 6
    num_kv_heads: int = 2
    max_positions: int = 2048
    rope_theta: float = 100_000.0
    rms_norm_eps: float = 1e-5

    @property
    def row_positions(self) -> int:
        """How many positions a row of training has: rows as long as the context have gaps, too."""
        return 2 * self.max_positions


class GuidedHead(NamedTuple):
    """A query head that is shown what to look at: the target is an index into `Batch.targets`."""

    layer: int
    head: int
    target: int


def guided_heads(shape: Shape) -> tuple[GuidedHead, ...]:
    """The heads that are guided, ordered by their layers; there must be six layers or more.

    Each layer knows what those before it have found: where the line begins; the place; what stands
    ahead of it, and where a quote began; what stands at the end of the quote, and the place once
    more, with what is known now; the token to write next. Two heads of one layer look for that, and
    they do not share their values, because the 64 numbers of one value are few to tell thousands of
    tokens apart. All of them stand before the last layers, whose large feed-forward outputs bury
    which token stands where.
    """
    first = (shape.num_layers - 5) // 2
    other = shape.num_heads // shape.num_kv_heads
    chosen = (
        GuidedHead(first, 0, LINE),
        GuidedHead(first + 1, 0, PLACE),
        GuidedHead(first + 2, 0, START),
        GuidedHead(first + 2, other, AHEAD),
        GuidedHead(first + 3, 0, END),
        GuidedHead(first + 3, 1, PLACE),
        GuidedHead(first + 3, other, AFTER),
        GuidedHead(first + 4, 0, SOURCE),
        GuidedHead(first + 4, other, SOURCE),
        GuidedHead(first + 5, 0, SOURCE),
    )
    # The model of the tests has fewer heads.
    return tuple(guided for guided in chosen if guided.head < shape.num_heads)


def guidance_loss(log_shares: Tensor, targets: Tensor) -> Tensor:
    """Minus the log of the attention paid to the right token, averaged, summed over the heads.

    Left to themselves, heads that copy form late in a small training budget; told where to look,
    they form within a few hundred steps (Chen et al. 2016, "Guided alignment training for
    topic-aware neural machine translation", did so for translation).

    Args:
        log_shares: `[heads, rows, length]`, of the attention paid to each target.
        targets: `[heads, rows, length]`, the position that the head should look at, or `NOWHERE`.
    """
    wanted = targets != NOWHERE
    counts = wanted.sum(dim=(1, 2)).clamp(min=1)
    return -(log_shares.where(wanted, 0.0).sum(dim=(1, 2)) / counts).sum()


class Rotation(NamedTuple):
    """Cosines and sines of the rotary embedding, `[rows or 1, 1, length, HEAD_DIM]` each."""

    cos: Tensor
    sin: Tensor

    def turn(self, heads: Tensor) -> Tensor:
        """`heads` is `[rows, heads, length, HEAD_DIM]`."""
        first, second = heads.chunk(2, dim=-1)
        return heads * self.cos + torch.cat((-second, first), dim=-1) * self.sin


class RotaryTable(nn.Module):
    """The rotary embedding of every position in a row, halves convention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        exponents = torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM
        positions = torch.arange(shape.row_positions, dtype=torch.float64)
        angles = torch.outer(positions, shape.rope_theta**-exponents)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, positions: Tensor) -> Rotation:
        """The rotation at `positions`, `[rows or 1, length]`."""
        return Rotation(self.cos[positions][:, None], self.sin[positions][:, None])


def visible_tokens(begins: Tensor) -> Tensor:
    """Which tokens each token of a row can look at: those of its own example up to itself.

    Args:
        begins: `[rows, length]`, where in its row the example of a token begins.

    Returns:
        `[rows, from, to]`, true where the token `from` can look at the token `to`.
    """
    index = torch.arange(begins.shape[1], device=begins.device)
    return (index >= begins[..., None]) & (index <= index[:, None])


def visible_blocks(begins: Tensor) -> BlockMask:
    """What `visible_tokens` tells, in blocks: a GPU skips those in which no token sees another."""

    def sees(row: Tensor, _head: Tensor, at: Tensor, other: Tensor) -> Tensor:
        return (other >= begins[row, at]) & (other <= at)

    rows, length = begins.shape
    return create_block_mask(sees, rows, None, length, length, device=begins.device)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = shape.num_heads, shape.num_kv_heads
        self.group = shape.num_heads // shape.num_kv_heads
        kv_size = shape.num_kv_heads * HEAD_DIM
        self.q_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(
        self, hidden: Tensor, rotation: Rotation, visible: Tensor, blocks: BlockMask | None = None
    ) -> Tensor:
        queries, keys = self._queries_and_keys(hidden, rotation)
        values = self._heads(self.v_proj(hidden), self.num_kv_heads)
        keys, values = (x.repeat_interleave(self.group, dim=1) for x in (keys, values))
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)
        if blocks is not None:
            mixed = flex_attention(queries, keys, values, block_mask=blocks)
        else:
            mask = visible[:, None]
            mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self.o_proj(mixed.transpose(1, 2).reshape(hidden.shape))

    def log_shares(
        self, hidden: Tensor, rotation: Rotation, visible: Tensor, head: int, targets: Tensor
    ) -> Tensor:
        """The log of how much a query head attends to the positions `targets`.

        Both are `[rows, length]`; where a target is `NOWHERE`, what is returned means nothing.
        """
        queries, keys = self._queries_and_keys(hidden, rotation)
        queries, keys = queries[:, head], keys[:, head // self.group]
        shares = []
        for begin in range(0, queries.shape[1], _PIECE):
            piece = slice(begin, begin + _PIECE)
            end = min(piece.stop, queries.shape[1])
            scores = queries[:, piece] @ keys[:, :end].mT / HEAD_DIM**0.5
            scores = scores.float().masked_fill(~visible[:, piece, :end], -1e9)
            # Of the same rounded scores, or else a share could be larger than one, and grow.
            there = scores.gather(-1, targets[:, piece, None].clamp(min=0, max=end - 1))
            shares.append(there[..., 0] - scores.logsumexp(-1))
        return torch.cat(shares, dim=1)

    def _queries_and_keys(self, hidden: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        queries = rotation.turn(self._heads(self.q_proj(hidden), self.num_heads))
        return queries, rotation.turn(self._heads(self.k_proj(hidden), self.num_kv_heads))

    @staticmethod
    def _heads(projected: Tensor, count: int) -> Tensor:
        return projected.unflatten(-1, (count, HEAD_DIM)).transpose(1, 2)


class FeedForward(nn.Module):
    """The gated SiLU block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = FeedForward(shape)

    def forward(
        self, hidden: Tensor, rotation: Rotation, visible: Tensor, blocks: BlockMask | None = None
    ) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation, visible, blocks)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Body(nn.Module):
    """Everything between token ids and the last norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.rotary = RotaryTable(shape)
        self.guided = guided_heads(shape)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        begins: Tensor,
        targets: Tensor | None = None,
        blocks: BlockMask | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The hidden states `[rows, length, hidden_size]`, and what the guided heads look at.

        The `positions` and the `begins` of examples (see `visible_tokens`) are of the shape of
        `tokens`. Where there are `targets`, `[guided, rows, length]` in the order of
        `guided_heads`, the log of the attention paid to each comes back in that shape (see
        `Attention.log_shares`). The `blocks` are those of `begins`; without them attention is
        computed in full.
        """
        hidden, visible = self.embed_tokens(tokens), visible_tokens(begins)
        rotation, shares = self.rotary(positions), []
        for index, layer in enumerate(self.layers):
            for number, guided in enumerate(self.guided):
                if targets is not None and guided.layer == index:
                    normed, look = layer.input_layernorm(hidden), layer.self_attn.log_shares
                    shares.append(look(normed, rotation, visible, guided.head, targets[number]))
            hidden = layer(hidden, rotation, visible, blocks)
        return self.norm(hidden), torch.stack(shares) if shares else None


class Llama(nn.Module):
    """The whole model; the output matrix is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        residual_scale = (2 * shape.num_layers) ** -0.5
        for name, weights in self.named_parameters():
            if weights.ndim == 2:
                ends = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weights, std=0.02 * (residual_scale if ends else 1.0))
