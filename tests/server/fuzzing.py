"""Sends damaged requests to a server: how many are answered with a 500, how long its event loop is
kept from its work, and how much memory they take, as do prompts of 4 MB that are refused.

    python -m benchmarks.fuzz_server --requests 20000 --refused 2000

Bodies are those that clients send, with bytes changed, or with values replaced. Same seed, same
requests. The server has the bundled model and a context of 256 tokens.
"""

import argparse
import asyncio
import http.client
import json
import os
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from http import HTTPStatus
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from random import Random
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any, Final

import uvloop

import akunu_py
from akunu_py.server.app import create_app
from akunu_py.server.http import HttpServer
from akunu_py.server.service import Service
from akunu_py.server.settings import ServerSettings
from akunu_py.worker import EngineWorker
from benchmarks.served import Served

_CONTEXT: Final = 256
_REPORT_EVERY: Final = 500
_SIGN_EVERY_S: Final = 0.005
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


class LoopWatch:
    """How long an event loop was kept from its work by this process, however busy the machine is.

    A thread asks the loop for a sign of life every few milliseconds. What counts is the time that
    Python's threads computed until it came, or the time that passed if that is less: so others who
    use the processor, and MLX's own threads, do not count.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.slowest_s = 0.0
        self._loop = loop
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            sleep(_SIGN_EVERY_S)
            came = Event()
            clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threading.enumerate()
                      if thread.ident is not None and thread is not me]  # fmt: skip
            before, begun = _computed(clocks), perf_counter()
            self._loop.call_soon_threadsafe(came.set)
            came.wait()
            passed = perf_counter() - begun
            self.slowest_s = max(self.slowest_s, min(passed, _computed(clocks) - before))


def _computed(clocks: list[int]) -> float:
    """Seconds that threads have computed; one that has ended counts as 0."""
    total = 0.0
    for clock in clocks:
        with suppress(OSError):
            total += time.clock_gettime(clock)
    return total


def _serve(pipe: Connection) -> None:
    """A server with the bundled model. It tells its port, and then, for every message, how many
    bytes of memory it has and how long its event loop was kept from its work since the last one."""
    settings, memory = ServerSettings(), Served("", os.getpid())
    worker = EngineWorker(
        lambda: akunu_py.load(akunu_py.ModelOptions(max_context=_CONTEXT)),
        queue_limit=settings.queue,
    )
    worker.loading.result()
    http = HttpServer(create_app(Service(worker, settings)))

    async def run() -> None:
        watch = LoopWatch(asyncio.get_running_loop())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(http.serve([listener]))
            pipe.send(listener.getsockname()[1])
            while await asyncio.to_thread(pipe.recv):
                pipe.send((memory.resident_bytes() or 0, watch.slowest_s))
                watch.slowest_s = 0.0
            http.should_exit = True
            await serving

    uvloop.run(run())
    worker.close(1)


def main() -> None:
    """Damages, refuses, and prints lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--refused", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    random, statuses = Random(wanted.seed), Counter[int]()
    own, theirs = Pipe()
    process = get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    port = own.recv()

    def report(done: str) -> None:
        own.send(True)
        nbytes, slowest_s = own.recv()
        print(f"{done}: {nbytes >> 20} MiB, loop kept for {slowest_s * 1000:.0f} ms", flush=True)

    try:
        report("begun")
        for number in range(1, wanted.requests + 1):
            path, body = random.choice(BODIES)
            raw = mutated(random, body)
            status = ask(port, path, raw)
            statuses[status] += 1
            if status in (0, 500):
                print(f"{status} {path} {raw[:300]!r}")
            if number % _REPORT_EVERY == 0:
                report(f"{number} damaged, {dict(statuses)}")
        prompt = json.dumps({"prompt": "word " * 800_000}).encode()
        for number in range(1, wanted.refused + 1):
            assert ask(port, "/v1/completions", prompt) == HTTPStatus.BAD_REQUEST
            if number % _REPORT_EVERY == 0:
                report(f"{number} refused")
    finally:
        own.send(False)
        process.join()


if __name__ == "__main__":
    main()
