"""Structured text: records as JSON, CSV and tables, conversions between them, patterned tests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from models.training.edits.base import Pool
from models.training.examples import Turns

Record = dict[str, object]

_FIRST = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ines", "Kim", "Max", "Nora")
_PLACES = ("Berlin", "Oslo", "Paris", "Lima", "Quito", "Delhi", "Tokyo", "Perth", "Dakar", "Cairo")
_REQUESTS = (
    "Convert this {source} to {target}",
    "Turn this {source} into {target}",
    "Write this {source} as {target}",
)


def records(rng: random.Random, pool: Pool) -> list[Record]:
    """Three to nine records with the same keys, some of them counting."""
    keys = ["id", *rng.sample(pool.names, rng.randint(1, 4))]
    kinds = [rng.choice(("name", "place", "number", "flag", "word")) for _ in keys[1:]]
    first = rng.choice((0, 1, 1, 10, 100))

    def value(kind: str) -> object:
        return {
            "name": rng.choice(_FIRST),
            "place": rng.choice(_PLACES),
            "number": rng.randint(0, 999),
            "flag": rng.random() < 0.5,
            "word": rng.choice(pool.names),
        }[kind]

    return [
        dict(zip(keys, [first + index, *map(value, kinds)], strict=True))
        for index in range(rng.randint(3, 9))
    ]


def as_json(rows: list[Record]) -> str:
    """A JSON list, one record a line."""
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]"


def as_csv(rows: list[Record]) -> str:
    """A header and one line a record."""
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    return "\n".join(lines)


def as_table(rows: list[Record]) -> str:
    """A Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(v) for v in r.values()] for r in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


_FORMS = {"JSON": ("json", as_json), "CSV": ("csv", as_csv), "a table": ("", as_table)}


def patterned_tests(rng: random.Random, pool: Pool) -> str:
    """Test functions that differ in a name and a number."""
    subject, verb = rng.sample(pool.names, 2)
    cases = rng.sample(pool.names, rng.randint(3, 6))
    parts = [
        f"def test_{subject}_{case}():\n    {subject} = {verb}({number})\n"
        f'    assert {subject}.{case} == {number}\n    assert str({subject}) == "{case}"\n'
        for case, number in ((case, rng.randint(0, 99)) for case in cases)
    ]
    return "\n\n".join(parts)


def texts(rng: random.Random, pool: Pool, count: int) -> Iterator[str]:
    """Plain documents, one form each."""
    for _ in range(count):
        if rng.random() < 0.3:
            yield patterned_tests(rng, pool)
        else:
            yield rng.choice((as_json, as_csv, as_table))(records(rng, pool)) + "\n"


def conversions(rng: random.Random, pool: Pool, count: int) -> Iterator[Turns]:
    """Chat turns that ask for the same records in another form."""
    for _ in range(count):
        source, target = rng.sample(list(_FORMS), 2)
        rows = records(rng, pool)
        given, wanted = (f"```{_FORMS[f][0]}\n{_FORMS[f][1](rows)}\n```" for f in (source, target))
        plain = source.removeprefix("a ")
        request = rng.choice(_REQUESTS).format(source=plain, target=target)
        yield [("user", f"{request}:\n{given}"), ("assistant", wanted)]
