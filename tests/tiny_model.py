"""A tiny random model with a byte-level tokenizer, written to disk as mlx-lm loads it."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 320
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


def write_tiny_model(
    folder: Path, *, seed: int = 0, quantized: bool = False, **changes: Any
) -> Path:
    """Writes a random model; `changes` overwrite entries of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    mx.random.seed(seed)
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    network = module.Model(module.ModelArgs.from_dict(config))
    # Larger weights than a fresh model's, so that its favourites stand out and texts vary.
    network.update(_scaled(network.parameters(), 3.0))
    if quantized:
        network, config = quantize_model(network, config, group_size=64, bits=4)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(
        str(folder / "model.safetensors"),
        dict(tree_flatten(network.parameters())),
        metadata={"format": "mlx"},
    )
    write_tokenizer(folder)
    return folder


def _scaled(tree: Any, factor: float) -> Any:
    if isinstance(tree, dict):
        return {key: _scaled(value, factor) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_scaled(value, factor) for value in tree]
    return tree * factor if tree.ndim > 1 else tree


def write_tokenizer(folder: Path) -> None:
    """Writes a byte-level tokenizer with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def rename_tokens(vocabulary_file: Path, *names: str) -> None:
    """Renames the tokens around gaps into others that are no control tokens: marks of thoughts and
    calls are such tokens in many vocabularies."""
    vocabulary = json.loads(vocabulary_file.read_text())
    renamed = dict(zip(SPECIAL_TOKENS[3:], names, strict=True))
    for token in vocabulary["added_tokens"]:
        if token["content"] in renamed:
            token |= {"content": renamed[token["content"]], "special": False}
    vocabulary_file.write_text(json.dumps(vocabulary))
