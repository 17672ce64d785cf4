"""Tiny heads of every layout: their tensors as a checkpoint has them, and their forward written out
in NumPy."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm import utils

from akunu_py.model.cpu import with_fused_layers
from akunu_py.model.head_loading import load_head
from akunu_py.model.target_model import TargetModel
from tests.architectures import COMMON, config, make_network
from tests.tiny_model import write_tokenizer

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]

SIZE, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, WIDE, NARROW = 32, 4, 2, 8, 4, 48, 16
LAYERS: Final = COMMON["num_hidden_layers"]
WINDOW: Final = 8
ROWS: Final = 10
EPS: Final = 1e-5


def rms(x: Array, weight: Array, eps: float = EPS) -> Array:
    normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return normed


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def rotated(x: Array, dims: int, base: float, traditional: bool) -> Array:
    """Rotary positions of `[rows, heads, dim]`; pairs are neighbours if traditional."""
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(dims // 2) * 2 / dims)
    cosines, sines = np.cos(angles)[:, None], np.sin(angles)[:, None]
    out = x.copy()
    first = slice(0, dims, 2) if traditional else slice(0, dims // 2)
    second = slice(1, dims, 2) if traditional else slice(dims // 2, dims)
    out[..., first] = x[..., first] * cosines - x[..., second] * sines
    out[..., second] = x[..., first] * sines + x[..., second] * cosines
    return out


def attended(q: Array, k: Array, v: Array, window: int | None = None) -> Array:
    """Causal attention of `[rows, heads, dim]`, with keys for groups of heads."""
    k, v = (np.repeat(one, q.shape[1] // one.shape[1], axis=1) for one in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
    distance = np.arange(len(q))[:, None] - np.arange(len(q))
    visible = (distance >= 0) & (distance < (window or len(q)))
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out: Array = np.einsum("hij,jhd->ihd", weights, v).reshape(len(q), -1)
    return out


def grouped_attention(
    x: Array, w: Weights, at: str = "self_attn", *, dims: int = HEAD_DIM, base: float = 1e4,
    traditional: bool = False, gate: str | None = None, window: int | None = None,
) -> Array:  # fmt: skip
    q, k, v = (x @ w[f"{at}.{name}_proj.weight"].T for name in "qkv")
    if f"{at}.q_proj.bias" in w:
        q, k, v = (
            one + w[f"{at}.{name}_proj.bias"] for one, name in zip((q, k, v), "qkv", strict=True)
        )
    q = q.reshape(len(x), HEADS, -1)
    k, v = (one.reshape(len(x), KV_HEADS, -1) for one in (k, v))
    gates = np.ones_like(q)
    if gate == "halves":
        q, gates = np.split(q, 2, axis=-1)
        gates = sigmoid(gates)
    elif gate == "heads":
        gates = sigmoid(x @ w[f"{at}.g_proj.weight"].T)[..., None] * gates
    if f"{at}.q_norm.weight" in w:
        q, k = rms(q, w[f"{at}.q_norm.weight"]), rms(k, w[f"{at}.k_norm.weight"])
    if dims:
        q, k = (rotated(one, dims, base, traditional) for one in (q, k))
    mixed = attended(q, k, v, window) * gates.reshape(len(x), -1)
    return mixed @ w[f"{at}.o_proj.weight"].T


def latent_attention(x: Array, w: Weights, *, eps: float) -> Array:
    """DeepSeek's, with `kv_b_proj` as it is stored."""
    low = rms(x @ w["self_attn.q_a_proj.weight"].T, w["self_attn.q_a_layernorm.weight"], eps)
    q = (low @ w["self_attn.q_b_proj.weight"].T).reshape(len(x), HEADS, 16)
    latent, shared = np.split(x @ w["self_attn.kv_a_proj_with_mqa.weight"].T, [16], axis=-1)
    latent = rms(latent, w["self_attn.kv_a_layernorm.weight"], eps)
    kv = (latent @ w["self_attn.kv_b_proj.weight"].T).reshape(len(x), HEADS, 16)
    shared = np.repeat(rotated(shared[:, None], 8, 1e4, True), HEADS, axis=1)
    q = np.concatenate([q[..., :8], rotated(q[..., 8:], 8, 1e4, True)], axis=-1)
    mixed = attended(q, np.concatenate([kv[..., :8], shared], axis=-1), kv[..., 8:])
    out: Array = mixed @ w["self_attn.o_proj.weight"].T
    return out


