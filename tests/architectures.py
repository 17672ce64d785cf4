"""A tiny network of every architecture that the installed mlx-lm has.

`names()` lists the architectures, `make_network(name)` makes one with random weights: two layers
of 32 channels, with every kind of layer that the architecture mixes, windows and chunks of 8
tokens, 4 experts. `REFUSED` names those that cannot run here, with the reason.

A configuration is `COMMON`, from which each `ModelArgs.from_dict` takes the names it knows, and the
architecture's own entries in `OWN`.
"""

import math
import pkgutil
from copy import deepcopy
from dataclasses import fields
from importlib import import_module
from random import Random
from typing import Any, Final

import mlx.core as mx
import mlx_lm.models
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.bitlinear_layers import BitLinear
from mlx_lm.models.cache import CacheList, make_prompt_cache

from akunu_py.model.target_model import TargetModel
from akunu_py.text.tokenizer import Tokenizer

Config = dict[str, Any]

VOCABULARY: Final = 128
WINDOW: Final = 8
"""The size of every window and every chunk of attention, in tokens."""

REFUSED: Final = {
    "muse_spark": "Its layers are fused Metal kernels, and mlx-lm has no other form of them.",
    "olmo": "It needs the package ai2-olmo, and adds the mask's name to its scores: mlx-lm itself "
    "fails on every prompt of two tokens.",
}
"""Architectures that cannot run here, and why."""

UNLIKE_ITSELF: Final = {
    "phi3small": "In mlx-lm, a token sees later tokens of the same forward pass: the boolean mask "
    "is added to the scores of its block-sparse layers. So nothing is drafted.",
    "plamo3": "In mlx-lm, its windows hold one token more in a forward pass over several tokens "
    "than in a step. Here they always hold as many as in a step: drafts change nothing, but an "
    "answer to a long prompt may differ from mlx-lm's.",
}
"""Architectures whose forward over several tokens is not what single steps compute, and why."""

IN_TURNS: Final = (
    "afm7", "baichuan_m1", "deepseek_v32", "deepseek_v41", "gemma2", "glm_moe_dsa", "gpt_bigcode",
    "iquestloopcoder", "jamba", "llama4", "longcat_flash_ngram", "mamba", "minimax_m3_vl",
    "phi3small", "recurrent_gemma", "rwkv7",
)  # fmt: skip
"""Architectures whose sequences cannot share forwards: they have a recurrence of their own, or an
attention of their own, or one that chooses its keys."""

# fmt: off
WINDOWED = ["sliding_attention", "full_attention"]
HYBRID = ["linear_attention", "full_attention"]
COMMON: Final[Config] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 1024, "tie_word_embeddings": False,
    "rope_theta": 10000.0, "rope_scaling": None, "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "norm_eps": 1e-5,
    "norm_epsilon": 1e-5, "layernorm_epsilon": 1e-5,
    "attention_bias": False, "mlp_bias": False, "use_bias": False, "use_qkv_bias": False,
    "use_qk_norm": True, "qk_norm": True, "post_norm": False,
    # The same sizes as GPT-2, OLMo and others spell them.
    "n_embd": 32, "n_head": 4, "n_layer": 2, "n_inner": 48, "n_ctx": 1024, "n_positions": 1024,
    "d_model": 32, "n_layers": 2, "n_heads": 4, "mlp_hidden_size": 96, "embedding_size": 128,
    "hidden_dim": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
    # Every other layer sees a window.
    "layer_types": WINDOWED,
    "sliding_window": WINDOW, "sliding_window_pattern": 2, "window_size": WINDOW,
    # Mixtures of experts.
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_topk": 2,
    "n_shared_experts": 1, "num_shared_experts": 1, "moe_intermediate_size": 16,
    "shared_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16, "norm_topk_prob": True,
    "first_k_dense_replace": 1, "num_dense_layers": 1, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "moe_layer_freq": 1, "n_group": 1, "topk_group": 1,
    "routed_scaling_factor": 1.0, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "score_function": "sigmoid",
    # Multi-head latent attention.
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8,
    # Gated delta and Mamba.
    "full_attention_interval": 2, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
    "layer_group_size": 2, "group_norm_size": 2, "conv_kernel": 4, "conv_bias": True,
    "use_conv_bias": True, "n_groups": 1, "state_size": 8, "time_step_rank": 4, "conv_L_cache": 3,
    # Multipliers.
    "logits_scaling": 1.0, "attention_multiplier": 0.35, "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0, "dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 1.0,
    "logit_scale": 1.0, "output_multiplier": 1.0,
}
YARN: Config = {
    "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 10000.0,
}
BY_KIND: Config = {
    "sliding_attention": {"rope_theta": 10000.0}, "full_attention": {"rope_theta": 100000.0},
}
KDA: Config = {
    "num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4, "kda_layers": [1],
    "full_attn_layers": [2],
}
MAMBA: Config = {
    "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_ssm": 32, "mamba_d_state": 8,
    "mamba_d_conv": 4, "mamba_n_groups": 1, "mamba_expand": 2, "mamba_proj_bias": False,
    "mamba_conv_bias": True,
}


