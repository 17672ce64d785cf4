"""Sends damaged requests to a server: how many are answered with a 500, how long `/health` takes
meanwhile, and how much memory 4 MB prompts that are refused leave behind.

    python -m benchmarks.fuzz_server --requests 5000 --refused 500

Bodies are those that clients send, with bytes changed, or with values replaced. Same seed, same
requests. It starts a server with the bundled model and a context of 256 tokens.
"""

import argparse
import http.client
import json
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from http import HTTPStatus
from random import Random
from threading import Event, Thread
from time import perf_counter
from typing import Any, Final

from akunu_py.model_files import BUNDLED_MODEL
from benchmarks.served import served

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


def ask(port: int, path: str, raw: bytes | None, method: str = "POST") -> int:
    """The status of the answer, which is read to its end; 0 if the connection ends before."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, raw)
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def watch(port: int, work: Callable[[], None]) -> float:
    """Does some work, and returns the longest that `/health` took meanwhile, in seconds."""
    ended, slowest = Event(), 0.0

    def run() -> None:
        try:
            work()
        finally:
            ended.set()

    worker = Thread(target=run)
    worker.start()
    while not ended.wait(0.02):
        begun = perf_counter()
        ask(port, "/health", None, "GET")
        slowest = max(slowest, perf_counter() - begun)
    worker.join()
    return slowest


def main() -> None:
    """Damages, refuses, and prints two lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--refused", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    random, statuses = Random(wanted.seed), Counter[int]()
    prompt = json.dumps({"prompt": "word " * 800_000}).encode()
    with served(BUNDLED_MODEL, ("--max-context", "256")) as server:
        port = int(server.url.rpartition(":")[2])

        def fuzz() -> None:
            for _ in range(wanted.requests):
                path, body = random.choice(BODIES)
                raw = mutated(random, body)
                status = ask(port, path, raw)
                statuses[status] += 1
                if status in (0, 500):
                    print(f"{status} {path} {raw[:300]!r}")

        def refuse() -> None:
            for _ in range(wanted.refused):
                assert ask(port, "/v1/completions", prompt) == HTTPStatus.BAD_REQUEST

        print(f"{wanted.requests} damaged: /health within {watch(port, fuzz):.3f} s, {statuses}")
        ask(port, "/v1/completions", prompt)
        before = server.resident_bytes() or 0
        slowest = watch(port, refuse)
        grown = (server.resident_bytes() or 0) - before
        print(f"{wanted.refused} refused: /health within {slowest:.3f} s, "
              f"{before >> 20} MiB + {grown >> 20} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
