"""Held-out files: what a memory of a project would bring where its other files are written.

A random fifth of a project's files is left out of the memory. Of these, the bodies of Python
functions are to be written, and of other files the lines after the middle. Nothing of the user's
own memory is read or changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from akunu_py.bench.replay import ReplayCase
from akunu_py.errors import InvalidRequestError
from akunu_py.memory.files import LeftOut, read_source, source_files
from akunu_py.memory.segment import Segment, joined_documents, write_segment

if TYPE_CHECKING:
    from akunu_py.text.tokenizer import Tokenizer

MAX_REQUESTS: Final = 200
"""Requests of a project, unless the user wants more or fewer."""

_HELD_OUT: Final = 5
"""One of so many files is held out."""
_MAX_PROMPT: Final = 30_000
"""Characters before a request's answer."""
_LINES: Final = 20
_LEAST_LINES: Final = 3


@dataclass(frozen=True)
class HeldOut:
    """The requests of a project's held-out files, and the memory of its other files."""

    cases: list[ReplayCase]
    memory: Segment


def hold_out(
    project: Path, tokenizer: Tokenizer, folder: Path, *, most: int = MAX_REQUESTS
) -> HeldOut:
    """Divides a project.

    Args:
        project: its folder.
        tokenizer: of the model.
        folder: where the memory is written; it must stay until the end of the replay.
        most: requests that are taken, at random.

    Raises:
        InvalidRequestError: if it has too few files that can be read, or no request.
    """
    left_out, draw = LeftOut(), Random(0)
    read = ((file.name, read_source(file, left_out)) for file in source_files(project, left_out))
    texts = [(name, found[1]) for name, found in read if found is not None]
    draw.shuffle(texts)
    count = len(texts) // _HELD_OUT
    requests = [request for name, text in texts[:count] for request in _requests(name, text)]
    if not requests:
        raise InvalidRequestError(f"{project} has too few files to hold some out of a memory.")
    draw.shuffle(requests)
    cases = [
        ReplayCase(tokenizer.encode(before[-_MAX_PROMPT:]), tokenizer.encode_plain(answer))
        for before, answer in requests[:most]
    ]
    documents = [tokenizer.encode_plain(f"\n{text}") for _, text in texts[count:]]
    path = folder / f"{len(list(folder.iterdir()))}.segment"
    write_segment(path, bytes(32), joined_documents(documents))
    return HeldOut(cases, Segment(path))


def _requests(name: str, text: str) -> Iterator[tuple[str, str]]:
    """What is before an answer, and the answer."""
    lines = text.splitlines(keepends=True)
    if name.endswith(".py"):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first, last = node.body[0].lineno, node.end_lineno or 0
                if first > node.lineno and last - first + 1 >= _LEAST_LINES:
                    yield "".join(lines[: first - 1]), "".join(lines[first - 1 : last])
    elif len(lines) >= 2 * _LEAST_LINES:
        middle = len(lines) // 2
        yield "".join(lines[:middle]), "".join(lines[middle : middle + _LINES])
