"""What the server costs, how long a completion waits for others, and whether a crowd breaks it.

    python -m benchmarks.serving cost     [--quick]
    python -m benchmarks.serving company  [--quick]
    python -m benchmarks.serving load     [--quick] [--parallel 1 --name serving_load_one]
                                          [--model FOLDER/hybrid --name serving_load_hybrid]
    python -m benchmarks.serving pool     [--quick] [--clients 8]

`cost`: the first token of an `/infill` request after each keystroke in a file of 1,500 tokens,
cached or not; the time of a request beyond its engine's; the time of a streamed token beyond that
of a whole answer. `company`: the first token of an `/infill` request while the server is idle, in
the middle of a chat's answer, and in the middle of a prefill of 1,700 tokens. A chunk of a prefill
cannot be interrupted, so the aim is twice the idle time and one chunk. `load`: 32 clients of all
contracts, a third of which hang up. Every answer is compared with the one to the same request when
it is alone; none may be lost or given twice, and the memory may not grow. `pool`: the same crowd on
three models where there is memory for two; the memory over rounds of loading and unloading; and
how long a completion of a loaded model waits while another one loads.

The server is a process of its own. The client is the standard library's and shares its cores.
"""

import json
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from itertools import pairwise
from pathlib import Path
from random import Random
from time import perf_counter, sleep
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.machine.backend import find_backend
from akunu_py.model.files import bundled_model
from akunu_py.options import BUNDLED_MODEL
from benchmarks.random_model import write_random_model
from benchmarks.records import markdown_table, options_of, paired_ratios, record, time_in_turns
from benchmarks.served import LOOK_AGAIN_S, PATIENCE_S, Served, counts, served
from tests.server.load import Load

CODE: Final = Path(textwrap.__file__).read_text(encoding="utf-8")
BEFORE, AFTER = 3600, 1200
"""Characters around the gap: about 1,500 tokens."""
LINE: Final = "    words = [word.strip() for word in text.split()]"
ONE_TOKEN: Final[dict[str, Any]] = {
    "n_predict": 1, "ignore_eos": True, "temperature": 0, "stream": True,
}  # fmt: skip
ANSWER: Final = 2000
"""Tokens of the answer that others wait for."""
MOST_READ: Final = 400
"""Most tokens of it that are read before the fill-in comes."""
LATEST: Final = 0.7
"""Latest moment in a prefill, as a share of its time: later ones could find it ended."""
TOKENS: Final = 128
"""Tokens of the answers that show what a streamed token costs."""
LOAD_TOKENS: Final = 32
PARTS: Final = 5
STAYS_S: Final = 1.5
POOL_MEMORY: Final = "330MB"
"""Of which each of the three models takes 117 to 150."""
WARM_ROUNDS: Final = 4
MAX_ROUND_GROWTH: Final = 1.05
"""The memory after the last round of loading, over that after the first few."""
MAX_GROWTH: Final = 1.1
"""The memory after the last part of the load, over that after the first."""
TEMPLATE: Final = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    '<tool_call>{"name": tool_call.name}<|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The bundled model's, with tools, which a grammar makes it call."""

Found = tuple[str, dict[str, Any]]
"""The body of a record, and the result."""


class Client:
    """A connection to a server, and requests that are timed. No two prompts are the same."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.address = urlsplit(server.url).netloc
        self._http = HTTPConnection(self.address, timeout=PATIENCE_S)
        self._gauges = httpx2.Client(base_url=server.url, timeout=PATIENCE_S)
        self._asked = 0

    def close(self) -> None:
        self._http.close()
        self._gauges.close()

    def number(self) -> int:
        self._asked += 1
        return self._asked

    def wait_until_idle(self) -> None:
        """Waits until the server has nothing left to do."""
        names = ("requests_processing", "requests_deferred")
        while any(counts(self._gauges)[name] for name in names):
            sleep(LOOK_AGAIN_S)

    def empty_s(self) -> float:
        """Seconds of a request that the server answers without the engine."""
        begun = perf_counter()
        self._http.request("GET", "/health")
        self._http.getresponse().read()
        return perf_counter() - begun

    def first_token_s(self, body: dict[str, Any]) -> float:
        """Seconds from an `/infill` request to its first event."""
        begun = perf_counter()
        response = post(self._http, "/infill", body | ONE_TOKEN)
        line = response.readline()
        taken = perf_counter() - begun
        response.read()
        assert line.startswith(b"data: "), line
        return taken

    def answer(self, length: int, *, streams: bool) -> float:
        """Gives an answer of this length without drafts; seconds that it took beyond its engine."""
        body = {"prompt": "def mean(values):\n    return ", "n_predict": length, "temperature": 0,
                "num_draft_tokens": 0, "ignore_eos": True, "stream": streams}  # fmt: skip
        begun = perf_counter()
        text = post(self._http, "/completion", body).read()
        taken = perf_counter() - begun
        last = json.loads(text.strip().rpartition(b"\n")[2].removeprefix(b"data: "))
        assert last["tokens_predicted"] == length
        own_ms: float = last["timings"]["prompt_ms"] + last["timings"]["predicted_ms"]
        return taken - own_ms / 1000


