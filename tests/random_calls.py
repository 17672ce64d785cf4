"""Random schemas of tools, and calls of them by a model that says random tokens."""

import json
import random
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import akunu_py
from akunu_py.engine import Engine
from akunu_py.events import Completion
from akunu_py.options import Options
from akunu_py.server.conversation import ChatJob, Tools
from akunu_py.text.answer_parser import Step
from akunu_py.text.calls import ToolCall
from tests.chat_templates import TEMPLATES, templated_engine
from tests.tiny_model import CHAT_TEMPLATE, rename_tokens, write_tiny_model

NAME = "call_it"
FAMILIES = {
    "hermes": '<tool_call>{"name": tool_call.name}',
    "llama3": '{"name": function name, "parameters": dictionary of argument name and its value}',
    "mistral": "[TOOL_CALLS][ARGS]",
    "qwen3_coder": "<tool_call>\n<function=",
    "glm": "<arg_key>",
    "mistral, as a list": "[TOOL_CALLS] [",
    "glm, on one line": "<arg_key></arg_key><arg_value>",
    "minimax": "<minimax:tool_call>",
    "minicpm": '<function name="<param name="',
    "muse_spark": "<atem:function_calls>",
    "kimi_k2": "<|tool_calls_section_begin|>",
    "longcat": "<longcat_tool_call>",
    "pythonic": "<|tool_call_start|>",
    "gemma4": "<|tool_call><tool_call|>",
    "qwen3": '<tool_call>{"name": tool_call.name}',
    "glm4.7": "<arg_key>",
}
"""What mlx-lm tells a family by; as a comment in the tiny model's template."""
MAIN = ("hermes", "llama3", "mistral", "qwen3_coder", "glm", "qwen3")
_ADDED = {
    "qwen3": ("<tool_call>", "</tool_call>", "<think>"),
    "glm4.7": ("<tool_call>", "<arg_key>", "</arg_value>"),
}
"""Marks that are tokens of their own here, but no control tokens; elsewhere they are only text."""
MESSAGES = [{"role": "user", "content": "Call a function."}]


@dataclass(frozen=True)
class Part:
    """What an answer, or a part of it, says."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


def joined(steps: Iterable[Step]) -> Part:
    texts, calls = {"text": "", "reasoning": "", "call": ""}, {}
    for _, block, text in steps:
        texts[block.kind] += text
        if block.call is not None:
            calls[block.index] = block.call
    return Part(texts["text"], texts["reasoning"], tuple(calls.values()))


def engine_of(family: str, folder: Path) -> Engine:
    """The tiny model as one of a family."""
    if family in TEMPLATES:
        return templated_engine(folder, TEMPLATES[family])
    path = write_tiny_model(folder) / "tokenizer_config.json"
    if family in _ADDED:
        rename_tokens(folder / "tokenizer.json", *_ADDED[family])
    template = f"{CHAT_TEMPLATE}{{# {FAMILIES[family]} #}}"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return akunu_py.load(str(folder))


def check_call(engine: Engine, seed: int) -> Completion:
    """Has a model call one of some random tools; mlx-lm can parse the call, it is the same streamed
    and whole, and its arguments are valid."""
    tools = random_tools(seed)
    options = Options(900, temperature=1.0, seed=seed, drafter="ngram")
    must = Tools(tuple(tools), must_call=True, one_call=True)
    job = ChatJob.begin(engine.tokenizer, MESSAGES, options, must, {}, budget=20)
    completion = engine.generate(str(job.prompt), job.options)
    assert completion.finish_reason == "eos", completion.text
    parser = job.parser()
    streamed = [
        step for piece in completion.pieces for step in parser.feed(piece.text, piece.thought)
    ]
    found = joined([*streamed, *parser.finish()])
    whole = job.parser()
    thought = sum(piece.thought for piece in completion.pieces)
    assert joined([*whole.feed(completion.text, thought), *whole.finish()]) == found
    (call,) = found.calls
    assert not found.content
    format_ = engine.tokenizer.answer_format
    if call.arguments != "{}" or "longcat" not in format_.call_start:
        text = completion.text.partition(format_.call_start)[2].removesuffix(format_.call_end)
        assert format_.read_calls(text, tools)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    assert is_valid(json.loads(call.arguments), schemas[call.name]), call
    return completion


def random_tools(seed: int) -> list[dict[str, Any]]:
    """One or two tools, in OpenAI's form; the lengths of all values are bounded."""
    rng = random.Random(seed)
    return [
        {
            "type": "function",
            "function": {"name": f"{NAME}_{number}", "parameters": _object(rng, depth=2)},
        }
        for number in range(rng.randint(1, 2))
    ]


def is_valid(value: Any, schema: dict[str, Any]) -> bool:  # noqa: PLR0911  (one a type)
    """Whether a value is what a schema says, as far as random schemas go."""
    if "anyOf" in schema:
        return any(is_valid(value, each) for each in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "object":
        named = schema["properties"]
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value) <= set(named)
            and all(is_valid(each, named[key]) for key, each in value.items())
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and schema["minItems"] <= len(value) <= schema["maxItems"]
            and all(is_valid(each, schema["items"]) for each in value)
        )
    if kind == "string":
        pattern = re.compile(schema.get("pattern", ""))
        least, most = schema.get("minLength", 0), schema.get("maxLength", 99)
        return (
            isinstance(value, str)
            and least <= len(value) <= most
            and pattern.search(value) is not None
        )
    if kind in {"boolean", "null"}:
        return isinstance(value, bool) if kind == "boolean" else value is None
    is_number = isinstance(value, int) or (kind == "number" and isinstance(value, float))
    if not is_number or isinstance(value, bool) or abs(value) > 10**18:
        return False
    return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    keys = rng.sample(["path", "text", "line_no", "Kind", "x", "recursive2"], rng.randint(0, 4))
    return {
        "type": "object",
        "properties": {key: _value(rng, depth) for key in keys},
        "required": [key for key in keys if rng.random() < 0.6],
    }


def _value(rng: random.Random, depth: int) -> dict[str, Any]:  # noqa: PLR0911  (one a type)
    kinds = ["text", "text", "pattern", "enum", "integer", "number", "boolean", "optional"]
    kind = rng.choice([*kinds, *(["array", "object"] if depth else [])])
    if kind == "text":
        least = rng.choice([0, 0, 1, 3])
        return {"type": "string", "minLength": least, "maxLength": least + rng.randint(1, 12)}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(["^[a-z]{2,6}$", r"^/[\w.-]{0,8}$"])}
    if kind == "enum":
        words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, 6)))
                 for _ in range(rng.randint(1, 3))]  # fmt: skip
        return {"type": "string", "enum": words}
    if kind == "integer":
        bounds = {"minimum": rng.randint(-50, 0), "maximum": rng.randint(1, 5000)}
        return {"type": "integer"} | {key: bounds[key] for key in bounds if rng.random() < 0.5}
    if kind == "number":
        return {"type": "number", "minimum": -2, "maximum": rng.randint(0, 100)}
    if kind == "boolean":
        return {"type": "boolean"}
    if kind == "optional":
        return {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]}
    if kind == "array":
        least = rng.randint(0, 1)
        items = _value(rng, depth - 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + 2}
    return _object(rng, depth - 1)
