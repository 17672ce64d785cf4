"""Damaged requests of every kind: the server refuses them or answers, and never fails.

Bodies are those that clients send, with bytes changed, or with values replaced.
"""

import json
import os
from copy import deepcopy
from random import Random
from typing import Any, Final

from tests.server.live import LiveServer

_HI: Final = [{"role": "user", "content": "Hi"}]
_SCHEMA: Final = {"type": "object", "properties": {"city": {"type": "string"}}}
_FUNCTION: Final = {"name": "weather", "description": "The weather.", "parameters": _SCHEMA}
_TOOLS: Final = [{"type": "function", "function": _FUNCTION}]
_FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}
BODIES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("/completion", {"prompt": "import os\n", "n_predict": 4, "stream": True, "n_probs": 2,
                     "samplers": ["top_k", "temperature"], "logit_bias": [[5, -1.0], ["a", False]],
                     "grammar": 'root ::= "a" [b-d]+', "response_fields": ["timings/prompt_n"]}),
    ("/infill", {"input_prefix": "def f(", "input_suffix": "\n", "prompt": "x", "n_predict": 4,
                 "input_extra": [{"filename": "a.py", "text": "x = 1\n"}], "id_slot": 0}),
    ("/tokenize", {"content": "a b", "with_pieces": True, "add_special": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/apply-template", {"messages": _HI, "tools": _TOOLS, "add_generation_prompt": False}),
    ("/v1/completions", {"model": "m", "prompt": ["a", "b"], "max_tokens": 4, "logprobs": 2,
                         "echo": True, "suffix": "c", "stop": ["\n"], "stream": True, "n": 2}),
    ("/v1/fim/completions", {"prompt": "a", "suffix": "b", "max_tokens": 4, "random_seed": 1}),
    ("/v1/chat/completions", {"messages": _HI, "max_tokens": 4, "response_format": _FORMAT,
                              "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": _HI, "max_tokens": 4, "tools": _TOOLS, "logprobs": True,
                              "tool_choice": "auto", "top_logprobs": 2, "seed": 3,
                              "prediction": {"type": "content", "content": "Hi"},
                              "chat_template_kwargs": {"enable_thinking": True}}),
    ("/v1/responses", {"model": "m", "input": [{"type": "message", "role": "user", "content": [
                           {"type": "input_text", "text": "Hi"}]}], "max_output_tokens": 4,
                       "instructions": "x", "tools": [{"type": "function", **_FUNCTION}],
                       "text": {"format": {"type": "text"}}, "stream": True}),
    ("/v1/messages", {"model": "m", "max_tokens": 4, "system": [{"type": "text", "text": "s"}],
                      "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
                      "tools": [{"name": "w", "input_schema": _SCHEMA}], "stream": True,
                      "tool_choice": {"type": "auto"}, "stop_sequences": ["x"]}),
    ("/v1/messages/count_tokens", {"model": "m", "messages": _HI}),
    ("/api/generate", {"prompt": "a", "suffix": "b", "options": {"num_predict": 4, "stop": ["x"]},
                       "format": "json", "context": [1, 2], "think": False}),
    ("/api/chat", {"messages": _HI, "options": {"num_predict": 4}, "format": _SCHEMA}),
    ("/api/show", {"model": "m"}),
    ("/api/pull", {"model": "m", "stream": False}),
)  # fmt: skip
"""Paths, and bodies as clients send them."""

_ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1.5, 1 << 70, -(1 << 63), 1e308, "", "a", "\udc80", "\0", "日本" * 9,
    "<|im_end|>", [], [[]], [None], {}, {"": {}}, {"type": []}, [1, "a", None], "a" * 70_000,
)  # fmt: skip
_BYTES: Final = (b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\0", b"{", b"]", b",", b'"', b"1e999",
                 b"NaN", b"\\", b"[" * 5000)  # fmt: skip


def mutated(random: Random, body: dict[str, Any]) -> bytes:
    """A body with one to three defects, of its values or of its bytes."""
    value = json.loads(json.dumps(body))
    for _ in range(random.randrange(3)):
        _replace(random, value)
    raw = bytearray(json.dumps(value).encode())
    for _ in range(random.choice((0, 0, 1, 3))):
        place = random.randrange(len(raw))
        if random.random() < 0.5:
            raw[place : place + random.randrange(4)] = random.choice(_BYTES)
        else:
            raw[place] ^= 1 << random.randrange(8)
    return bytes(raw)


def _replace(random: Random, value: Any) -> None:
    """Puts an odd value in a random place."""
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not places:
        return
    place = random.choice(places)
    if isinstance(value[place], dict | list) and random.random() < 0.7:
        _replace(random, value[place])
    else:
        value[place] = deepcopy(random.choice(_ODD))


ROUNDS = int(os.environ.get("AKUNU_FUZZ_ROUNDS", "20"))


def test_damaged_requests_never_fail(live: LiveServer) -> None:
    random = Random(20)
    for _ in range(ROUNDS):
        for path, body in BODIES:
            raw = mutated(random, body)
            assert live.client.post(path, content=raw).status_code != 500, (path, raw[:500])