def post(client: HTTPConnection, path: str, body: dict[str, Any]) -> HTTPResponse:
    """Sends a request and returns the response as soon as it begins."""
    client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return client.getresponse()


def milliseconds(seconds: list[float]) -> Spread:
    return Spread.of([1000 * one for one in seconds])


def cost(client: Client, repeats: int) -> Found:
    """First tokens while typing, the time of a request, and that of a streamed token."""
    middle = CODE.index("\n\n", BEFORE) + 1
    before, after = CODE[middle - BEFORE : middle], CODE[middle : middle + AFTER]
    asked = {"input_prefix": before, "input_suffix": after}
    lines = [LINE[:end] for end in range(len(LINE) - repeats, len(LINE) + 1)]
    client.first_token_s(asked | {"prompt": lines[0]})
    warm = [client.first_token_s(asked | {"prompt": line}) for line in lines[1:]]
    cold = [
        client.first_token_s(asked | {"prompt": line, "input_prefix": f"{client.number()}{before}"})
        for line in lines[1:]
    ]
    client.answer(1, streams=False)
    outside = [client.answer(1, streams=False) for _ in range(repeats)]
    empty = [client.empty_s() for _ in range(repeats)]
    taken = time_in_turns(
        {
            "whole": partial(client.answer, TOKENS, streams=False),
            "streamed": partial(client.answer, TOKENS, streams=True),
        },
        repeats=repeats,
        warmups=2,
    )
    pairs = zip(taken["streamed"], taken["whole"], strict=True)
    token = Spread.of([1000 * (streamed - whole) / TOKENS for streamed, whole in pairs])
    rows = [["cold", f"{milliseconds(cold):.2f}"], ["typing", f"{milliseconds(warm):.2f}"]]
    body = (
        f"{markdown_table(['cache', 'ms to the first token: median (quartiles)'], rows)}\n\n"
        f"While typing, it comes {paired_ratios(warm, cold):.1f} times as soon.\n\n"
        f"A request takes {milliseconds(outside):.2f} ms in addition to the engine's time. An "
        f"empty request takes {milliseconds(empty):.2f} ms: HTTP, and this client.\n\n"
        f"A streamed token takes {token:.3f} ms more than one of a whole answer."
    )
    return body, {"cold_s": cold, "typing_s": warm, "request_s": outside, "answer_s": taken}