def feed_forward(x: Array, w: Weights, at: str = "mlp") -> Array:
    gate, up = x @ w[f"{at}.gate_proj.weight"].T, x @ w[f"{at}.up_proj.weight"].T
    out: Array = (gate * sigmoid(gate) * up) @ w[f"{at}.down_proj.weight"].T
    return out


def squared(x: Array, w: Weights, at: str) -> Array:
    up = np.maximum(x @ w[f"{at}.up_proj.weight"].T, 0)
    out: Array = (up * up) @ w[f"{at}.down_proj.weight"].T
    return out


def experts(
    x: Array, w: Weights, at: str, shares: Array, *, bias: Array | float = 0.0,
    one: Callable[[Array, Weights, str], Array] = feed_forward,
) -> Array:  # fmt: skip
    """The two experts with the largest shares and biases, by their shares, which are made to add
    up to one."""
    out = np.zeros_like(x)
    for row in range(len(x)):
        chosen = np.argsort(-(shares[row] + bias))[:2]
        total = shares[row, chosen].sum()
        for expert in chosen:
            part = one(x[row : row + 1], w, f"{at}.experts.{expert}")[0]
            out[row] += shares[row, expert] / total * part
    return out


def softmax_experts(x: Array, w: Weights) -> Array:
    gates = np.exp(x @ w["mlp.gate.weight"].T)
    return experts(x, w, "mlp", gates / gates.sum(-1, keepdims=True))


def qwen_experts(x: Array, w: Weights) -> Array:
    w = dict(w)
    if "mlp.experts.gate_up_proj" in w:
        for expert in range(EXPERTS):
            gate, up = np.split(w["mlp.experts.gate_up_proj"][expert], 2)
            at = f"mlp.experts.{expert}"
            w |= {f"{at}.gate_proj.weight": gate, f"{at}.up_proj.weight": up}
            w[f"{at}.down_proj.weight"] = w["mlp.experts.down_proj"][expert]
    shared = sigmoid(x @ w["mlp.shared_expert_gate.weight"].T)
    mixed: Array = softmax_experts(x, w) + shared * feed_forward(x, w, "mlp.shared_expert")
    return mixed


def sigmoid_experts(
    x: Array, w: Weights, at: str = "mlp",
    one: Callable[[Array, Weights, str], Array] = feed_forward,
) -> Array:  # fmt: skip
    scores = sigmoid(x @ w[f"{at}.gate.weight"].T)
    bias = w[f"{at}.gate.e_score_correction_bias"]
    return experts(x, w, at, scores, bias=bias, one=one) + one(x, w, f"{at}.shared_experts")


def block(attend: Callable[..., Array], feed: Callable[..., Array]) -> Callable[..., Array]:
    """A layer with two residual connections."""

    def computed(x: Array, w: Weights) -> Array:
        x = x + attend(rms(x, w["input_layernorm.weight"]), w)
        return x + feed(rms(x, w["post_attention_layernorm.weight"]), w)

    return computed


def nemotron_layers(x: Array, w: Weights) -> Array:
    x = x + grouped_attention(rms(x, w["0.norm.weight"]), w, "0.mixer", dims=0)
    return x + sigmoid_experts(rms(x, w["1.norm.weight"]), w, "1.mixer", squared)


def linear(name: str, outputs: int, inputs: int = SIZE) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs)}


