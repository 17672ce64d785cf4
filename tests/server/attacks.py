"""Hostile requests, as the bytes of a connection: what each kind of them costs everybody else.

`test_hostile.py` sends each once; `benchmarks.hostile` sends them for minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any, Final

MEGABYTE: Final = 1 << 20
Data = Callable[[int], bytes]
"""The bytes of a connection, by its number: what was refused before is known by its content."""


@dataclass(frozen=True)
class Attack:
    """One kind of hostile connection.

    Attributes:
        data: what it sends.
        connections: how many there are at a time.
        linger_s: how long each waits for its answer, at most.
        answers: whether there is an answer, and it reads it.
    """

    data: Data
    connections: int = 4
    linger_s: float = 20.0
    answers: bool = True


def post(path: str, body: Any, *, early: int = 0) -> bytes:
    """A request; with `early`, it ends that many bytes before its end."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw[: len(raw) - early]


def get(path: str, **headers: str) -> bytes:
    headers = {"Host": "localhost", "Connection": "close"} | headers
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _completion(**fields: Any) -> bytes:
    return post("/completion", {"prompt": "x", "n_predict": 8} | fields)


def _chat(said: str = "x", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": said}], "max_tokens": 8} | fields


def _edit(text: str, **fields: Any) -> bytes:
    return post("/v1/edits", {"input": text, "instruction": "Rename `x` to `y`"} | fields)


def _patterns(number: int, count: int = 26) -> dict[str, Any]:
    """Texts that hold each of some letters: an automaton of 2^26 states."""
    signs = [f"{number}{letter}" for letter in ascii_lowercase[:count]]
    return {"allOf": [{"type": "string", "pattern": f"^.*{sign}.*$"} for sign in signs]}


def _tool(schema: Any, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def _object(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"]}


def _doubling(number: int) -> str:
    """A grammar of 2^2500 letters."""
    rules = "\n".join(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(2500))
    return f'root ::= a0\n{rules}\na2500 ::= "{number}"'


def _referring(number: int) -> dict[str, Any]:
    """A schema whose references lead to 2^40 others."""
    parts: dict[str, Any] = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
        for i in range(40)
    }
    return {"$ref": "#/$defs/d0", "$defs": parts | {"d40": {"const": number}}}


def _nested(number: int) -> Any:
    schema: Any = {"const": number}
    for _ in range(400):
        schema = {"type": "array", "items": schema, "maxItems": 1000, "minItems": 900}
    return schema


def _chunked(pieces: bytes) -> bytes:
    head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"2\r\n{}\r\n" + pieces


LONG: Final = "def f(x):\n    return x + 1  # " * 150_000
_HALF: Final = LONG[: 5 * MEGABYTE // 2]
_WIDE: Final = "\ufdfa" * MEGABYTE

ATTACKS: Final[dict[str, Attack]] = {
    # No attack, but what the others are measured by: four more clients.
    "ordinary clients": Attack(lambda i: _completion(prompt=f"def f{i}(x):")),
    # Grammars.
    "patterns": Attack(lambda i: _completion(json_schema=_patterns(i))),
    "fewer patterns": Attack(lambda i: _completion(json_schema=_patterns(i, 12))),
    "patterns of a tool": Attack(
        lambda i: post("/v1/chat/completions", _chat(tools=[_tool(_object(_patterns(i)))]))
    ),
    "patterns of many tools": Attack(
        lambda i: post(
            "/v1/messages",
            _chat(
                tools=[
                    {"name": f"f{j}", "input_schema": _object(_patterns(i + j))} for j in range(100)
                ]
            ),
        )
    ),
    "patterns, Ollama": Attack(lambda i: post("/api/chat", _chat(format=_object(_patterns(i))))),
    "patterns, Responses": Attack(
        lambda i: post(
            "/v1/responses",
            {
                "input": "x",
                "text": {
                    "format": {"type": "json_schema", "name": "x", "schema": _object(_patterns(i))}
                },
            },
        )
    ),
    "choices": Attack(lambda i: _completion(guided_choice=[f"{i} {j}" for j in range(200_000)])),
    "doubling rules": Attack(lambda i: _completion(grammar=_doubling(i))),
    "long expression": Attack(lambda i: _completion(regex=f"{i}" + "a" * MEGABYTE)),
    "expression": Attack(lambda i: _completion(regex=f"{i}" + "a" * 4_000)),
    "repeated repetition": Attack(lambda i: _completion(regex="((a{0,99}){0,99}){0,99}" + f"{i}")),
    "multiples": Attack(
        lambda i: _completion(json_schema={"type": "integer", "multipleOf": 1_000_003 + 2 * i})
    ),
    "enumeration": Attack(
        lambda i: _completion(json_schema={"enum": [f"{i} {j}" for j in range(200_000)]})
    ),
    "references": Attack(lambda i: _completion(json_schema=_referring(i))),
    "nested arrays": Attack(lambda i: _completion(json_schema=_nested(i))),
    "ambiguous grammar": Attack(
        lambda i: _completion(grammar=f'start: a "{i}"\na: a a | "x" |', n_predict=200)
    ),
    "classes without an end": Attack(lambda i: _completion(grammar=f"{i}" + "[" * 60_000)),
    "quoted reasons": Attack(
        lambda i: _completion(
            json_schema={"type": "string", "pattern": f"(?={i})" + "regex parse error:" * 50_000}
        )
    ),
    "long texts": Attack(
        lambda i: _completion(json_schema={"type": "string", "minLength": 10**6 + i})
    ),
    # Bodies that do not end.
    "one byte early": Attack(
        lambda _: post("/completion", b" " * (7 * MEGABYTE), early=1), 32, answers=False
    ),
    "no body": Attack(
        lambda _: post("/completion", b" " * MEGABYTE, early=MEGABYTE), 200, answers=False
    ),
    "no end of the head": Attack(
        lambda _: b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5_000, 50, answers=False
    ),
    "trailers": Attack(lambda _: _chunked(b"0\r\n" + b"a:\r\n" * MEGABYTE), answers=False),
    "one trailer": Attack(lambda _: _chunked(b"0\r\na:" + b"a" * 4 * MEGABYTE), answers=False),
    "tiny chunks": Attack(lambda _: _chunked(b"1\r\n \r\n" * 700_000), answers=False),
    # What the event loop would have to do.
    "name of a model": Attack(lambda i: _completion(model=f"{i}" + "a" * (4 * MEGABYTE - 100))),
    "fields": Attack(lambda i: _completion(n=16, response_fields=[f"{i}" + "/" * 4_000_000])),
    "samplers": Attack(lambda i: _completion(n=16, seed=i, samplers="k" * 4_000_000)),
    "echoes": Attack(
        lambda i: post(
            "/infill", {"input_prefix": f"{i}" + "\u2028" * MEGABYTE, "input_suffix": "", "n": 16}
        )
    ),
    "many biases": Attack(lambda i: _completion(n=16, seed=i, logit_bias=[["aaaa", 1.0]] * 1024)),
    "arguments": Attack(
        lambda i: post(
            "/v1/chat/completions",
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {"function": {"name": f"f{i}", "arguments": "[" + "[]," * 1_300_000}}
                        ],
                    }
                ]
            },
        )
    ),
    "pipelined": Attack(lambda _: get("/health", Connection="keep-alive") * 5_000, 2, 2.0),
    "biases": Attack(
        lambda i: _completion(logit_bias=[[f"{i}" + "ab " * 2_000, 1.0] for _ in range(1024)])
    ),
    "digits": Attack(
        lambda _: post(
            "/completion",
            b'{"prompt": "x", "ignored": [' + b",".join([b"7" * 4_300] * 1_800) + b"]}",
        )
    ),
    "values": Attack(lambda _: _completion(ignored=[[]] * 200_000)),
    "depth": Attack(lambda _: post("/completion", b"[" * 30_000)),
    "metadata": Attack(
        lambda i: post("/v1/responses", {"input": "x", "metadata": {"x": f"{i}" + "y" * (7 << 20)}})
    ),
    "reasoning items": Attack(
        lambda i: post(
            "/v1/responses",
            {
                "input": [
                    {"type": "reasoning", "encrypted_content": f"{i}" + "y" * (7 << 20)},
                    {"role": "user", "content": "x"},
                ]
            },
        )
    ),
    "wide letters": Attack(lambda _: post("/tokenize", {"content": _WIDE})),
    "code points": Attack(lambda _: post("/tokenize", {"content": "\ufdd0" * 349_000})),
    "truncations": Attack(
        lambda i: post(
            "/v1/responses",
            {
                "input": [
                    {"role": "user", "content": f"{i} " + "abc de" * 50},
                    {"role": "assistant", "content": "b"},
                ]
                * 600,
                "truncation": "auto",
                "max_output_tokens": 1,
            },
        ),
        40,
    ),
    "pieces": Attack(lambda _: post("/tokenize", {"content": _HALF, "with_pieces": True})),
    "prompts": Attack(lambda _: _completion(prompt=["x"] * 200_000)),
    "long prompts": Attack(lambda _: _completion(prompt=[LONG[:MEGABYTE]] * 7)),
    "infill": Attack(
        lambda i: post(
            "/infill",
            {
                "input_prefix": _HALF,
                "input_suffix": _HALF,
                "input_extra": [{"filename": f"{i}", "text": _HALF}],
            },
        )
    ),
    # Edits.
    "tags": Attack(
        lambda _: post(
            "/v1/apply/chat/completions",
            _chat("<instruction>" + "</instruction><code>" * 10_000 + "</update>"),
        )
    ),
    "words of an edit": Attack(
        lambda _: _edit("# b\n" * 100_000, instruction=" ".join(f"a{i}" for i in range(30_000)))
    ),
    "statements": Attack(
        lambda _: _edit("def f():\n    return 1\n" + "a;" * MEGABYTE, path="f.py", function="f")
    ),
    "elisions": Attack(lambda _: _edit("x = 1\n" + "# rest " * 12_000, lines=[1, 1])),
    "keys of TOML": Attack(
        lambda _: _edit(f"x = 1\n{'.'.join('a' * 100_000)} = 1\n", path="a.toml", lines=[1, 1])
    ),
    "unread streams": Attack(
        lambda i: _completion(prompt=f"{i}", stream=True, n_predict=400), 200, answers=False
    ),
    "long head": Attack(lambda i: get("/health", Host="a" * 60_000 + f".{i}")),
    "long origin": Attack(lambda i: get("/health", Origin="http://" + "a." * 30_000 + f"{i}")),
    # What an answer may cost.
    "stop strings": Attack(
        lambda i: _completion(stop=[f"{i} {j}" + "a" * 500 for j in range(64)], n_predict=64)
    ),
    "choices of an answer": Attack(
        lambda i: post("/v1/completions", {"prompt": f"{i}", "n": 16, "max_tokens": 64})
    ),
    "urgent": Attack(lambda i: _completion(prompt=f"{i}", n_predict=400, priority=-1e9), 16),
    "cancelled": Attack(lambda i: _completion(prompt=f"{i}" * 900, n_predict=400), 16, 0.05),
}
