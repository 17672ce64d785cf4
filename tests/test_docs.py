"""The pages for users: their links lead somewhere, their scripts run, their commands parse.

What `docs/editors.md` shows needs a server; `tests/wire/test_editors_page.py` runs it.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from akunu_py.__main__ import main
from akunu_py.cli.parser import parse
from akunu_py.cli.terminal import EXAMPLES

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
PROGRAM = ["python", "-m", "akunu_py"]

on_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, language: str) -> list[str]:
    fences = re.findall(r"^(`{3,})(\w*)\n(.*?)^\1$", text(page), re.DOTALL | re.MULTILINE)
    return [block for _, named, block in fences if named == language]


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The fragments that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def commands(block: str) -> Iterator[list[str]]:
    """The words of each command in a console block; a quoted argument may span lines."""
    for entry in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = entry.splitlines()
        for count in range(1, len(lines) + 1):
            try:
                yield shlex.split("\n".join(lines[:count]), comments=True)
            except ValueError:  # a quote is still open
                continue
            break


def test_the_readme_is_short() -> None:
    assert len(text(README)) < 9000


@on_every_page
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", text(page))
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not fragment or fragment in anchors(target), link


@on_every_page
def test_commands_parse(page: Path) -> None:
    for block in blocks(page, "console"):
        for words in commands(block):
            for start in range(len(words)):
                if words[start : start + 3] == PROGRAM:
                    rest = words[start + 3 :]
                    parse(rest[: rest.index("|")] if "|" in rest else rest)


def test_the_readme_shows_the_greetings_requests() -> None:
    assert all(example in text(README) for example in EXAMPLES)


def test_make_has_the_readmes_targets() -> None:
    named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", text(README)))
    assert {"chat", "test", "bench", "model"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", text(ROOT / "Makefile"), re.MULTILINE))


def test_the_readmes_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = blocks(README, "python")
    exec(compile(script, README.name, "exec"), {})
    assert capsys.readouterr().out


def test_the_readmes_edit_is_right_and_quick(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (words,) = (
        words for block in blocks(README, "console") for words in commands(block) if "edit" in words
    )
    source = ROOT / words[-2]
    before = source.read_text(encoding="utf-8")
    assert len(before.splitlines()) == 10
    (copy := tmp_path / source.name).write_text(before, encoding="utf-8")
    assert main(["edit", "--yes", "--json", str(copy), words[-1]]) == 0
    assert copy.read_text(encoding="utf-8") == before.replace("merged", "result")
    (edited,) = json.loads(capsys.readouterr().out)["files"]
    assert edited["stats"]["tokens_per_forward"] > 2


def test_the_readmes_picture_ends_as_its_record_says() -> None:
    record = text(ROOT / "benchmarks" / "results" / "edit_demo.md")
    picture = text(ROOT / "docs" / "pictures" / "edit.svg").replace("&#160;", " ")
    assert record.strip().splitlines()[-1].removeprefix("- ") in picture


def test_the_drafter_of_the_example_saves_forwards(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "drafters.md"
    (script,) = blocks(page, "python")
    exec(compile(script, page.name, "exec"), {})
    same, counts = capsys.readouterr().out.splitlines()
    without, with_drafts = map(int, re.findall(r"\d+", counts))
    assert same == "True"
    assert with_drafts < without


def places(page: Path) -> Iterator[tuple[str, str]]:
    """Each name on the page that describes the code, and the file named before it on its line."""
    for line in text(page).splitlines():
        file = ""
        for word in re.findall(r"`([\w/.]+)`", line):
            if word.endswith(".py"):
                file = word
                yield file, ""
            elif file and re.fullmatch(r"_?[A-Za-z]\w*(\.\w+)?", word):
                yield file, word


@pytest.mark.parametrize("place", sorted(set(places(ROOT / "docs" / "architecture.md"))), ids=str)
def test_every_place_in_the_architecture_exists(place: tuple[str, str]) -> None:
    file, name = place
    folder = ROOT if file.startswith("tests/") else ROOT / "akunu_py"
    code = (folder / file).read_text(encoding="utf-8")
    for part in name.split(".") if name else ():
        assert re.search(rf"^(\s*(async )?(def|class) )?{part}\b", code, re.MULTILINE), place


@pytest.mark.parametrize("page", [*PAGES, ROOT / "Makefile"])
def test_modules_that_pages_run_exist(page: Path) -> None:
    named = set(re.findall(r"python -m ((?:benchmarks|tests|models)[\w.]*\w)", text(page)))
    if page.name == "Makefile":
        named |= {f"benchmarks.{name}" for name in re.findall(r"\$\(BENCH\)\.([\w.]+)", text(page))}
    for module in named - {"benchmarks"}:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