def company(client: Client, repeats: int) -> Found:
    """First tokens of completions while others are answered."""
    draw, pool = Random(1), ThreadPoolExecutor(1)
    long_prompt = CODE[:4600]

    def fill_in() -> float:
        return client.first_token_s(
            {"input_prefix": f"# {client.number()}\ndef mean(values):\n    total = ",
             "input_suffix": "\n    return total / len(values)\n"}
        )  # fmt: skip

    def read_prompt() -> list[float]:
        """Lets the server read the long prompt; returns the seconds of each chunk."""
        message = {"role": "user", "content": f"# {client.number()}\n{long_prompt}"}
        body = {"messages": [message], "max_tokens": 1, "stream": True, "return_progress": True}
        with closing(HTTPConnection(client.address, timeout=PATIENCE_S)) as other:
            lines = post(other, "/v1/chat/completions", body).read().splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        done = [one["prompt_progress"]["time_ms"] for one in events if "prompt_progress" in one]
        return [(later - earlier) / 1000 for earlier, later in pairwise(done)]

    def in_an_answer() -> float:
        body = {"messages": [{"role": "user", "content": "Tell me a long story."}], "stream": True,
                "max_tokens": ANSWER, "temperature": 1, "seed": client.number(),
                "ignore_eos": True}  # fmt: skip
        with closing(HTTPConnection(client.address, timeout=PATIENCE_S)) as chat:
            answer = post(chat, "/v1/chat/completions", body)
            for _ in range(draw.randrange(20, MOST_READ)):
                while not answer.readline().startswith(b"data: {"):
                    pass
            return fill_in()

    found: dict[str, list[float]] = {
        name: [] for name in ("idle", "in an answer", "in a prefill", "prefill", "chunk")
    }
    fill_in()
    read_prompt()
    for _ in range(repeats):
        client.wait_until_idle()
        chunks = read_prompt()
        found["prefill"].append(sum(chunks))
        found["chunk"].append(max(chunks))
        client.wait_until_idle()
        found["idle"].append(fill_in())
        found["in an answer"].append(in_an_answer())
        client.wait_until_idle()
        reading = pool.submit(read_prompt)
        sleep(draw.uniform(0, LATEST * sum(chunks)))
        taken = fill_in()
        if not reading.done():
            found["in a prefill"].append(taken)
        reading.result()
    pool.shutdown()
    idle, chunk = (Spread.of(found[name]).median for name in ("idle", "chunk"))
    rows = []
    for name in ("idle", "in an answer", "in a prefill"):
        times = found[name]
        in_time = sum(taken <= 2 * idle + chunk for taken in times)
        rows.append([name, f"{milliseconds(times):.1f}", f"{1000 * max(times):.1f}",
                     f"{in_time} of {len(times)}"])  # fmt: skip
    heads = ["the fill-in comes", "first token after, ms: median (quartiles)", "at most", "in time"]
    body = (
        f"{markdown_table(heads, rows)}\n\n"
        f"In time: within {1000 * (2 * idle + chunk):.1f} ms, which are two times "
        f"{1000 * idle:.1f} ms and one chunk of {1000 * chunk:.1f} ms, the median of the longest. "
        f"The long prompt takes {1000 * Spread.of(found['prefill']).median:.0f} ms by itself."
    )
    return body, found