def gated(at: str, width: int) -> dict[str, tuple[int, ...]]:
    down = linear(f"{at}.down_proj", SIZE, width)
    return linear(f"{at}.gate_proj", width) | linear(f"{at}.up_proj", width) | down


def projections(at: str = "self_attn", queries: int = HEADS) -> dict[str, tuple[int, ...]]:
    shapes = linear(f"{at}.q_proj", queries * HEAD_DIM) | linear(
        f"{at}.k_proj", KV_HEADS * HEAD_DIM
    )
    return shapes | linear(f"{at}.v_proj", KV_HEADS * HEAD_DIM) | linear(f"{at}.o_proj", SIZE)


NORMS: Final = {"input_layernorm.weight": (SIZE,), "post_attention_layernorm.weight": (SIZE,)}
QK_NORMS: Final = {f"self_attn.{one}_norm.weight": (HEAD_DIM,) for one in "qk"}
LATENT: Final = (
    linear("self_attn.q_a_proj", 16)
    | linear("self_attn.q_b_proj", HEADS * 16, 16)
    | linear("self_attn.kv_a_proj_with_mqa", 24)
    | linear("self_attn.kv_b_proj", HEADS * 16, 16)
    | linear("self_attn.o_proj", SIZE)
    | {f"self_attn.{one}_a_layernorm.weight": (16,) for one in ("q", "kv")}
)
INDEXER: Final = (
    linear("self_attn.indexer.wq_b", 32, 16)
    | linear("self_attn.indexer.wk", 16)
    | linear("self_attn.indexer.weights_proj", 2)
    | {f"self_attn.indexer.k_norm.{one}": (16,) for one in ("weight", "bias")}
)


def some_experts(at: str = "mlp", width: int = NARROW) -> dict[str, tuple[int, ...]]:
    shapes = linear(f"{at}.gate", EXPERTS)
    for expert in range(EXPERTS):
        shapes |= gated(f"{at}.experts.{expert}", width)
    return shapes


def with_bias(width: int = NARROW) -> dict[str, tuple[int, ...]]:
    shared = gated("mlp.shared_experts", width)
    return some_experts(width=width) | shared | {"mlp.gate.e_score_correction_bias": (EXPERTS,)}


QWEN_SHARED: Final = gated("mlp.shared_expert", NARROW) | linear("mlp.shared_expert_gate", 1)
NEMOTRON: Final = {
    **{f"{layer}.norm.weight": (SIZE,) for layer in (0, 1)},
    **projections("0.mixer"),
    **{
        name: shape
        for name, shape in (
            some_experts("1.mixer") | gated("1.mixer.shared_experts", NARROW)
        ).items()
        if "gate_proj" not in name
    },
    "1.mixer.gate.e_score_correction_bias": (EXPERTS,),
}


@dataclass(frozen=True)
class Case:
    """A family: its configuration, the layer of its head, and how the head's parts are called."""

    family: str
    shapes: dict[str, tuple[int, ...]]
    layer: Callable[[Array, Weights], Array]
    embedding_norm: str
    hidden_norm: str
    projection: str
    at: str
    norm: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    hidden_first: bool = False
    passes_normed: bool = True
    is_centered: bool = False
    in_side_file: bool = False


def qwen(family: str, shapes: Any, layer: Any, **more: Any) -> Case:
    parts = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.layers.0.")
    return Case(family, shapes, layer, *parts, norm="mtp.norm", **more)


def deepseek(family: str, shapes: Any, layer: Any, **more: Any) -> Case:
    at = f"model.layers.{LAYERS}."
    parts = (at + "enorm", at + "hnorm", at + "eh_proj", at)
    norm = at + "shared_head.norm"
    return Case(family, shapes, layer, *parts, norm=norm, passes_normed=False, **more)


def halves(dims: int, base: float) -> Callable[[Array, Weights], Array]:
    return lambda x, w: grouped_attention(x, w, dims=dims, base=base, gate="halves")


