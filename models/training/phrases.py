"""What people say to a model: word lists, requests by what answers them (`phrases.txt`), and how
they ask for each kind of edit (`wordings.txt`).

One request in eight and one word in eight of the long lists are held out for evaluation.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_OF = 8
_LONG, _SHORT = 40, 8
"""Lists of at least so many values have a held-out part, and so have kinds of so many requests."""
_SLOT = re.compile(r"\{(\w+)\}")


def is_held_out(text: str | bytes) -> bool:
    """True for one text in `HELD_OUT_OF`, by its hash."""
    return zlib.crc32(text.encode() if isinstance(text, str) else text) % HELD_OUT_OF == 0


@dataclass(frozen=True)
class Wordings:
    """How some requests are put: the `official` wordings, that edits are made with, and others."""

    official: Sequence[str]
    others: Sequence[str]


def _lines(file: str) -> Iterator[str]:
    """The lines of a file beside this one, without comments and empty ones."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return (line for line in text.splitlines() if line and not line.startswith("# "))


def _read_phrases() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The lists and the requests of `phrases.txt`."""
    lists: dict[str, list[str]] = {}
    requests: dict[str, list[str]] = defaultdict(list)
    name = kind = ""
    for line in _lines("phrases.txt"):
        if line.startswith("= "):
            name = line[2:]
        elif line.startswith("["):
            kind = line[1:-1]
        elif kind:
            requests[kind].append(line)
        else:
            lists[name] = line.split(" | ")
    return lists, dict(requests)


def _read_wordings() -> dict[str, Wordings]:
    """The parts of `wordings.txt`."""
    parts: dict[str, Wordings] = {}
    official, others = list[str](), list[str]()
    for line in _lines("wordings.txt"):
        if line.startswith("["):
            official, others = [], []
            parts[line[1:-1]] = Wordings(official, others)
        elif line.startswith("= "):
            official.append(line[2:])
        elif line.startswith("+ "):
            others += parts[line[2:]].others
        else:
            others.append(line)
    return parts


LISTS, REQUESTS = _read_phrases()
WORDINGS = _read_wordings()


def wordings_of(name: str) -> list[Wordings]:
    """The wordings of one part, or of all parts of a kind."""
    return [one for part, one in WORDINGS.items() if f"{part}:".startswith(f"{name}:")]


def official(name: str) -> list[str]:
    """The wordings that edits of a kind, or those of one part, are made with."""
    return [words for one in wordings_of(name) for words in one.official]


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


def requests_of(kind: str, *, held_out: bool) -> list[str]:
    """The held-out requests of a kind, or the others."""
    return part(REQUESTS[kind], held_out=held_out, least=_SHORT)


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

    return _SLOT.sub(value, rng.choice(requests_of(kind, held_out=held_out)))