def text(**own: Any) -> Config:
    return {"text_config": COMMON | own}


LLAMA4: Config = {
    "attention_chunk_size": WINDOW, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 48,
    "num_experts_per_tok": 1, "floor_scale": 16, "model_type": "llama4_text",
    "num_hidden_layers": 4,
}
LONGCAT: Config = {
    "attention_method": "MLA", "zero_expert_type": "identity", "ffn_hidden_size": 48,
    "expert_ffn_hidden_size": 16, "zero_expert_num": 2, "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}
GEMMA3N: Config = {
    "model_type": "gemma3n_text", "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 128,
    "rope_local_base_freq": 10000.0, "final_logit_softcapping": 30.0,
    "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0, 0.0], "hidden_size_per_layer_input": 8,
    "altup_num_inputs": 2, "altup_coef_clip": 120.0, "altup_correct_scale": True,
    "altup_active_idx": 0, "laurel_rank": 8, "num_hidden_layers": 5,
    "layer_types": [*WINDOWED * 2, "sliding_attention"],
}
GEMMA4: Config = {
    "model_type": "gemma4_text", "global_head_dim": 16, "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY,
    "num_hidden_layers": 4, "layer_types": WINDOWED * 2,
}
MINIMAX_M3: Config = {
    "index_head_dim": 8, "index_block_size": 4, "index_topk_blocks": 2, "rotary_dim": 4,
    "dense_intermediate_size": 48, "mlp_layer_types": ["dense", "sparse"],
}
LFM2: Config = {
    "full_attn_idxs": [1], "block_dim": 32, "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False, "layer_types": None,
}
OWN: dict[str, Config] = {
    "afm7": {"num_layers": 4, "num_kv_reuse_layers": 2},
    "baichuan_m1": {"sliding_window_layers": [0], "conv_window": 2},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek_v2": {"rope_scaling": YARN},
    "deepseek_v41": {
        "num_hidden_layers": 4, "head_dim": 32, "o_groups": 2, "o_lora_rank": 16,
        "compress_ratios": [0, 4, 4, 4], "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3], "index_head_dim": 32,
        "candidate_source_layer_id": 1, "candidate_topk_blocks": 2, "candidate_block_size": 2,
        "hc_mult": 2, "hc_sinkhorn_iters": 3,
    },
    "ernie4_5_moe": {"moe_k": 2},
    "exaone4": {"sliding_window_pattern": "LG"},
    "exaone_moe": {"is_moe_layer": [False, True]},
    "falcon_h1": MAMBA,
    "gear": {"num_hidden_layers": 3, "layer_types": ["conv_mixer", *WINDOWED]},
    "gemma2": {"num_hidden_layers": 3},
    "gemma3": text(model_type="gemma3_text"),
    "gemma3n": text(**GEMMA3N),
    "gemma4": text(**GEMMA4),
    "gemma4_text": GEMMA4,
    "glm_moe_dsa": {"rope_parameters": {"rope_theta": 10000.0}},
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.5},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": MAMBA | {"layer_types": ["mamba", "attention"]},
    "hunyuan": {
        "num_shared_expert": 1, "use_mixed_mlp_moe": True, "use_cla": True, "cla_share_factor": 2,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    },
    "jamba": MAMBA | {
        "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1,
        "expert_layer_period": 2,
    },
    "kimi_k25": text(),
    "kimi_k3": text(
        linear_attn_config=KDA, num_key_value_heads=4, hidden_act="situ", attn_res_block_size=2,
    ),
    "kimi_linear": {"linear_attn_config": KDA, "model_max_length": 1024, "num_key_value_heads": 4},
    "kimi_vl": text(),
    "laguna": {"rope_parameters": BY_KIND},
    "lfm2": LFM2,
    "lfm2-vl": text(model_type="lfm2", **LFM2),
    "lfm2_moe": LFM2 | {"use_expert_bias": True},
    "lille-130m": {"block_size": 1024, "n_kv_heads": 2, "n_embd": 64},
    "llama4": text(**LLAMA4),
    "llama4_text": {"intermediate_size_mlp": 48, "no_rope_layers": [1, 0]},
    "longcat_flash": LONGCAT,
    "longcat_flash_ngram": LONGCAT | {
        "ngram_vocab_size_ratio": 3, "emb_neighbor_num": 3, "emb_split_num": 2,
    },
    "mamba2": {"num_heads": 4, "intermediate_size": 32, "time_step_limit": [0.0, 100.0]},
    "mellum": {"rope_parameters": BY_KIND},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0], "moe_layer_freq": [0, 1],
        "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
        "sliding_window_size": WINDOW, "swa_rope_theta": 10000.0, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2, "swa_head_dim": 8, "swa_v_head_dim": 8,
    },
    "minicpm3": {"rope_scaling": {"original_max_position_embeddings": 16}},
    "minimax": {"rotary_dim": 4},
    "minimax_m3_vl": text(**MINIMAX_M3),
    "ministral3": {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.1}},
    "mistral3": text(model_type="mistral"),
    "mistral4": {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.1}},
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "num_hidden_layers": 4,
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 2.0}},
            {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
            {"attention": {"n_heads_in_group": 2}, "ffn": {"replace_with_linear": True}},
        ],
    },
    "nemotron_h": {
        "hybrid_override_pattern": ["M", "*", "E"], "mamba_num_heads": 4,
        "mamba_head_dim": 8, "mamba_proj_bias": False, "ssm_state_size": 8,
    },
    "olmo_hybrid": {"layer_types": HYBRID, "linear_allow_neg_eigval": True},
    "openelm": {
        "num_transformer_layers": 2, "model_dim": 32, "ffn_dim_divisor": 8,
        "num_query_heads": [4] * 2, "num_kv_heads": [2] * 2, "ffn_multipliers": [1.0] * 2,
    },
    "phi3small": {
        "dense_attention_every_n_layers": 2, "ff_intermediate_size": 48, "gegelu_limit": 20.0,
        "blocksparse_block_size": 32, "blocksparse_num_local_blocks": 1,
        "blocksparse_vert_stride": 2,
    },
    "phimoe": {"rope_scaling": {
        "type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.5] * 4,
        "short_mscale": 1.0, "long_mscale": 1.0, "original_max_position_embeddings": 16,
    }},
    "phixtral": {"num_vocab": 128, "model_dim": 32, "rotary_dim": 4},
    "pixtral": text(model_type="mistral"),
    "plamo": {"n_shared_head": 2},
    "plamo2": {"hidden_size_per_head": 8, "mamba_d_state": 8, "mamba_num_heads": 4},
    "prism_hadamard_qwen35": text(hidden_size=128, num_experts=0) | {
        "tensor_namespace": "mlx-vlm-qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [{
            "path": "model.layers.0.mlp.up_proj", "embedding": False, "dtype": "float16",
            "block": 0,
        }],
    },
    "qwen": {"kv_channels": 8},
    "qwen2_vl": text(model_type="qwen2"),
    "qwen3_5": text(num_experts=0),
    "qwen3_5_moe": text(),
    "qwen3_vl": text(model_type="qwen3"),
    "qwen3_vl_moe": text(model_type="qwen3_moe"),
    "recurrent_gemma": {
        "conv1d_width": 4, "logits_soft_cap": 30.0, "attention_window_size": WINDOW,
        "block_types": ["recurrent", "attention"],
    },
    "rwkv7": {
        "a_low_rank_dim": 8, "v_low_rank_dim": 8, "gate_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
    },
    "spark2_5": {"rope_parameters": BY_KIND},
    "step3p5": {"num_attention_groups": 2, "moe_top_k": 2, "share_expert_dim": 16},
}
# fmt: on