GATED: Final = projections() | linear("self_attn.q_proj", 2 * HEADS * HEAD_DIM) | QK_NORMS | NORMS
STEP: Final = projections() | linear("self_attn.g_proj", HEADS) | QK_NORMS | NORMS
CASES: Final = {
    "llama": qwen(
        "llama", projections() | NORMS | gated("mlp", WIDE), block(grouped_attention, feed_forward),
        in_side_file=True, changes={"layer_types": None},
    ),
    "qwen3_5": qwen(
        "qwen3_5", GATED | gated("mlp", WIDE), block(halves(2, 1e5), feed_forward), is_centered=True
    ),
    "qwen3_5_moe": qwen(
        "qwen3_5_moe",
        GATED | QWEN_SHARED | linear("mlp.gate", EXPERTS) | {
            "mlp.experts.gate_up_proj": (EXPERTS, 2 * NARROW, SIZE),
            "mlp.experts.down_proj": (EXPERTS, SIZE, NARROW),
        },
        block(halves(2, 1e5), qwen_experts), is_centered=True,
    ),
    "qwen3_next": qwen(
        "qwen3_next", GATED | QWEN_SHARED | some_experts(), block(halves(4, 1e4), qwen_experts),
        is_centered=True,
    ),
    "deepseek_v3": deepseek(
        "deepseek_v3", LATENT | NORMS | with_bias(),
        block(lambda x, w: latent_attention(x, w, eps=1e-6), sigmoid_experts), in_side_file=True,
    ),
    "deepseek_v32": deepseek(
        "deepseek_v32", LATENT | INDEXER | NORMS | with_bias(),
        block(lambda x, w: latent_attention(x, w, eps=1e-6), sigmoid_experts),
        changes={"index_topk": 64},
    ),
    "glm4_moe": deepseek(
        "glm4_moe", projections() | QK_NORMS | NORMS | with_bias(),
        block(lambda x, w: grouped_attention(x, w, dims=4), sigmoid_experts),
    ),
    "glm4_moe_lite": deepseek(
        "glm4_moe_lite", LATENT | NORMS | with_bias(),
        block(lambda x, w: latent_attention(x, w, eps=1e-5), sigmoid_experts),
    ),
    "step3p5": deepseek(
        "step3p5", STEP | gated("mlp", WIDE),
        block(lambda x, w: grouped_attention(x, w, gate="heads", window=WINDOW), feed_forward),
        changes={"layer_types": [*COMMON["layer_types"], *3 * ["sliding_attention"]]},
        is_centered=True,
    ),
    "mimo": Case(
        "mimo",
        projections() | NORMS | gated("mlp", WIDE) | {
            f"self_attn.{name}_proj.bias": (heads * HEAD_DIM,)
            for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        },
        block(grouped_attention, feed_forward),
        "model.mtp_layers.0.token_layernorm", "model.mtp_layers.0.hidden_layernorm",
        "model.mtp_layers.0.input_proj", "model.mtp_layers.0.",
        "model.mtp_layers.0.final_layernorm",
        hidden_first=True,
    ),
    "ernie4_5_moe": Case(
        "ernie4_5_moe", projections() | NORMS | gated("mlp", WIDE),
        block(lambda x, w: grouped_attention(x, w, traditional=True), feed_forward),
        "model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", "model.mtp_linear_proj.0",
        "model.mtp_block.0.",
    ),
    "nemotron_h": Case(
        "nemotron_h", NEMOTRON, nemotron_layers, "mtp.layers.0.enorm", "mtp.layers.0.hnorm",
        "mtp.layers.0.eh_proj", "mtp.layers.", "mtp.layers.1.final_layernorm",
    ),
}  # fmt: skip


def is_norm(name: str) -> bool:
    return "norm" in name and name.endswith(".weight")


