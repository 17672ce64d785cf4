"""`index`: indexes the text of projects, lists them, and forgets them."""

import logging
import os
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from akunu_py.cli.render import ProgressBar, count, printable
from akunu_py.cli.settings import IndexSettings
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.backend import find_backend
from akunu_py.memory.files import HIDDEN, LIKELY_SECRETS, is_utf8
from akunu_py.memory.projects import IndexResult, index_project, project_folder
from akunu_py.memory.store import MemoryStore
from akunu_py.model.files import find_model, tokenizer_fingerprint

_MOST_LINES: Final = 20


def run(settings: IndexSettings) -> int:
    """Indexes, lists or forgets; what was left out goes to standard error."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    asked = [Path(os.path.expanduser(path)) for path in settings.paths]
    named = [Path(os.path.realpath(path)) for path in asked if path.is_file()]
    folders = [project_folder(path) for path in asked if not path.is_file()]
    for path in named:
        if not is_utf8(str(path)):
            raise InvalidRequestError(f"The name of {path} is not valid UTF-8; rename the file.")
        if not any(folder in path.parents for folder in folders):
            raise InvalidRequestError(
                f"{path} is in none of the given folders; give its project too."
            )
    for folder in folders:
        if folder in (Path(folder.anchor), Path(os.path.realpath(os.path.expanduser("~")))):
            raise InvalidRequestError(f"{folder} is not a project; give a folder in it.")
    store = MemoryStore()
    if settings.forgets_all:
        store.forget_all()
        print(f"Deleted {store.folder}.")
        return 0
    try:
        if folders:
            _learn(store, folders, named, settings.model)
        for path in settings.forgotten:
            _forget(store, path)
        if settings.lists or settings.stats:
            _list(store, sizes=settings.stats)
    finally:
        store.close()
    return 0


def _learn(store: MemoryStore, folders: list[Path], named: list[Path], model: str) -> None:
    fingerprint = tokenizer_fingerprint(find_model(model, weights=False))
    find_backend()  # fails with a clear sentence if there is no MLX
    from akunu_py.model.loading import load_tokenizer  # noqa: PLC0415  (takes a second)

    encode = load_tokenizer(model).encode_plain
    for folder in folders:
        with ProgressBar(sys.stderr, "reading files") as bar:
            inside = [path for path in named if folder in path.parents]
            result = index_project(store, folder, fingerprint, encode, named=inside, progress=bar)
        _tell_left_out(result)
        print(
            printable(
                f"{folder}: {count(result.files, 'file')} in memory, {result.changed:,} of them "
                f"new or changed, {result.gone:,} dropped."
            )
        )


def _tell_left_out(result: IndexResult) -> None:
    lines, counts = result.left_out.lines, result.left_out.counts
    for line in lines[:_MOST_LINES]:
        print(printable(line), file=sys.stderr)
    if len(lines) > _MOST_LINES:
        print(f"... and {len(lines) - _MOST_LINES:,} more.", file=sys.stderr)
    if counts:
        listed = ", ".join(f"{number:,} {reason}" for reason, number in sorted(counts.items()))
        remedy = "; name a file to include it" if counts.keys() & {HIDDEN, LIKELY_SECRETS} else ""
        print(f"Left out: {listed}{remedy}.", file=sys.stderr)


def _forget(store: MemoryStore, path: Path) -> None:
    folder = Path(os.path.realpath(os.path.expanduser(path)))
    if not is_utf8(str(folder)) or not store.forget(folder):
        raise InvalidRequestError(
            f"Nothing is known about {folder}; --forget takes the folder of a project, as `index "
            "--list` prints it."
        )
    print(f"Deleted all that was known about {folder}.")


def _list(store: MemoryStore, *, sizes: bool) -> None:
    found = store.projects()
    for status in found:
        used = "at an unknown time"
        with suppress(ValueError, OverflowError, OSError):  # a damaged time
            used = datetime.fromtimestamp(status.used or 0).strftime("%Y-%m-%d")
        line = f"{status.path}  ({count(status.files, 'file')}, used {used})"
        if not status.path.is_dir():
            line += "  no longer exists"
        if sizes:
            line += (
                f"  {count(status.tokens, 'token')} of tokenizer {status.fingerprint.hex()[:8]}, "
                f"{status.nbytes / 1e6:.1f} MB"
            )
        print(printable(line))
    if sizes or not found:
        total = sum(status.nbytes for status in found)
        print(f"{count(len(found), 'project')}, {total / 1e6:.1f} MB in {store.folder}")