def names() -> list[str]:
    """Every architecture of the installed mlx-lm that can run here, by its `model_type`."""
    modules = (module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__))
    return [name for name in modules if name not in REFUSED and hasattr(_module(name), "Model")]


def config(name: str, **changes: Any) -> Config:
    """The `config.json` of an architecture's tiny model."""
    return deepcopy(COMMON | OWN.get(name, {}) | {"model_type": name} | changes)


def make_network(name: str, seed: int = 4, **changes: Any) -> nn.Module:
    """A network with random weights, in float32, whose logits are far apart.

    Weights are twice as large as would keep the size of activations, so that every layer and every
    token of the context weighs in and greedy text varies.

    Args:
        name: one of `names()`.
        seed: of the weights.
        changes: of its configuration.
    """
    module = _module(name)
    mx.random.seed(seed)
    settings, kind = config(name, **changes), module.ModelArgs
    if "from_dict" not in vars(kind):  # it would look the names up for each entry, which is slow
        known = {one.name for one in fields(kind)}
        settings = {key: value for key, value in settings.items() if key in known}
    network: nn.Module = module.Model(kind.from_dict(settings))
    network.eval()
    if name == "bitnet":  # its matrices are a Metal kernel; plain ones take their place
        matrices = [
            (path, part) for path, part in network.named_modules() if type(part) is BitLinear
        ]
        plain = [(path, nn.Linear(m.in_features, m.out_features)) for path, m in matrices]
        network.update_modules(tree_unflatten(plain))
    if name == "phi3small":  # these ids lie beyond the tiny vocabulary, and MLX does not check
        network._dummy_tokenizer_ids = mx.array([VOCABULARY - 1])
    weights = [(path, _random_like(old)) for path, old in tree_flatten(network.parameters())]
    network.update(tree_unflatten(weights))
    mx.eval(network.parameters())
    return network


