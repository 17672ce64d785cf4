"""Every figure in README.md and docs/ is in the record that its paragraph names.

A paragraph or table that links to a record in `benchmarks/results/`, and a table next to such a
paragraph, may have no number that the record does not print. A cell of a table must be in the
record's rows of the same words, and in the column of the same head, if there is one. Elsewhere,
decimals, percentages, times and speeds are limits or versions, and are listed here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
HISTORY = {"decisions.md", "training.md"}
"""What was measured once, and is not measured again."""
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in HISTORY),
]
KNOWN = {
    "README.md": {"3.11"},
    "agents.md": {"2.5", "3.1", "3.3", "4.5", "4.7", "0.171", "2.1", "0.86", "1.18"},
    "drafters.md": {"1.2%"},
    "editors.md": {"0.8", "0.95", "0.05"},
    "machines.md": {"26.2", "3.5", "20 milliseconds"},
    "install.md": {"2.35", "3.11", "3.13", "3.14", "3.15", "22.04"},
    "macs.md": {"0.97", "100 ms"},
}
"""By page, what passages without a record may say: limits that the code sets, and versions."""

NUMBER = re.compile(r"(?<![\w.,/])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w/]|\.\d)")
UNITS = "ms|µs|microseconds|milliseconds|tokens/s|tokens per second|times as"
MEASURED = re.compile(
    rf"{NUMBER.pattern}(?:%| (?:{UNITS})(?!\w))|(?<![\w.,/])\d+\.\d+(?![\w/]|\.\d)"
)
LEAST = 10
"""Whole numbers below this may count things that no record counts."""


@dataclass(frozen=True)
class Row:
    """A row of a table: its cells by the heads of their columns; a heading above it is a cell."""

    cells: dict[str, str]
    heading: str = ""

    @property
    def words(self) -> set[str]:
        return {self.heading, *map(words, self.cells.values())}


def blocks(text: str) -> list[str]:
    """The paragraphs, list items and tables of a text without its code."""
    plain = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [part.strip() for part in re.split(r"\n\s*\n|\n(?=- )", plain) if part.strip()]


def rows(table: str, heading: str = "") -> list[Row]:
    head, _, *lines = ([c.strip() for c in line.strip("| ").split("|")]
                       for line in table.splitlines())  # fmt: skip
    return [Row(dict(zip(head, cells, strict=False)), heading) for cells in lines]


def record_rows(text: str) -> Iterator[Row]:
    heading = ""
    for block in blocks(text):
        if block.startswith("#"):
            heading = block.lstrip("# ")
        elif block.startswith("|"):
            yield from rows(block, heading)


def words(cell: str) -> str:
    """What a cell says, up to a bracket."""
    return re.sub(r"[`*]|\(.*", "", cell).strip()


def numbers(text: str) -> list[str]:
    """The numbers of a text, not those in code, links and names."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
    text = re.sub(r"(?<=\d)[-\u2013](?=\d)|(?<=\d)x\b", " ", text)
    return [number.replace(",", "") for number in NUMBER.findall(text)]


def is_in(number: str, text: str) -> bool:
    """Whether a record prints a number; 96% may be 0.96 there."""
    if "." not in number and int(number) < LEAST:
        return True
    share = float(number) / 100
    return not {number, f"{share:.2f}", f"{share:.3f}"}.isdisjoint(numbers(text))


def unbound_cells(table: str, record: str) -> Iterator[str]:
    known = list(record_rows(record))
    for row in rows(table):
        labels = row.words & set[str]().union(*(one.words for one in known)) - {""}
        labels = {label for label in labels if not NUMBER.fullmatch(label)}
        alike = [one for one in known if labels <= one.words]
        for head, cell in row.cells.items():
            same = [one for one in alike if head in one.words] or alike
            places = [one.cells.get(head, " ".join(one.cells.values())) for one in same]
            text = "\n".join(places) if labels else record
            heading = " ".join(label for label in labels if label in {o.heading for o in known})
            for number in numbers(cell):
                if not is_in(number, f"{text} {heading}"):
                    yield f"{number} in the column {head!r} of {' | '.join(row.cells.values())}"


def complaints(name: str, text: str) -> list[str]:
    """The figures on a page that are in no record, or that name none."""
    parts = blocks(text)
    linked = [re.findall(r"benchmarks/results/([\w-]+\.md)\)", part) for part in parts]
    found: list[str] = []
    for at, part in enumerate(parts):
        names = linked[at]
        if part.startswith("|") and not names:
            names = next(filter(None, (*linked[at + 1 : at + 2], *linked[at - 1 : at])), [])
        record = "\n\n".join((RESULTS / one).read_text(encoding="utf-8") for one in names)
        if not names:
            plain = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", part)
            figures = {match[0] for match in MEASURED.finditer(plain)} - KNOWN.get(name, set())
            found += [f"{figure} has no record" for figure in sorted(figures)]
        elif part.startswith("|"):
            found += unbound_cells(part, record)
        else:
            found += [f"{one} is not in {names}" for one in numbers(part) if not is_in(one, record)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_figure_is_in_the_record_that_it_names(page: Path) -> None:
    assert not complaints(page.name, page.read_text(encoding="utf-8"))


RECORD = """# Speed

| text | answers | over no drafts |
| --- | --- | --- |
| edit | own | 3.45 (3.09-3.69) |
| novel, sampled | own | 0.96 (0.94-0.99) |

It loses 4% at most.
"""
TABLE = "| text | over no drafts |\n| --- | --- |\n| {} | {} |\n\nBy [it](benchmarks/results/a.md)."
PROSE = "It loses {}, by [it](benchmarks/results/a.md)."


@pytest.mark.parametrize(
    ("page", "is_right"),
    [
        (TABLE.format("edit (a function)", "3.45"), True),
        (TABLE.format("edit (a function)", "3.46"), False),
        (TABLE.format("novel, sampled", "3.45"), False),
        (PROSE.format("4% at most"), True),
        (PROSE.format("14% at most"), False),
        ("It is 3.45 times as fast.", False),
        ("It takes 5 ms.", False),
        ("Python 3.11 is needed, and `--temp 0.7`.", True),
    ],
)
def test_a_changed_figure_is_noticed(
    page: str, is_right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.md").write_text(RECORD)
    monkeypatch.setattr("tests.test_figures.RESULTS", tmp_path)
    assert (not complaints("README.md", page)) is is_right