def load(client: Client, requests: int, clients: int, *, tools: bool) -> Found:
    """How the requests of a crowd end, in parts, after each of which the memory is read."""
    server = client.server
    crowd = Load(server.url, tokens=LOAD_TOKENS, tools=tools, stays_s=STAYS_S)
    plans = [crowd.plan(requests // PARTS) for _ in range(PARTS)]
    parts: list[dict[str, Any]] = []
    with httpx2.Client(base_url=server.url, timeout=PATIENCE_S) as gauges:
        client.wait_until_idle()
        before, begun = counts(gauges), perf_counter()
        for plan in plans:
            outcome = crowd.run(plan, clients)
            client.wait_until_idle()
            parts.append(asdict(outcome) | {"resident_bytes": server.resident_bytes()})
        after, seconds = counts(gauges), perf_counter() - begun
        busy = sum(slot["is_processing"] for slot in gauges.get("/slots").json())
    counted, cancelled = (
        round(after[name] - before[name]) for name in ("requests_total", "requests_cancelled_total")
    )
    heads = ["part", "answered as alone", "refused as busy", "hung up", "wrong", "failed",
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
    found = complaints(parts, counted, busy)
    body = (
        f"{clients} clients send {requests:,} requests for answers of up to {LOAD_TOKENS} tokens; "
        "a third of them hang up while they wait or in the middle of a stream.\n\n"
        f"{markdown_table(heads, rows)}\n\n"
        f"The server counted {counted} answers that ended, {cancelled} of them cancelled, in "
        f"{seconds:.0f} s; {after['n_busy_slots_per_decode']:.2f} sequences advanced in a round of "
        "decoding." + "".join(f"\n- {line}" for line in found)
    )
    return body, {"parts": parts, "complaints": found}


def pool(client: Client, requests: int, clients: int, rounds: int, models: Sequence[str]) -> Found:
    """Three models where there is room for two: a crowd, rounds of loading, and a completion
    meanwhile."""
    server = client.server
    crowd = Load(server.url, tokens=LOAD_TOKENS, models=models, stays_s=STAYS_S)
    with httpx2.Client(base_url=server.url, timeout=PATIENCE_S) as gauges:
        plan = crowd.plan(requests)
        client.wait_until_idle()
        before, begun = counts(gauges), perf_counter()
        outcome = crowd.run(plan, clients)
        client.wait_until_idle()
        after, seconds = counts(gauges), perf_counter() - begun
        loads, unloads = (
            round(after[name] - before[name])
            for name in ("models_loaded_total", "models_unloaded_total")
        )
        found = [*outcome.wrong, *outcome.failed]
        kept, goes = models[0], models[-1]

        def ask(model: str, keep_alive: int) -> None:
            body = {"model": model, "keep_alive": keep_alive}  # it is only loaded
            gauges.post("/api/generate", json=body).raise_for_status()

        def is_loaded(model: str) -> bool:
            running = gauges.get("/api/ps").json()["models"]
            return any(one["name"].startswith(model) for one in running)

        for model in models[1:]:
            ask(model, 0)
        ask(kept, -1)
        idle = [client.first_token_s(fill_in(client)) for _ in range(rounds)]
        beside, resident, is_over = list[float](), list[int](), False
        with ThreadPoolExecutor(1) as typist, closing(Client(server)) as typing:

            def type_on() -> None:
                while not is_over:
                    beside.append(typing.first_token_s(fill_in(client)))

            typed = typist.submit(type_on)
            for _ in range(rounds):
                ask(goes, 0)
                while is_loaded(goes):
                    sleep(LOOK_AGAIN_S)
                resident.append(server.resident_bytes() or 0)
            is_over = True
            typed.result()
    settled, last = resident[min(WARM_ROUNDS, rounds - 1)], resident[-1]
    if last > MAX_ROUND_GROWTH * settled:
        found.append(f"the memory grew from {settled >> 20} to {last >> 20} MiB")
    waited = milliseconds(beside)
    body = (
        f"{clients} clients send {requests:,} requests for answers of up to {LOAD_TOKENS} tokens "
        f"to {len(models)} models ({', '.join(models)}), of which two fit into the memory; a third "
        f"of them hang up. {outcome.answered} were answered as alone, {outcome.refused} refused, "
        f"{outcome.left} hung up, {len(outcome.wrong)} were wrong and {len(outcome.failed)} "
        f"failed, in {seconds:.0f} s with {loads} loads and {unloads} unloads. The slowest answer "
        f"took {outcome.slowest_s:.1f} s.\n\n"
        f"{rounds} rounds of loading and unloading {goes} beside {kept}: {settled / 2**20:.0f} MiB "
        f"after the {min(WARM_ROUNDS + 1, rounds)}th, {last / 2**20:.0f} MiB after the last.\n\n"
        f"The first token of a fill-in of {kept} comes after {milliseconds(idle):.1f} ms while the "
        f"server is idle, and after {waited:.1f} ms during these rounds ({len(beside)} fill-ins, "
        f"the slowest after {max(beside) * 1000:.0f} ms)."
        + "".join(f"\n- {line}" for line in found)
    )
    facts = {"loads": loads, "unloads": unloads, "resident_bytes": resident, "idle_s": idle}
    return body, asdict(outcome) | facts | {"beside_s": beside, "complaints": found}


def fill_in(client: Client) -> dict[str, Any]:
    """A fill-in of a few lines that no other one begins like."""
    return {"input_prefix": f"# {client.number()}\ndef area(width, height):\n    return ",
            "input_suffix": "\n"}  # fmt: skip


def write_models(place: Path) -> list[str]:
    """Two models besides the bundled one: the same with a long context and tools, and a random
    hybrid; the names of all three."""
    found, long, hybrid = bundled_model(), place / "ember-64k", place / "hybrid"
    shutil.copytree(found, long)
    config = json.loads((long / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = 1 << 16
    (long / "config.json").write_text(json.dumps(config), encoding="utf-8")
    settings = json.loads((long / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = TEMPLATE
    (long / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    write_random_model(hybrid, "hybrid-30m", None)
    return [BUNDLED_MODEL, long.name, hybrid.name]


def complaints(parts: list[dict[str, Any]], counted: int, busy: int) -> list[str]:
    """What went wrong: answers that are wrong, lost or given twice, and memory that grew.

    The server counts an answer whose client hung up as it ended, or not at all.
    """
    found = [line for part in parts for line in (*part["wrong"], *part["failed"])]
    arrived, left = (sum(part[name] for part in parts) for name in ("choices", "left_choices"))
    if not arrived <= counted <= arrived + left:
        found.append(f"{arrived} answers arrived, {left} were left, and {counted} were counted")
    if busy:
        found.append(f"{busy} slots are busy after the end")
    first, last = (parts[at]["resident_bytes"] for at in (0, -1))
    if first is not None and last > MAX_GROWTH * first:
        found.append(f"the memory grew from {first >> 20} to {last >> 20} MiB")
    return found


def main() -> None:
    parser = options_of(__doc__, quick="a tenth of the requests")
    parser.add_argument("what", choices=("cost", "company", "load", "pool"))
    parser.add_argument("--model", default=BUNDLED_MODEL)
    parser.add_argument("--parallel", type=int, default=4, help="requests answered at a time")
    parser.add_argument("--clients", type=int, default=32, help="of the load")
    parser.add_argument("--name", help="of the file in results/; serving_WHAT by default")
    asked = parser.parse_args()
    tools = asked.model == BUNDLED_MODEL and asked.what == "load"
    words = ["--parallel", str(asked.parallel), *(("--chat-template", TEMPLATE) if tools else ())]
    repeats, requests = (3, 100) if asked.quick else (30, 1000)
    place, models = Path(tempfile.mkdtemp()), list[str]()
    if asked.what == "pool":
        models = write_models(place)
        words += ["--models-dir", str(place), "--memory", POOL_MEMORY]
    measures: dict[str, Callable[[Client], Found]] = {
        "cost": partial(cost, repeats=repeats),
        "company": partial(company, repeats=repeats),
        "load": partial(load, requests=requests, clients=asked.clients, tools=tools),
        "pool": partial(
            pool,
            requests=requests,
            clients=asked.clients,
            rounds=5 if asked.quick else 50,
            models=models,
        ),
    }
    machine = describe_machine(find_backend())
    with served(asked.model, words) as server, closing(Client(server)) as client:
        body, result = measures[asked.what](client)
    shutil.rmtree(place)
    model = Path(asked.model).name
    about = f"{machine_line(machine)}\n\nModel {model}, {asked.parallel} at a time."
    title = {
        "cost": "What the server costs",
        "company": "A fill-in in company",
        "load": "The server under load",
        "pool": "Three models in room for two",
    }[asked.what]
    record(asked.name or f"serving_{asked.what}", title, f"{about}\n\n{body}", result)
    sys.exit(1 if result.get("complaints") else 0)


if __name__ == "__main__":
    main()
