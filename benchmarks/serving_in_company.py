"""How long does a fill-in wait for its first token while the server writes or reads something long?

    python -m benchmarks.serving_in_company [--repeats 30]

In turns: with an idle server, at a random moment of a chat's answer of 2,000 tokens, and at a
random moment while a chat's prompt of 1,700 tokens is read. Each fill-in is new to the caches. The
aim is twice the time of an idle server and one chunk of a prefill: the longest, because the later
chunks of a prompt attend to more. Tests count the forwards in between. The server is a process of
its own.
"""

import argparse
import json
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from random import Random
from time import sleep
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.machine.backend import find_backend
from akunu_py.options import BUNDLED_MODEL
from benchmarks.records import markdown_table, record
from benchmarks.served import PATIENCE_S, served
from benchmarks.serving import first_token_s, post
from benchmarks.serving_load import wait_until_idle

LONG_PROMPT: Final = Path(textwrap.__file__).read_text(encoding="utf-8")[:4600]
"""Some 1,700 tokens of the bundled model."""
ANSWER: Final = 2000
MOST_READ: Final = 300
"""The fill-in comes before so many tokens of the answer; the rest is not waited for."""
LATEST: Final = 0.7
"""The fill-in comes before this part of the prefill has passed."""


class Company:
    """Fill-ins for a server, and what else it is asked for.

    Args:
        url: the server's address.
    """

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._client = HTTPConnection(self._address, timeout=PATIENCE_S)
        self._gauges = httpx2.Client(base_url=url, timeout=PATIENCE_S)
        self._draw = Random(1)
        self._asked = 0
        self._pool = ThreadPoolExecutor(1)

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()
        self._gauges.close()
        self._pool.shutdown()

    def idle(self) -> float:
        """Seconds to the first token while nothing else is asked for."""
        wait_until_idle(self._gauges)
        return self._fill_in()

    def in_an_answer(self) -> float:
        """The same in the middle of a chat's answer."""
        wait_until_idle(self._gauges)
        body = {"messages": [{"role": "user", "content": "Tell me a long story."}], "stream": True,
                "max_tokens": ANSWER, "temperature": 1, "seed": self._next(),
                "ignore_eos": True}  # fmt: skip
        with closing(HTTPConnection(self._address, timeout=PATIENCE_S)) as chat:
            answer = post(chat, "/v1/chat/completions", body)
            for _ in range(self._draw.randrange(20, MOST_READ)):
                while not answer.readline().startswith(b"data: {"):
                    pass
            return self._fill_in()

    def in_a_prefill(self, prefill_s: float) -> float | None:
        """The same in the middle of a prefill of so many seconds; None if that ended before."""
        wait_until_idle(self._gauges)
        reading = self._pool.submit(self._read_prompt)
        sleep(self._draw.uniform(0, LATEST * prefill_s))
        taken = self._fill_in()
        is_within = not reading.done()
        reading.result()
        return taken if is_within else None

    def prefill(self) -> list[float]:
        """The seconds of each chunk of the long prompt."""
        wait_until_idle(self._gauges)
        done = [progress["time_ms"] / 1000 for progress in self._read_prompt()]
        return [after - before for before, after in pairwise(done)]

    def _next(self) -> int:
        self._asked += 1
        return self._asked

    def _read_prompt(self) -> list[dict[str, Any]]:
        """Lets the server read the long prompt; returns how far it was, and when."""
        message = {"role": "user", "content": f"# {self._next()}\n{LONG_PROMPT}"}
        body = {"messages": [message], "max_tokens": 1, "stream": True, "return_progress": True}
        with closing(HTTPConnection(self._address, timeout=PATIENCE_S)) as client:
            lines = post(client, "/v1/chat/completions", body).read().splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        return [event["prompt_progress"] for event in events if "prompt_progress" in event]

    def _fill_in(self) -> float:
        gap = {"input_prefix": f"# {self._next()}\ndef mean(values):\n    total = ",
               "input_suffix": "\n    return total / len(values)\n"}  # fmt: skip
        answer = {"n_predict": 1, "ignore_eos": True, "temperature": 0, "stream": True}
        return first_token_s(self._client, gap | answer)


def measure(company: Company, repeats: int) -> dict[str, list[float]]:
    """Seconds of fill-ins by when they come, of whole prefills, and of their longest chunks."""
    found: dict[str, list[float]] = {
        name: [] for name in ("idle", "in an answer", "in a prefill", "prefill", "chunk")
    }
    company.idle()
    company.prefill()
    for _ in range(repeats):
        chunks = company.prefill()
        found["prefill"].append(sum(chunks))
        found["chunk"].append(max(chunks))
        found["idle"].append(company.idle())
        found["in an answer"].append(company.in_an_answer())
        within = company.in_a_prefill(sum(chunks))
        if within is not None:
            found["in a prefill"].append(within)
    return found


def report(found: dict[str, list[float]]) -> str:
    """A table, and how many fill-ins came in time."""
    idle, chunk = (Spread.of(found[name]).median for name in ("idle", "chunk"))
    bound = 2 * idle + chunk
    rows = []
    for name in ("idle", "in an answer", "in a prefill"):
        times = found[name]
        in_time = sum(taken <= bound for taken in times)
        spread = Spread.of([1000 * taken for taken in times])
        rows.append([name, f"{spread:.1f}", f"{1000 * max(times):.1f}",
                     f"{in_time} of {len(times)}"])  # fmt: skip
    head = ["the fill-in comes", "first token after, ms: median (quartiles)", "at most", "in time"]
    return (
        f"{markdown_table(head, rows)}\n\n"
        f"In time: within {1000 * bound:.1f} ms, which are two times {1000 * idle:.1f} ms and one "
        f"chunk of {1000 * chunk:.1f} ms, the median of the longest. The long prompt takes "
        f"{1000 * Spread.of(found['prefill']).median:.0f} ms by itself."
    )


def main() -> None:
    """Runs the measurement and records it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=BUNDLED_MODEL)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--parallel", type=int, default=4, help="requests answered at a time")
    parser.add_argument("--name", default="serving_in_company", help="of the files in results/")
    arguments = parser.parse_args()
    machine = describe_machine(find_backend())
    with (
        served(arguments.model, ["--parallel", str(arguments.parallel)]) as server,
        closing(Company(server.url)) as company,
    ):
        found = measure(company, arguments.repeats)
    body = f"{machine_line(machine)}\n\nModel {arguments.model}.\n\n{report(found)}"
    result = {"machine": machine, "model": arguments.model, "seconds": found}
    record(arguments.name, "A fill-in in company", body, result)


if __name__ == "__main__":
    main()
