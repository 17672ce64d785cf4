"""A model that says what the last message of a conversation says: answers as a test wants them.

It is a network of the tiny model's shape, behind the real engine, tokenizer and cache. What it has
read it keeps in its cache, as ids in place of keys, so that rollback and reuse work as ever.
"""

import json
from bisect import bisect_left
from pathlib import Path
from typing import Any

import mlx.core as mx

from akunu_py.engine import Engine
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from tests.tiny_model import VOCABULARY, rename_tokens, write_tiny_model

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}</tools><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for tool_call in message.tool_calls or [] %}{% set tool_call = tool_call.function %}"
    '<tool_call>\n{"name": "{{ tool_call.name }}", "arguments": '
    "{{ tool_call.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Presents tools and calls like Qwen2.5's template."""


class ParrotNetwork:
    """Predicts the next id of the last message, and then the message's end.

    Args:
        begin, end, newline: the ids around roles and messages.
    """

    def __init__(self, begin: int, end: int, newline: int) -> None:
        self.layers = [None]
        self._begin, self._end, self._newline = begin, end, newline

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        ids = tokens[:, None, :, None].astype(mx.float32)
        history = cache[0].update_and_fetch(ids, ids)[0].flatten().astype(mx.int32).tolist()
        begins = [at for at, token in enumerate(history) if token == self._begin]
        ended = [*history, self._newline]
        texts = [1 + ended.index(self._newline, at) for at in begins]
        chosen = []
        for length in range(len(history) - tokens.size + 1, len(history) + 1):
            turn = bisect_left(begins, length) - 1
            chosen.append(self._end)
            if turn > 0 and texts[turn] <= length:
                spoken = texts[turn - 1] + length - texts[turn]
                if spoken < begins[turn]:
                    chosen[-1] = history[spoken]
        return mx.where(mx.arange(VOCABULARY) == mx.array(chosen)[:, None], 20.0, 0.0)[None]

    def parameters(self) -> dict[str, mx.array]:
        """None: what it says it has read."""
        return {}

    def leaf_modules(self) -> dict[str, Any]:
        """None, for the same reason."""
        return {}


def parrot_engine(folder: Path, template: str = TEMPLATE) -> Engine:
    """An engine on a parrot, which was made for chats: it thinks, and knows tools, but no gaps."""
    write_tiny_model(folder, max_position_embeddings=16384)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | {"chat_template": template})
    )
    rename_tokens(folder / "tokenizer.json", "<think>", "</think>", "<none>")
    backend = find_backend()
    model = load_target(str(folder), backend)
    ids = [model.tokenizer.encode(text)[0] for text in ("<|im_start|>", "<|im_end|>", "\n")]
    model.network = ParrotNetwork(*ids)
    return Engine(model, backend)
