"""What drafting costs: microseconds and bytes per token, at contexts of 1k to 64k tokens.

    python -m benchmarks.drafter_cost [--drafters auto suffix ngram]

The text is this interpreter's standard library, split into words and signs. After a context of the
given length, two texts are decoded by teacher forcing, in rounds of `propose`, `feedback` and
`extend`: the text that follows in the library, and the last 1,000 tokens with every 40th changed.
The time of a round is divided among the tokens it emitted, and the median is over tokens. There
are several passes, in which the drafters take turns; the quickest pass counts, because the others
include what else the machine did.
"""

from __future__ import annotations

import re
import statistics
import sysconfig
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from akunu_py.bench.measurement import describe_machine, machine_line
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import Drafter
from akunu_py.drafting.recall import MAX_TEXTS
from akunu_py.machine.backend import find_backend
from akunu_py.memory.projects import Memory
from akunu_py.tokens import common_prefix_length
from benchmarks.baselines import ALL_DRAFTERS
from benchmarks.records import markdown_table, options_of, record

CONTEXTS = (1_000, 4_000, 16_000, 64_000)
DECODED = 2_000
COPIED = 1_000
EDIT_EVERY = 40
LIMIT = 32
PASSES = 7
WORD = re.compile(r"\n *|[A-Za-z]+|\d| +|\S")


@cache
def other_requests() -> Memory:
    """As many earlier requests as are kept, which share no token with the text."""
    memory, draw = Memory(remembers=True), Random(0)
    for number in range(MAX_TEXTS):
        drafter, first = AutoDrafter(), 10_000_000 * (number + 1)
        memory.lend(drafter, None)
        drafter.begin([first + draw.randrange(4000) for _ in range(DECODED)])
        drafter.end()
    return memory


def remembering() -> AutoDrafter:
    """`auto` with earlier requests to draft from, in vain."""
    drafter = AutoDrafter()
    other_requests().lend(drafter, None)
    return drafter


DRAFTERS: dict[str, Callable[[], Drafter]] = {**ALL_DRAFTERS, "auto-remembering": remembering}


def library_tokens(count: int) -> list[int]:
    """The first `count` tokens of the standard library, as ids in order of appearance."""
    ids: dict[str, int] = {}
    tokens: list[int] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for word in WORD.findall(path.read_text(encoding="utf-8", errors="replace")):
            tokens.append(ids.setdefault(word, 1_000 + len(ids)))
        if len(tokens) >= count:
            return tokens[:count]
    raise SystemExit(f"The standard library has only {len(tokens)} tokens.")


def edited(tokens: list[int]) -> list[int]:
    """A copy in which every 40th token is replaced by a new one."""
    return [
        900_000 + index if index % EDIT_EVERY == EDIT_EVERY - 1 else token
        for index, token in enumerate(tokens)
    ]


def token_times(drafter: Drafter, text: list[int]) -> Iterator[float]:
    """Microseconds of every token while `text` is decoded."""
    position = 0
    while position < len(text):
        started = time.perf_counter()
        draft = drafter.propose(LIMIT)
        proposed = time.perf_counter()
        accepted = common_prefix_length(draft.tokens, tuple(text[position : position + LIMIT]))
        emitted = text[position : position + accepted + 1]
        resumed = time.perf_counter()
        drafter.feedback(draft, accepted)
        drafter.extend(emitted)
        spent = proposed - started + time.perf_counter() - resumed
        position += len(emitted)
        yield from [1e6 * spent / len(emitted)] * len(emitted)


def measured(name: str, tokens: list[int], context: int) -> dict[str, float]:
    """One pass: begin, decode new text, decode a copy; microseconds per token."""
    before, after = tokens[:-DECODED], tokens[-DECODED:]
    found: dict[str, float] = {}
    for kind, text in {"new": after, "copy": edited(before[-COPIED:])}.items():
        drafter = DRAFTERS[name]()
        started = time.perf_counter()
        drafter.begin(before[-context:])
        found["begin"] = 1e6 * (time.perf_counter() - started) / context
        found[kind] = statistics.median(token_times(drafter, text))
    return found


def summary(
    name: str, tokens: list[int], context: int, passes: list[dict[str, float]]
) -> dict[str, Any]:
    """One row: the quickest pass, the median pass, and the memory of the context."""
    row: dict[str, Any] = {"drafter": name, "context": context}
    for kind in passes[0]:
        took = [one[kind] for one in passes]
        row[f"{kind}_us"] = round(min(took), 2)
        row[f"{kind}_us_usual"] = round(statistics.median(took), 2)
    row["bytes_per_token"] = round(memory(name, tokens[-context - DECODED : -DECODED]) / context)
    return row


def memory(name: str, context: list[int]) -> int:
    """Bytes that a drafter holds after `begin`, with its own copies of the ids."""
    tracemalloc.start()
    drafter = DRAFTERS[name]()
    drafter.begin([token + 0 for token in context])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del drafter
    return held


COLUMNS = {
    "drafter": "drafter",
    "context": "context",
    "begin_us": "begin",
    "new_us": "new text",
    "new_us_usual": "(usual)",
    "copy_us": "edited copy",
    "copy_us_usual": "(usual)",
    "bytes_per_token": "bytes",
}


def main() -> None:
    parser = options_of(__doc__, name="drafter_cost")
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=list(DRAFTERS))
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    options = parser.parse_args()

    tokens = library_tokens(max(options.contexts) + DECODED)
    other_requests()
    cells = [(name, context) for name in options.drafters for context in options.contexts]
    passes = [{cell: measured(cell[0], tokens, cell[1]) for cell in cells} for _ in range(PASSES)]
    rows = [
        summary(name, tokens, context, [one[name, context] for one in passes])
        for name, context in cells
    ]
    table = markdown_table(
        list(COLUMNS.values()), [[row[column] for column in COLUMNS] for row in rows]
    )
    machine = describe_machine(find_backend())
    body = (
        f"{machine_line(machine)}; drafting alone.\n\nMicroseconds per token (`begin`: per token "
        f"of context) and bytes per token of context. Drafts of up to {LIMIT} tokens. The quickest "
        f"of {PASSES} passes; in brackets, the median pass.\n\n{table}"
    )
    record(options.name, "What drafting costs", body, {"machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
