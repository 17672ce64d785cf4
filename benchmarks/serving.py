"""What the server costs: the first token while somebody types, and its share of every answer.

    python -m benchmarks.serving

Typing: one streamed `/infill` request for each keystroke, at the end of a line in the middle of a
file of 1,500 tokens; the time to the first token is compared with that of the same request about
a file that is not cached. A request: an answer of one token from a cached prompt; the server's
time is what exceeds the engine's time in the answer. An empty request, which the server answers
without the engine, shows how much of that is HTTP and the client. A token: answers of two lengths,
streamed and whole, in turns with an engine in this process; the difference is divided by the
number of tokens that the longer one has more. The server is a process of its own. Neither side
drafts, so that both run the same forwards.

The client is the standard library's: it shares the machine's cores with the server, and a larger
one takes more of them for a streamed token than the server does. Two engines in two processes
differ by more than streaming adds, so streamed answers are also compared with whole answers of the
same server: it does nothing with those before their end.
"""

import argparse
import json
import textwrap
from contextlib import closing
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import akunu_py
from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.engine import Engine
from akunu_py.options import BUNDLED_MODEL
from benchmarks.records import markdown_table, record
from benchmarks.served import PATIENCE_S, served
from benchmarks.turns import paired_ratios, time_in_turns

BEFORE, AFTER = 3600, 1200
"""Characters around the gap: some 1,500 tokens."""
LINE = "    words = [word.strip() for word in text.split()]"
PROMPT = "def mean(values):\n    return "
FORBIDDEN = -1e9
"""A bias that rules a token out."""


def post(client: HTTPConnection, path: str, body: dict[str, Any]) -> HTTPResponse:
    """Sends a request and returns the response as soon as it begins."""
    client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return client.getresponse()


def empty_s(client: HTTPConnection) -> float:
    """Seconds of a request that the server answers without the engine."""
    begun = perf_counter()
    client.request("GET", "/health")
    client.getresponse().read()
    return perf_counter() - begun


def first_token_s(client: HTTPConnection, body: dict[str, Any]) -> float:
    """Seconds from a request to its first event."""
    begun = perf_counter()
    response = post(client, "/infill", body)
    line = response.readline()
    taken = perf_counter() - begun
    response.read()
    assert line.startswith(b"data: "), line
    return taken


def typing(client: HTTPConnection, keystrokes: int) -> dict[str, list[float]]:
    """Seconds to the first token after each keystroke, in a cached file and in new ones."""
    code = Path(textwrap.__file__).read_text(encoding="utf-8")
    middle = code.index("\n\n", BEFORE) + 1
    before, after = code[middle - BEFORE : middle], code[middle : middle + AFTER]
    # Exactly one token is predicted, whatever it is.
    answer: dict[str, Any] = {"n_predict": 1, "ignore_eos": True, "temperature": 0, "stream": True}
    answer |= {"input_prefix": before, "input_suffix": after}
    lines = [LINE[:end] for end in range(len(LINE) - keystrokes, len(LINE) + 1)]
    first_token_s(client, answer | {"prompt": lines[0]})
    warm = [first_token_s(client, answer | {"prompt": line}) for line in lines[1:]]
    cold = [
        first_token_s(client, answer | {"prompt": line, "input_prefix": f"{number}{before}"})
        for number, line in enumerate(lines[1:])
    ]
    return {"cold": cold, "typing": warm}


class Race:
    """The same answer by a server and by an engine, without drafts and without an early end.

    Args:
        engine: an engine with the server's model.
        client: a connection to the server.
    """

    def __init__(self, engine: Engine, client: HTTPConnection) -> None:
        self._engine = engine
        self._client = client
        self._ends = sorted(engine.tokenizer.end_tokens)

    def run(self, length: int, repeats: int) -> dict[str, list[float]]:
        """Seconds of answers of a length: by the engine, and by the server whole and streamed."""
        return time_in_turns(
            {
                "engine": partial(self.direct, length),
                "whole": partial(self.posted, length, streams=False),
                "streamed": partial(self.posted, length, streams=True),
            },
            repeats=repeats,
            warmups=2,
        )

    def direct(self, length: int) -> None:
        """An answer by the engine alone."""
        sampling = akunu_py.Sampling(logit_bias=tuple((token, FORBIDDEN) for token in self._ends))
        options = akunu_py.Options(length, sampling=sampling, num_draft_tokens=0)
        assert self._engine.generate(PROMPT, options).stats.generated_tokens == length

    def posted(self, length: int, *, streams: bool) -> float:
        """The same answer by the server; returns the seconds it took outside its engine."""
        body = {"prompt": PROMPT, "n_predict": length, "temperature": 0, "num_draft_tokens": 0,
                "logit_bias": [[token, False] for token in self._ends],
                "stream": streams}  # fmt: skip
        begun = perf_counter()
        text = post(self._client, "/completion", body).read()
        taken = perf_counter() - begun
        last = json.loads(text.strip().rpartition(b"\n")[2].removeprefix(b"data: "))
        assert last["tokens_predicted"] == length
        own_ms: float = last["timings"]["prompt_ms"] + last["timings"]["predicted_ms"]
        return taken - own_ms / 1000