def random_head(case: Case, seed: int = 3) -> Weights:
    """The tensors of a head as the family stores them."""
    draw = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {case.at + name: one for name, one in case.shapes.items()}
    norms = [case.embedding_norm, case.hidden_norm, *([case.norm] if case.norm else [])]
    shapes |= {f"{name}.weight": (SIZE,) for name in norms}
    shapes |= linear(case.projection, SIZE, 2 * SIZE)
    weights = {}
    for name, shape in shapes.items():
        spread = 1.5 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.2
        centre = 1.0 if is_norm(name) and not case.is_centered else 0.0
        weights[name] = (centre + spread * draw.normal(size=shape)).astype(np.float32)
    return weights


def expected(case: Case, head: Weights, embedded: Array, hidden: Array) -> tuple[Array, Array]:
    """The head's states, and what its logits are read from."""
    if case.is_centered:
        head = {name: one + 1 if is_norm(name) else one for name, one in head.items()}
    parts = [
        rms(embedded, head[f"{case.embedding_norm}.weight"]),
        rms(hidden, head[f"{case.hidden_norm}.weight"]),
    ]
    joined = np.concatenate(parts[::-1] if case.hidden_first else parts, axis=-1)
    layer = {name.removeprefix(case.at): one for name, one in head.items()}
    states = case.layer(joined @ head[f"{case.projection}.weight"].T, layer)
    normed = rms(states, head[f"{case.norm}.weight"]) if case.norm else states
    return (normed if case.passes_normed else states), normed


def raw_trunk(case: Case, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """The weights of Qwen's networks as Qwen stores them; those of others as mlx-lm does."""
    if not case.family.startswith("qwen"):
        return weights
    raw = dict[str, mx.array]()
    for name, one in weights.items():
        spelled = name.replace("language_model.model", "model.language_model")
        at, is_expert, part = spelled.partition(".switch_mlp.")
        if is_expert and case.family == "qwen3_next":
            raw |= {f"{at}.experts.{index}.{part}": one[index] for index in range(EXPERTS)}
        elif spelled.endswith("conv1d.weight"):
            raw[spelled] = one.moveaxis(2, 1)
        else:
            is_shifted = is_norm(spelled) and "linear_attn" not in spelled
            raw[spelled] = one - 1 if is_shifted else one
    return raw


def write_model(
    folder: Path, case: Case, head: dict[str, Any], metadata: dict[str, str] | None = None
) -> Path:
    folder.mkdir()
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config(case.family, **case.changes)))
    network = make_network(case.family, **case.changes)
    trunk = raw_trunk(case, dict(tree_flatten(network.parameters())))
    stored = {name: mx.array(one) for name, one in head.items()}
    if case.in_side_file:
        mx.save_safetensors(str(folder / "mtp.safetensors"), stored, metadata or {})
    else:
        trunk |= stored
    mx.save_safetensors(str(folder / "model.safetensors"), trunk)
    return folder


def load(folder: Path, asked: Path | None = None) -> TargetModel:
    """The model and its head, without a tokenizer: tiny configurations are none that transformers
    accepts."""
    network, settings = utils.load_model(folder)
    network = with_fused_layers(network)
    place = None if asked is None else str(asked)
    head = load_head(network, settings, folder, place, with_fused_layers)
    return TargetModel(
        network,
        None,  # type: ignore[arg-type]
        settings,
        name="tiny",
        layout="dense",
        head=head,
    )


def trunk(model: TargetModel, tokens: list[int]) -> tuple[Array, mx.array]:
    logits = model.forward(mx.array(tokens), model.make_cache(64))
    return np.array(logits), model.take_hidden()


def embedding(model: TargetModel, tokens: list[int]) -> Array:
    (rows,) = (
        weight
        for name, weight in tree_flatten(model.network.parameters())
        if name.endswith(("embed_tokens.weight", "embeddings.weight"))
    )
    return np.array(rows[mx.array(tokens)])


def is_close(own: mx.array, wanted: Array) -> bool:
    return bool(np.allclose(np.array(own), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max()))
