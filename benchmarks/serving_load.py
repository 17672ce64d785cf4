"""Does the server survive a crowd? 32 clients, 1,000 requests of all contracts; a third hang up.

    python -m benchmarks.serving_load [--clients 32] [--requests 1000] [--parallel 4]

Every answer is compared with the answer to the same request when it is alone. The server's own
count of answers shows whether one was lost or given twice: it must be at least the number of
answers that arrived, and at most that number plus the requests that hung up. Memory is read after
every fifth of the load: the caches are full before the first reading, so it should not grow.
"""

import argparse
import sys
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import httpx2

from akunu_py.backend import find_backend
from akunu_py.bench.measurement import describe_machine, machine_line
from akunu_py.model_files import BUNDLED_MODEL
from benchmarks.load import Load
from benchmarks.records import markdown_table, record
from benchmarks.served import PATIENCE_S, Served, counts, served

PARTS = 5
GAUGES = ("requests_processing", "requests_deferred")


def wait_until_idle(client: httpx2.Client) -> None:
    """Waits until the server has nothing left to do."""
    while any(counts(client)[name] for name in GAUGES):
        pass


def put_under_load(server: Served, requests: int, clients: int, tokens: int) -> dict[str, Any]:
    """The outcome of every part, with the server's count of answers and its memory."""
    load = Load(server.url, tokens=tokens)
    parts: list[dict[str, Any]] = []
    with httpx2.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        wait_until_idle(client)
        before = counts(client)["requests_total"]
        for begin, end in pairwise(requests * part // PARTS for part in range(PARTS + 1)):
            outcome = load.run(end - begin, clients)
            wait_until_idle(client)
            parts.append(asdict(outcome) | {"resident_bytes": server.resident_bytes()})
        answers = counts(client)["requests_total"] - before
    return {"parts": parts, "answers_counted": round(answers)}


def complaints(result: dict[str, Any]) -> list[str]:
    """What went wrong: answers that are wrong, lost or given twice."""
    parts, counted = result["parts"], result["answers_counted"]
    found = [line for part in parts for line in (*part["wrong"], *part["failed"])]
    answered, left = (sum(part[name] for part in parts) for name in ("answered", "left"))
    answered += sum(len(part["wrong"]) for part in parts)
    if not answered <= counted <= answered + left:
        found.append(
            f"{answered} answers arrived, {left} requests hung up, and {counted} were counted"
        )
    return found


def table_of(parts: list[dict[str, Any]]) -> str:
    """One row for each part."""
    columns = ["part", "answered as alone", "refused as busy", "hung up", "wrong", "failed", "MiB"]
    rows = [
        [
            number,
            *(part[name] for name in ("answered", "refused", "left")),
            *(len(part[name]) for name in ("wrong", "failed")),
            "" if part["resident_bytes"] is None else round(part["resident_bytes"] / 2**20),
        ]
        for number, part in enumerate(parts, 1)
    ]
    return markdown_table(columns, rows)


def main() -> None:
    """Runs the load and records the outcome."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=BUNDLED_MODEL)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--parallel", type=int, default=4, help="requests answered at a time")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--name", default="serving_load", help="of the files in results/")
    arguments = parser.parse_args()
    if arguments.requests < PARTS or arguments.clients < 1:
        parser.error(f"--requests must be {PARTS} or more, and --clients 1 or more")
    machine = describe_machine(find_backend())
    with served(arguments.model, ["--parallel", str(arguments.parallel)]) as server:
        result = put_under_load(server, arguments.requests, arguments.clients, arguments.max_tokens)
    found = complaints(result)
    body = (
        f"{machine_line(machine)}\n\nModel {arguments.model}, {arguments.clients} clients, "
        f"{arguments.parallel} at a time, answers "
        f"of up to {arguments.max_tokens} tokens.\n\n{table_of(result['parts'])}\n\n"
        f"The server counted {result['answers_counted']} answers that ended, cancelled ones "
        "included."
    )
    body += "".join(f"\n- {line}" for line in found)
    result |= {"machine": machine, "model": arguments.model, "clients": arguments.clients}
    record(arguments.name, "The server under load", body, result)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
