"""Workloads that every machine has: requests and right answers from the standard library.

Five kinds: `edit` asks for code with a name changed, `fill-in` for lines cut out of a file,
`structure` continues the records of a table, `question` asks what a library function does, and
`novel` continues prose, where drafts fail. They are the same in every run of one Python version;
edits and fill-ins come from files that the bundled model was not trained on.
"""

from __future__ import annotations

import ast
import errno
import hashlib
import json
import re
import signal
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from encodings.aliases import aliases
from html.entities import name2codepoint
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Final

from akunu_py.bench.samples import Sample

KINDS: Final = ("edit", "fill-in", "structure", "question", "novel")

_HELD_OUT_PERCENT: Final = 4
_NEW_NAMES: Final = ("total", "value", "entry", "result_list", "cursor", "payload")
_PREFIX, _SUFFIX = 900, 450
_FIRST_RECORDS, _RECORDS = 6, 30
_FIRST_PROSE, _MIN_PROSE = 160, 450
_DOCSTRING: Final = re.compile(r'(?:\s|#[^\n]*\n)*[rR]?"""(.*?)"""', re.DOTALL)


def make_workloads(
    count: int, kinds: Sequence[str] = KINDS, unseen: Mapping[str, str] | None = None
) -> list[Sample]:
    """`count` requests of each kind, in turn, from the standard library or from other texts (by
    path) that the model was not trained on."""
    makers = {
        "edit": _edits,
        "fill-in": _fill_ins,
        "structure": _structures,
        "question": _questions,
        "novel": _prose,
    }
    library = dict(_library()) if unseen is None else unseen
    if unseen is None:
        unseen = {path: text for path, text in library.items() if held_out(path)}
    sources = {"edit": unseen, "fill-in": unseen}
    streams = [makers[kind](sources.get(kind, library), Random(kind)) for kind in kinds]
    return [sample for _ in range(count) for sample in (next(stream) for stream in streams)]


def held_out(path: str) -> bool:
    """Whether a library file was kept out of `ember`'s training, by the rule of
    `models/training/corpus.py`; `path` is relative to the library.
    """
    digest = hashlib.blake2b(f"python-stdlib/{path}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 100 < _HELD_OUT_PERCENT


def rename_request(source: str, draw: Random) -> tuple[str, str]:
    """A request to rename one name in a function, and the text that answers it."""
    tree = ast.parse(source)
    names = sorted({node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} - {"self"})
    old = draw.choice(names) if names else "self"
    new = draw.choice(_NEW_NAMES)
    renamed = re.sub(rf"\b{re.escape(old)}\b", new, source)
    return f"Rename `{old}` to `{new}` in:\n```python\n{source}```", f"```python\n{renamed}```"


def _edits(library: Mapping[str, str], draw: Random) -> Iterator[Sample]:
    sources = [
        source
        for text in library.values()
        for source in _functions(text)
        if 6 <= source.count("\n") <= 30
    ]
    draw.shuffle(sources)
    while True:
        for source in sources:
            request, answer = rename_request(source, draw)
            yield Sample("edit", answer, messages=({"role": "user", "content": request},))


def _fill_ins(library: Mapping[str, str], draw: Random) -> Iterator[Sample]:
    texts = [text for text in library.values() if text.count("\n") > 60]
    while True:
        lines = draw.choice(texts).splitlines(keepends=True)
        start = draw.randrange(20, len(lines) - 20)
        end = start + draw.randint(2, 6)
        middle = "".join(lines[start:end]).removesuffix("\n")
        if len(middle.strip()) > 40:
            before = "".join(lines[:start])[-_PREFIX:]
            after = "\n" + "".join(lines[end:])[:_SUFFIX]
            yield Sample("fill-in", middle, prompt=before, suffix=after)


def _structures(_library: Mapping[str, str], draw: Random) -> Iterator[Sample]:
    tables = list(_tables().items())
    while True:
        title, records = draw.choice(tables)
        write = draw.choice(_WRITERS)
        rows = [records[index] for index in sorted(draw.sample(range(len(records)), _RECORDS))]
        lines = [write(title, row) for row in rows]
        head = f"# All entries of {title}, one a line.\n"
        yield Sample(
            "structure",
            "".join(f"{line}\n" for line in lines[_FIRST_RECORDS:]),
            prompt=head + "".join(f"{line}\n" for line in lines[:_FIRST_RECORDS]),
        )


def _questions(library: Mapping[str, str], draw: Random) -> Iterator[Sample]:
    modules = [path for path in library if path[0] != "_" and "/" not in path]
    while True:
        draw.shuffle(modules)
        for path in modules:
            if documented := list(_documented(path, library[path])):
                name, arguments, docstring = draw.choice(documented)
                question = f"What does `{name}` do, and how is it called?"
                answer = f"`{name}` is called as `{name}({arguments})`.\n\n{docstring}"
                yield Sample("question", answer, messages=({"role": "user", "content": question},))


def _prose(library: Mapping[str, str], draw: Random) -> Iterator[Sample]:
    texts = []
    for text in library.values():
        docstring = _DOCSTRING.match(text)
        paragraphs = docstring[1].strip().split("\n\n") if docstring else []
        prose = "\n\n".join(part for part in paragraphs if is_prose(part))
        if len(prose) >= _MIN_PROSE:
            texts.append(prose)
    draw.shuffle(texts)
    while True:
        for prose in texts:
            cut = prose.rfind(" ", 0, _FIRST_PROSE)
            yield Sample("novel", prose[cut:], prompt=prose[:cut])


def _library() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted((*root.glob("*.py"), *root.glob("[a-z]*/*.py"))):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] in ("site-packages", "test", "idlelib", "lib2to3", "encodings"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.isascii() and 400 < len(text) < 120_000:
            yield name, text


def _functions(text: str) -> Iterator[str]:
    """The functions and methods of a module that take arguments, dedented."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            *body, last = lines[node.lineno - 1 : node.end_lineno]
            if {arg.arg for arg in node.args.args} - {"self"}:
                source = "\n".join([*body, last[: node.end_col_offset]])
                yield textwrap.dedent(source) + "\n"


def _documented(path: str, text: str) -> Iterator[tuple[str, str, str]]:
    """Public functions of a module: name, arguments, docstring."""
    module = path.removesuffix(".py")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
            docstring = ast.get_docstring(node) or ""
            if 120 <= len(docstring) <= 900:
                yield f"{module}.{node.name}", ast.unparse(node.args), docstring


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph of a docstring is prose, not code, lists or names."""
    letters = sum(character.isalpha() or character.isspace() for character in paragraph)
    return len(paragraph) > 80 and letters > 0.92 * len(paragraph) and "\n  " not in paragraph


def _tables() -> dict[str, list[tuple[str, int]]]:
    return {
        "http.HTTPStatus": [(status.name, int(status)) for status in HTTPStatus],
        "errno.errorcode": [(name, code) for code, name in sorted(errno.errorcode.items())],
        "signal.Signals": [(entry.name, int(entry)) for entry in signal.Signals],
        "html.entities.name2codepoint": sorted(name2codepoint.items()),
        "encodings.aliases": [(name, len(alias)) for name, alias in sorted(aliases.items())],
    }


_WRITERS: Final[tuple[Callable[[str, tuple[str, int]], str], ...]] = (
    lambda title, row: json.dumps({"table": title, "name": row[0], "value": row[1]}),
    lambda title, row: f'INSERT INTO entries VALUES ("{title}", "{row[0]}", {row[1]});',
    lambda title, row: f'    assert lookup("{title}", name="{row[0]}") == {row[1]}',
)
