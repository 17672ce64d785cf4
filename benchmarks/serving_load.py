"""Does the server survive a crowd? 32 clients, 1,000 requests of all contracts; a third hang up.

    python -m benchmarks.serving_load [--clients 32] [--requests 1000] [--parallel 4]

Chats, completions, fill-ins, schemas, tool calls, log-probabilities, penalties and three choices
at a time. Every answer is compared with the answer to the same request when it is alone. The
server's own count of answers shows whether one was lost or given twice: it must be at least the
number of answers that arrived, and at most that number plus those that clients left. Memory is read
after every fifth of the load: the caches are full before the first reading, so it should not grow.
"""

import argparse
import sys
from dataclasses import asdict
from time import perf_counter, sleep
from typing import Any

import httpx2

from akunu_py.bench.measurement import describe_machine, machine_line
from akunu_py.machine.backend import find_backend
from akunu_py.options import BUNDLED_MODEL
from benchmarks.load import Load
from benchmarks.records import markdown_table, record
from benchmarks.served import LOOK_AGAIN_S, PATIENCE_S, Served, counts, served

PARTS = 5
GAUGES = ("requests_processing", "requests_deferred")
STAYS_S = 1.5
MAX_GROWTH = 1.1
"""The memory after the last part, over that after the first."""
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    '<tool_call>{"name": tool_call.name}<|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The bundled model's, with tools, which a grammar makes it call."""


def wait_until_idle(client: httpx2.Client) -> None:
    """Waits until the server has nothing left to do."""
    while any(counts(client)[name] for name in GAUGES):
        sleep(LOOK_AGAIN_S)


def put_under_load(
    server: Served, requests: int, clients: int, tokens: int, *, tools: bool
) -> dict[str, Any]:
    """The outcome of every part, with the server's count of answers and its memory."""
    load = Load(server.url, tokens=tokens, tools=tools, stays_s=STAYS_S)
    sizes = [requests * (part + 1) // PARTS - requests * part // PARTS for part in range(PARTS)]
    plans = [load.plan(size) for size in sizes]
    parts: list[dict[str, Any]] = []
    with httpx2.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        wait_until_idle(client)
        before, begun = counts(client), perf_counter()
        for plan in plans:
            outcome = load.run(plan, clients)
            wait_until_idle(client)
            parts.append(asdict(outcome) | {"resident_bytes": server.resident_bytes()})
        after, seconds = counts(client), perf_counter() - begun
        busy = sum(slot["is_processing"] for slot in client.get("/slots").json())
    return {
        "parts": parts,
        "answers_counted": round(after["requests_total"] - before["requests_total"]),
        "cancelled": round(after["requests_cancelled_total"] - before["requests_cancelled_total"]),
        "sequences_per_round": after["n_busy_slots_per_decode"],
        "seconds": seconds,
        "busy_slots": busy,
    }


def complaints(result: dict[str, Any]) -> list[str]:
    """What went wrong: answers that are wrong, lost or given twice, and memory that grew."""
    parts, counted = result["parts"], result["answers_counted"]
    found = [line for part in parts for line in (*part["wrong"], *part["failed"])]
    arrived, left = (sum(part[name] for part in parts) for name in ("choices", "left_choices"))
    if not arrived <= counted <= arrived + left:
        found.append(f"{arrived} answers arrived, {left} were left, and {counted} were counted")
    if result["busy_slots"]:
        found.append(f"{result['busy_slots']} slots are busy after the end")
    first, last = (parts[at]["resident_bytes"] for at in (0, -1))
    if first is not None and last > MAX_GROWTH * first:
        found.append(f"the memory grew from {first >> 20} to {last >> 20} MiB")
    return found


def table_of(parts: list[dict[str, Any]]) -> str:
    """One row for each part."""
    columns = ["part", "answered as alone", "refused as busy", "hung up", "wrong", "failed",
               "slowest, s", "MiB"]  # fmt: skip
    rows = [
        [
            number,
            *(part[name] for name in ("answered", "refused", "left")),
            *(len(part[name]) for name in ("wrong", "failed")),
            f"{part['slowest_s']:.1f}",
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
    words = ["--parallel", str(arguments.parallel)]
    tools = arguments.model == BUNDLED_MODEL
    words += ["--chat-template", TEMPLATE] if tools else []
    with served(arguments.model, words) as server:
        result = put_under_load(
            server, arguments.requests, arguments.clients, arguments.max_tokens, tools=tools
        )
    found = complaints(result)
    body = (
        f"{machine_line(machine)}\n\nModel {arguments.model}, {arguments.clients} clients, "
        f"{arguments.parallel} at a time, answers of up to {arguments.max_tokens} tokens; a third "
        "of the clients hang up while they wait or in the middle of a stream."
        f"\n\n{table_of(result['parts'])}\n\n"
        f"The server counted {result['answers_counted']} answers that ended, "
        f"{result['cancelled']} of them cancelled, in {result['seconds']:.0f} s; "
        f"{result['sequences_per_round']:.2f} sequences advanced in a round of decoding."
    )
    body += "".join(f"\n- {line}" for line in found)
    result |= {"machine": machine, "model": arguments.model, "clients": arguments.clients}
    record(arguments.name, "The server under load", body, result)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
