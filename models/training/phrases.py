"""What people say to a model, read from the files beside this one.

`phrases.txt` has lists of words and requests by what answers them, `wordings.txt` how people ask
for each kind of edit, and `choices.toml` values, weights, layouts and answers. One request in eight
and one word in eight of the long lists are held out for evaluation.
"""

import random
import re
import tomllib
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HELD_OUT_OF = 8
_LONG, _SHORT = 40, 8  # values of a list, and requests of a kind, that have a held-out part
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Wordings:
    """How some requests are put: the `official` wordings, that edits are made with, and others."""

    official: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def _text(file: str) -> str:
    return Path(__file__).with_name(file).read_text(encoding="utf-8")


def _lines(file: str) -> Iterator[str]:
    return (line for line in _text(file).splitlines() if line and not line.startswith("# "))


def _read_phrases() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
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
    parts: dict[str, Wordings] = {}
    own = Wordings()
    for line in _lines("wordings.txt"):
        if line.startswith("["):
            own = parts[line[1:-1]] = Wordings()
        elif line.startswith("= "):
            own.official.append(line[2:])
        elif line.startswith("+ "):
            own.others.extend(parts[line[2:]].others)
        else:
            own.others.append(line)
    return parts


LISTS, REQUESTS = _read_phrases()
WORDINGS = _read_wordings()
CHOICES: Mapping[str, Any] = tomllib.loads(_text("choices.toml"))


def is_held_out(text: str | bytes) -> bool:
    """True for one text in `HELD_OUT_OF`, by its hash."""
    return zlib.crc32(text.encode() if isinstance(text, str) else text) % HELD_OUT_OF == 0


def wordings_of(name: str) -> list[Wordings]:
    """The wordings of one part, or of all parts of a kind."""
    return [one for part, one in WORDINGS.items() if f"{part}:".startswith(f"{name}:")]


def official(name: str) -> list[str]:
    """The wordings that edits of a kind, or those of one part, are made with."""
    return [words for one in wordings_of(name) for words in one.official]


def unmarked(text: str) -> str:
    """A text in small letters, without the marks at its end."""
    return text.rstrip(".?!").lower()


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


def fill(
    kind: str, rng: random.Random, made: Mapping[str, Callable[[], str]], *, held_out: bool
) -> str:
    """A request of a kind; `made` makes the values of slots that have no list."""

    def value(slot: re.Match[str]) -> str:
        if slot[1] in made:
            return made[slot[1]]()
        values = LISTS.get(slot[1])
        return rng.choice(part(values, held_out=held_out)) if values else slot[0]

    return _SLOT.sub(value, rng.choice(requests_of(kind, held_out=held_out)))


def drawn(weights: Mapping[str, float], rng: random.Random) -> str:
    """A key, drawn by its weight."""
    return rng.choices(list(weights), list(weights.values()))[0]