def added_ms(seconds: dict[str, list[float]], way: str, baseline: str = "engine") -> Spread:
    """Milliseconds that a way takes longer than the baseline, from the same turns."""
    pairs = zip(seconds[way], seconds[baseline], strict=True)
    return Spread.of([1000 * (own - base) for own, base in pairs])


def token_ms(seconds: dict[int, dict[str, list[float]]], baseline: str) -> float:
    """Milliseconds that each streamed token adds to a baseline."""
    shortest, longest = min(seconds), max(seconds)
    most, least = (added_ms(seconds[n], "streamed", baseline) for n in (longest, shortest))
    return (most.median - least.median) / (longest - shortest)


def report(
    typed: dict[str, list[float]],
    request_ms: Spread,
    empty_ms: Spread,
    seconds: dict[int, dict[str, list[float]]],
) -> str:
    """The tables, and what follows from them."""
    first = [
        [name, f"{Spread.of([1000 * value for value in values]):.2f}"]
        for name, values in typed.items()
    ]
    answers = [
        [
            length,
            f"{1000 * median(ways['engine']):.2f}",
            f"{added_ms(ways, 'whole'):.2f}",
            f"{added_ms(ways, 'streamed'):.2f}",
        ]
        for length, ways in seconds.items()
    ]
    head = ["tokens", "engine, ms", "the server answers, + ms", "it streams, + ms"]
    return (
        f"{markdown_table(['cache', 'ms to the first token: median (quartiles)'], first)}\n\n"
        f"While typing, it comes {paired_ratios(typed['typing'], typed['cold']):.1f} times as "
        f"soon.\n\nA request takes {request_ms:.2f} ms in addition to the engine's time.\n\n"
        f"An empty request takes {empty_ms:.2f} ms: HTTP, and this client.\n\n"
        f"{markdown_table(head, answers)}\n\n"
        f"A streamed token adds {token_ms(seconds, 'engine'):.3f} ms to the engine's, and "
        f"{token_ms(seconds, 'whole'):.3f} ms to that of a whole answer by the same server."
    )


def main() -> None:
    """Runs the measurements and records them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=BUNDLED_MODEL)
    parser.add_argument("--keystrokes", type=int, default=30)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 128])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--name", default="serving", help="of the files in results/")
    arguments = parser.parse_args()
    if len(set(arguments.lengths)) < 2:
        parser.error("--lengths needs two different ones, to tell a token from an answer")
    if not 1 <= arguments.keystrokes <= len(LINE):
        parser.error(f"--keystrokes must be from 1 to {len(LINE)}")

    engine = akunu_py.load(arguments.model)
    machine = describe_machine(engine.backend)
    with (
        served(arguments.model) as server,
        closing(HTTPConnection(urlsplit(server.url).netloc, timeout=PATIENCE_S)) as client,
    ):
        typed = typing(client, arguments.keystrokes)
        race = Race(engine, client)
        race.posted(1, streams=False)
        outside = [race.posted(1, streams=False) for _ in range(arguments.repeats)]
        empty = [empty_s(client) for _ in range(arguments.repeats)]
        seconds = {length: race.run(length, arguments.repeats) for length in arguments.lengths}
    request_ms, empty_ms = (Spread.of([1000 * s for s in taken]) for taken in (outside, empty))
    body = (
        f"{machine_line(machine)}\n\nModel {engine.model.name}, {engine.model.layout} weights."
        f"\n\n{report(typed, request_ms, empty_ms, seconds)}"
    )
    result = {
        "machine": machine,
        "model": engine.model.name,
        "first_token_s": typed,
        "first_token_ratio": paired_ratios(typed["typing"], typed["cold"]).median,
        "request_s": outside,
        "request_ms": request_ms.median,
        "empty_request_s": empty,
        "answer_s": {str(length): ways for length, ways in seconds.items()},
        "streamed_token_ms": token_ms(seconds, "engine"),
        "streamed_over_whole_token_ms": token_ms(seconds, "whole"),
    }
    record(arguments.name, "What the server costs", body, result)


if __name__ == "__main__":
    main()
