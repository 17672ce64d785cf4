"""What people say to a model, from `phrases.txt`: word lists, and requests by what answers them.

One request in eight and one word in eight of the long lists are held out for evaluation.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HELD_OUT_OF = 8
_LONG = 40
"""Lists of at least so many values have a held-out part, and so have kinds of requests of 8."""
_SLOT = re.compile(r"\{(\w+)\}")


def is_held_out(text: str | bytes) -> bool:
    """True for one text in `HELD_OUT_OF`, by its hash."""
    return zlib.crc32(text.encode() if isinstance(text, str) else text) % HELD_OUT_OF == 0


def _read() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The lists and the requests of the file."""
    lists: dict[str, list[str]] = {}
    requests: dict[str, list[str]] = defaultdict(list)
    path = Path(__file__).with_name("phrases.txt")
    current: list[str] = []
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("= "):
            name = line[2:]
        elif line.startswith("[") and line.endswith("]"):
            name, current = "", requests[line[1:-1]]
        elif name and line:
            lists[name] = line.split(" | ")
        elif line and not line.startswith("# "):
            current.append(line)
    return lists, dict(requests)


LISTS, REQUESTS = _read()


def part(values: Sequence[str], *, held_out: bool, least: int = _LONG) -> list[str]:
    """The held-out values or the others; all where there are fewer than `least`.

    No held-out value differs from another one in case and final mark only, since requests are
    varied in those.
    """
    if len(set(values)) < least:
        return list(values)
    others = [value for value in values if not is_held_out(value)]
    if not held_out:
        return others
    known = {unmarked(value) for value in others}
    return [value for value in values if is_held_out(value) and unmarked(value) not in known]


def unmarked(text: str) -> str:
    """A text in small letters, without the marks at its end."""
    return text.rstrip(".?!").lower()


def fill(
    kind: str,
    rng: random.Random,
    made: Mapping[str, Callable[[], str]],
    *,
    held_out: bool = False,
) -> str:
    """A request of a kind; `made` makes the values of slots that have no list."""

    def value(slot: re.Match[str]) -> str:
        name = slot[1]
        if name in made:
            return made[name]()
        if name in LISTS:
            return rng.choice(part(LISTS[name], held_out=held_out))
        return slot[0]

    templates = part(REQUESTS[kind], held_out=held_out, least=HELD_OUT_OF)
    return _SLOT.sub(value, rng.choice(templates))