def make_model(name: str, tokenizer: Tokenizer | None = None) -> TargetModel:
    """Such a network as the engine uses it; a test without text needs no tokenizer."""
    return TargetModel(
        make_network(name),
        tokenizer,  # type: ignore[arg-type]
        config(name),
        name=name,
        layout="dense",
    )


def random_tokens(seed: int, length: int) -> list[int]:
    """A text for any of the networks."""
    draw = Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(length)]


def cache_kinds(network: nn.Module) -> set[str]:
    """The class names of the caches that mlx-lm makes for a network, those in lists included."""
    kinds = set()
    for cache in make_prompt_cache(network):
        parts = cache.caches if isinstance(cache, CacheList) else (cache,)
        kinds |= {type(part).__name__ for part in parts}
    return kinds


def _random_like(old: mx.array) -> mx.array:
    if old.dtype == mx.uint32:  # packed
        return mx.random.randint(0, 1 << 31, old.shape).astype(mx.uint32)
    if old.ndim == 1 or old.size == 1:  # a norm, a bias or a decay: near its usual value
        return old.astype(mx.float32) + 0.1 * mx.random.normal(old.shape)
    inputs = old.shape[-1] if old.shape[-1] > 1 else old.shape[-2]
    return mx.random.normal(old.shape) * (2 / math.sqrt(inputs))


def _module(name: str) -> Any:
    return import_module(f"mlx_lm.models.{name}")
