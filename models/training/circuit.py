"""A start for the weights that can already copy.

Copying in a transformer takes two attention layers (Olsson et al. 2022, "In-context learning
and induction heads"): heads of the first tell each position which tokens came before it, and
heads of the second look for positions whose past looks like the present, and repeat what stands
there. Found from random weights, that takes a good part of a small training budget; here it is
written down, and training refines it. Untrained, it gets 82% of the tokens of held-out edits.

The stream is laid out for it: dimension 0 is the same for every token, so that heads can attend
by position alone; the rest of the lower half holds the token, and the upper half a short code of
each of the last four tokens.
"""

# mypy: allow-untyped-decorators
# PyTorch is not installed where types are checked, so its classes are unknown there.
from __future__ import annotations

import torch
from torch import Tensor, nn

from models.training.model import HEAD_DIM, Llama

# The stream is an order of magnitude larger than usual, so that the steps of the optimizer are
# small against what is written here; the last norm makes up for it.
BIAS_DIMENSION, BIAS_VALUE = 0, 1.2
EMBEDDING_STD, QUIET, LAST_NORM = 0.3, 0.2, 0.2
OFFSETS = 4
POSITION_GAIN, CODE_GAIN, MATCH_GAIN, COPY_GAIN = 1.8, 0.4, 2.5, 2.0
FAST_FREQUENCIES = 12
# How many of an induction head's slots compare the present token, the one before it, and so on.
SLOTS_BY_OFFSET = (16, 11, 5)


def _rows(head: int) -> slice:
    return slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)


@torch.no_grad()
def write_copying_circuit(model: Llama) -> None:
    """Lay out the embedding, then write heads into layers 0 and 1; needs two layers."""
    half = model.shape.hidden_size // 2
    embedding = model.model.embed_tokens.weight
    embedding.normal_(std=EMBEDDING_STD)
    embedding[:, half:] *= QUIET
    embedding[:, BIAS_DIMENSION] = BIAS_VALUE
    model.model.norm.weight.fill_(LAST_NORM)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight *= QUIET
        layer.mlp.down_proj.weight *= QUIET
    code_size = half // OFFSETS
    _write_past_heads(model, half, code_size)
    _write_induction_heads(model.model.layers[1].self_attn, half, code_size)


def _write_past_heads(model: Llama, half: int, code_size: int) -> None:
    """Head `h` of layer 0 attends `h` positions back and writes that token's code."""
    shape, attention = model.shape, model.model.layers[0].self_attn
    group = shape.num_heads // shape.num_kv_heads
    code = torch.zeros(code_size, shape.hidden_size)
    code[:, 1:half] = torch.linalg.qr(torch.randn(half - 1, code_size)).Q.T
    frequencies = shape.rope_theta ** -(torch.arange(FAST_FREQUENCIES) / (HEAD_DIM // 2))
    gains = POSITION_GAIN * torch.linspace(1.5, 0.5, FAST_FREQUENCIES)
    cosines = slice(0, FAST_FREQUENCIES)
    sines = slice(HEAD_DIM // 2, HEAD_DIM // 2 + FAST_FREQUENCIES)
    key, value = (torch.zeros(HEAD_DIM, shape.hidden_size) for _ in range(2))
    key[cosines, BIAS_DIMENSION] = gains
    value[:code_size] = code
    for kv_head in range(shape.num_kv_heads):
        attention.k_proj.weight[_rows(kv_head)] = key
        attention.v_proj.weight[_rows(kv_head)] = value
    for head in range(min(OFFSETS, shape.num_kv_heads * group)):
        query = torch.zeros_like(key)
        query[cosines, BIAS_DIMENSION] = gains * (frequencies * head).cos()
        query[sines, BIAS_DIMENSION] = -gains * (frequencies * head).sin()
        written = torch.zeros(shape.hidden_size, HEAD_DIM)
        start = half + head * code_size
        written[start : start + code_size, :code_size] = CODE_GAIN * torch.eye(code_size)
        attention.q_proj.weight[_rows(head)] = query
        attention.o_proj.weight[:, _rows(head)] = written


def _write_induction_heads(attention: nn.Module, half: int, code_size: int) -> None:
    """One head a key-value head: present tokens against the pasts of all earlier positions.

    Only the slots that the rotary embedding turns slowly are used, so that a match counts alike
    at any distance. Each head copies its share of the lower half.
    """
    width, slots = 2 * half, _slow_slots(sum(SLOTS_BY_OFFSET))
    group = attention.num_heads // attention.num_kv_heads
    for kv_head in range(attention.num_kv_heads):
        query, key = (torch.zeros(HEAD_DIM, width) for _ in range(2))
        slot = iter(slots)
        for offset, count in enumerate(SLOTS_BY_OFFSET):
            for index in range(count):
                at, bit = next(slot), (kv_head * SLOTS_BY_OFFSET[0] + index) % code_size
                query[at, half + offset * code_size + bit] = MATCH_GAIN
                key[at, half + (offset + 1) * code_size + bit] = MATCH_GAIN
        copied = _share(kv_head, width)
        attention.q_proj.weight[_rows(kv_head * group)] = query
        attention.k_proj.weight[_rows(kv_head)] = key
        attention.v_proj.weight[_rows(kv_head)] = COPY_GAIN * copied
        attention.o_proj.weight[:, _rows(kv_head * group)] = COPY_GAIN * copied.T


def _slow_slots(count: int) -> list[int]:
    """The `count` slots with the lowest frequencies; a frequency turns a pair of slots."""
    lowest = range(HEAD_DIM // 2 - count // 2, HEAD_DIM // 2)
    return [*lowest, *(slot + HEAD_DIM // 2 for slot in lowest)]


def _share(kv_head: int, width: int) -> Tensor:
    """The identity on the dimensions `[64 h, 64 h + 64)` of the stream, without the bias."""
    copied = torch.zeros(HEAD_DIM, width)
    copied[:, _rows(kv_head)] = torch.eye(HEAD_DIM)
    copied[:, BIAS_DIMENSION] = 0.0
    return copied
