"""A model's own head: found by its tensors in every layout, and its states are those of a forward
written out in NumPy, from the tensors as they are stored."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm import utils

from akunu_py.errors import InvalidRequestError, ModelLoadError
from akunu_py.machine.backend import find_backend
from akunu_py.model.cpu.network import with_fused_layers
from akunu_py.model.head_loading import load_head
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.options import ModelOptions
from tests.architectures import COMMON, config, make_network, random_tokens
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


TOKENS: Final = random_tokens(1, ROWS + 1)


def assert_computes(model: TargetModel, case: Case, head: Weights) -> None:
    """Whether a model's head has the states and the logits of NumPy, in parts and after a rollback;
    `head` are the tensors as the family stores them, not quantized."""
    assert model.head is not None
    _, hidden = trunk(model, TOKENS)
    states, normed = expected(case, head, embedding(model, TOKENS[1:]), np.array(hidden[:-1]))
    cache, parts = model.head.make_cache(32), []
    for start, stop in ((0, 6), (6, 8), (8, 9), (9, ROWS)):
        following = mx.array(TOKENS[start + 1 : stop + 1])
        parts.append(model.head(following, hidden[start:stop], cache))
    assert cache.length == ROWS
    own = mx.concatenate(parts)
    assert is_close(own, states)
    cache.rollback(7)
    assert is_close(model.head(mx.array(TOKENS[8:9]), hidden[7:8], cache), states[7:8])

    (matrix,) = (
        weight
        for path, weight in tree_flatten(model.network.parameters())
        if path.endswith("lm_head.weight")
    )
    assert is_close(model.head.logits(own), normed @ np.array(matrix).T)


@pytest.mark.parametrize("name", CASES)
def test_a_head_computes_what_its_family_defines(name: str, tmp_path: Path) -> None:
    case, head = CASES[name], random_head(CASES[name])
    folder = write_model(tmp_path / "model", case, head)
    model = load(folder)
    logits, _ = trunk(model, TOKENS)
    plain = make_network(case.family, **case.changes)(mx.array([TOKENS]))
    assert is_close(plain[0], logits)

    assert_computes(model, case, head)


def test_of_several_steps_the_first_guesses_with_its_own_output_matrix(tmp_path: Path) -> None:
    case = CASES["step3p5"]
    draw = np.random.default_rng(8)
    heads, matrices = [], []
    stored: Weights = {}
    for step in range(3):
        head = random_head(case, seed=step)
        matrix = (draw.normal(size=(COMMON["vocab_size"], SIZE)) / 5).astype(np.float32)
        heads.append(head)
        matrices.append(matrix)
        at = f"model.layers.{LAYERS + step}."
        for name, one in head.items():
            spelled = name.replace("shared_head", "transformer.shared_head")
            stored[spelled.replace(case.at, at)] = one
        stored[f"{at}transformer.shared_head.output.weight"] = matrix
    model = load(write_model(tmp_path / "model", case, stored))
    assert model.head is not None
    assert not model.head.repeats
    _, states = trunk(model, TOKENS)
    embedded, hidden = embedding(model, TOKENS[1:]), np.array(states[:-1])
    wanted, normed = expected(case, heads[0], embedded, hidden)
    found = model.head(mx.array(TOKENS[1:]), states[:-1], model.head.make_cache(32))
    assert is_close(found, wanted)
    assert is_close(model.head.logits(found), normed @ matrices[0].T)


def test_a_copy_of_the_models_output_matrix_takes_no_memory(tmp_path: Path) -> None:
    case = CASES["glm4_moe"]
    matrix = dict(tree_flatten(make_network(case.family).parameters()))["lm_head.weight"]
    copied = {f"{case.at}shared_head.head.weight": np.array(matrix)}
    sizes = []
    for index, more in enumerate(({}, copied)):
        folder = write_model(tmp_path / f"m{index}", case, random_head(case) | more)
        head = load(folder).head
        assert head is not None
        sizes.append(head.parameter_bytes)
    assert sizes[0] == sizes[1]


def test_fp8_blocks_are_dequantized(tmp_path: Path) -> None:
    case = CASES["deepseek_v3"]
    width = 144  # more than one block
    narrow = {name: one for name, one in case.shapes.items() if not name.startswith("mlp.")}
    case = replace(case, shapes=narrow | with_bias(width), changes={"moe_intermediate_size": width})
    head = random_head(case)
    stored: dict[str, Any] = dict(head)
    for name in [name for name in head if "experts" in name or "q_b_proj" in name]:
        rows, columns = (-(-size // 128) for size in head[name].shape)
        scales = 2.0 ** np.random.default_rng(1).integers(-3, 3, (rows, columns))
        by_block = np.repeat(np.repeat(scales, 128, 0), 128, 1)[
            : head[name].shape[0], : head[name].shape[1]
        ]
        stored[name] = mx.to_fp8(mx.array(head[name] / by_block))
        stored[f"{name}_scale_inv"] = scales.astype(np.float32)
        head[name] = np.array(mx.from_fp8(stored[name], dtype=mx.float32)) * by_block
    model = load(write_model(tmp_path / "model", case, stored))
    assert_computes(model, case, head)


@pytest.mark.parametrize(
    ("name", "bits", "group_size"), [("mimo", 8, 32), ("glm4_moe", 4, 32), ("nemotron_h", 8, 16)]
)
def test_a_quantized_head_stays_as_it_is_stored(
    name: str, bits: int, group_size: int, tmp_path: Path
) -> None:
    case, stored = CASES[name], dict[str, Any]()
    head = random_head(case)
    group_size = max(group_size, 32)
    for spelled, one in head.items():
        is_packed = (
            one.ndim == 2 and one.shape[1] % group_size == 0 and "gate.weight" not in spelled
        )
        if not is_packed or (name == "nemotron_h" and "experts." in spelled):
            stored[spelled] = one
            continue
        packed = mx.quantize(mx.array(one), group_size, bits)
        path = spelled.removesuffix("weight")
        stored |= zip((spelled, path + "scales", path + "biases"), packed, strict=True)
        head[spelled] = np.array(mx.dequantize(*packed, group_size, bits))
    model = load(write_model(tmp_path / "model", case, stored))
    assert_computes(model, case, head)
    assert model.head is not None
    whole = sum(one.nbytes for one in head.values())
    assert model.head.parameter_bytes < 0.8 * whole


@pytest.mark.parametrize("stored_as", ["centered", "mlx", "said to be mlx"])
def test_the_norms_of_a_side_file_have_a_sign_of_their_own(stored_as: str, tmp_path: Path) -> None:
    case = replace(CASES["qwen3_5"], in_side_file=True)
    head = random_head(case)
    metadata = {"rmsnorm_weight_format": "mlx_gamma"} if stored_as == "said to be mlx" else None
    shift = 1.0 if stored_as == "mlx" else 0.0
    stored = {name: one + shift if is_norm(name) else one for name, one in head.items()}
    model = load(write_model(tmp_path / "model", case, stored, metadata))
    assert_computes(model, replace(case, is_centered=metadata is None), head)


@pytest.mark.parametrize("key", ["mtp_hidden_state_mode", "base_hidden_variant"])
def test_the_configuration_may_ask_for_the_states_before_the_norm(key: str, tmp_path: Path) -> None:
    case = CASES["qwen3_5"]
    folder = write_model(tmp_path / "model", case, random_head(case))
    after = trunk(load(folder), TOKENS)[1]
    settings = json.loads((folder / "config.json").read_text())
    settings["text_config"][key] = "pre_norm"
    (folder / "config.json").write_text(json.dumps(settings))
    model = load(folder)
    before = np.array(trunk(model, TOKENS)[1])
    weight = dict(tree_flatten(model.network.parameters()))["language_model.model.norm.weight"]
    assert is_close(after, rms(before, np.array(weight)))
    assert_computes(model, case, random_head(case))


@pytest.mark.parametrize(
    ("name", "pads"),
    [
        *((name, pads) for name in ("llama", "qwen3_5", "nemotron_h") for pads in (False, True)),
        ("step3p5", False),  # windows are not padded
        ("glm4_moe_lite", True),  # latent attention is always padded
    ],
)
def test_batched_rows_have_the_hidden_states_of_single_forwards(
    name: str, pads: bool, tmp_path: Path
) -> None:
    case = CASES[name]
    model = load(write_model(tmp_path / "model", case, random_head(case)))
    texts = [random_tokens(seed, 12) for seed in range(3)]
    counts, wanted, caches = (2, 1, 3), [], []
    for text, count in zip(texts, counts, strict=True):
        single, cache = model.make_cache(32), model.make_cache(32)
        model.append(mx.array(text[:8]), single)
        model.append(mx.array(text[:8]), cache)
        model.forward(mx.array(text[8 : 8 + count]), single)
        wanted.append(model.take_hidden())
        caches.append(cache)
    model.pads_batches = pads
    rows = [
        token for text, count in zip(texts, counts, strict=True) for token in text[8 : 8 + count]
    ]
    logits = model.forward_batch(mx.array(rows), caches, counts)
    hidden = model.take_hidden()
    assert hidden.shape == (len(rows), SIZE)
    assert logits.shape[0] == len(rows)
    assert is_close(hidden, np.concatenate([np.array(one) for one in wanted]))


def test_hidden_states_are_taken_once_and_belong_to_the_last_forward(tmp_path: Path) -> None:
    case = CASES["llama"]
    model = load(write_model(tmp_path / "model", case, random_head(case)))
    cache = model.make_cache(32)
    model.forward(mx.array(TOKENS[:4]), cache)
    model.append(mx.array(TOKENS[4:5]), cache)
    assert model.take_hidden().shape == (1, SIZE)
    with pytest.raises(ValueError, match="they were taken"):
        model.take_hidden()


def without_a_layer(head: Weights) -> Weights:
    return {name: one for name, one in head.items() if "q_proj" not in name}


def with_wrong_sizes(head: Weights) -> Weights:
    return {name: one[:7] if "fc" in name else one for name, one in head.items()}


def with_scales_of_nothing(head: Weights) -> Weights:
    return head | {"mtp.norm.weight_scale_inv": np.ones(1)}


@pytest.mark.parametrize("damage", [without_a_layer, with_wrong_sizes, with_scales_of_nothing])
def test_a_head_that_does_not_fit_is_one_sentence(
    damage: Callable[[Weights], Weights], tmp_path: Path, tiny_model_dir: Path
) -> None:
    damaged = {name: mx.array(one) for name, one in damage(random_head(CASES["llama"])).items()}
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_dir, folder)
    mx.save_safetensors(str(folder / "mtp.safetensors"), damaged)
    backend = find_backend()
    model = load_target(str(folder), backend)
    assert model.head is None
    assert model.why_no_head is not None
    assert "does not fit the model" in model.why_no_head
    assert "\n" not in model.why_no_head
    with pytest.raises(ModelLoadError, match="does not fit the model"):
        load_target(ModelOptions(str(tiny_model_dir), mtp=str(folder)), backend)
    assert load_target(ModelOptions(str(folder), no_mtp=True), backend).why_no_head is None


def test_an_unreadable_head_is_one_sentence(tmp_path: Path, tiny_model_dir: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_dir, folder)
    (folder / "mtp.safetensors").write_bytes(b"no tensors")
    model = load_target(str(folder), find_backend())
    assert model.head is None
    assert model.why_no_head is not None
    assert "cannot be read" in model.why_no_head


def test_a_model_without_a_head_loads_as_before(tiny_model_dir: Path, tmp_path: Path) -> None:
    backend = find_backend()
    model = load_target(str(tiny_model_dir), backend)
    assert (model.head, model.why_no_head) == (None, None)
    with pytest.raises(ValueError, match="no head is loaded"):
        model.take_hidden()
    for asked, why in ((tiny_model_dir, "has no head"), (tmp_path / "absent", "no folder")):
        with pytest.raises(ModelLoadError, match=why):
            load_target(ModelOptions(str(tiny_model_dir), mtp=str(asked)), backend)
    with pytest.raises(InvalidRequestError, match="omit one"):
        ModelOptions(mtp="a", no_mtp=True)


@pytest.mark.parametrize("file", ["model.safetensors", "mtp/weights.safetensors"])
@pytest.mark.parametrize("prefix", ["mtp.", ""])
def test_a_head_may_be_in_a_folder_of_its_own(file: str, prefix: str, tmp_path: Path) -> None:
    case = CASES["qwen3_5"]
    folder, other = write_model(tmp_path / "model", case, {}), tmp_path / "head"
    assert load(folder).head is None
    head = random_head(case)
    stored = {name.replace("mtp.", prefix): mx.array(one) for name, one in head.items()}
    (other / file).parent.mkdir(parents=True)
    mx.save_safetensors(str(other / file), stored)
    assert_computes(load(folder, other), case, head)


def test_of_a_model_on_the_hub_only_the_shards_of_the_head_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub  # noqa: PLC0415

    case = CASES["qwen3_5"]
    folder, hub = write_model(tmp_path / "model", case, {}), tmp_path / "hub"
    hub.mkdir()
    head = random_head(case)
    shard = "model-00003-of-00003.safetensors"
    mx.save_safetensors(str(hub / shard), {name: mx.array(one) for name, one in head.items()})
    names = {"lm_head.weight": "model-00001-of-00003.safetensors"} | dict.fromkeys(head, shard)
    (hub / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    fetched: list[str] = []

    def snapshot(_: str, *, allow_patterns: list[str]) -> str:
        fetched.extend(allow_patterns)
        return str(hub)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert_computes(load(folder, Path("owner/name")), case, head)
    assert [name for name in fetched if name.startswith("model-")] == [shard]
    assert not any("*.safetensors" in name for name in fetched)


def test_the_bundled_model_brings_a_head() -> None:
    model = load_target("ember", find_backend())
    assert model.head is not None
    assert model.head.describe.startswith("Qwen's layout, 1 layer, ")
