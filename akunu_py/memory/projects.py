"""Projects: from a folder to its memory, of which only what has changed is read, and back."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Final

from akunu_py.drafting.auto import AutoDrafter
from akunu_py.errors import InvalidRequestError
from akunu_py.memory.files import (
    LeftOut,
    SourceFile,
    holds_secret,
    is_utf8,
    read_source,
    source_files,
)
from akunu_py.memory.recent import RecentTexts
from akunu_py.memory.segment import Segment
from akunu_py.memory.store import KnownFile, MemoryStore
from akunu_py.memory.tiers import MemoryTier, ProjectTexts
from akunu_py.tokens import FIRST_BOUNDARY

AUTO: Final = "auto"
"""Stands for the git root of the current folder."""

_LEARNT: Final = "//learnt/"
"""Before the names of texts that are no files; no path within a folder begins with slashes."""

_NO_PROJECTS: Final[Mapping[str, ProjectTexts]] = MappingProxyType({})

_BATCH_TOKENS: Final = 1 << 22
"""What is written at once: a crash loses no more than that."""

Encode = Callable[[str], Sequence[int]]
"""The ids of a text, in which special tokens are plain text."""


@dataclass(frozen=True)
class IndexResult:
    """What an index of a project has changed.

    Attributes:
        files: in memory now.
        changed: new or changed files that were encoded.
        gone: files that are no longer in memory.
        left_out: what was left out, and why.
    """

    files: int
    changed: int
    gone: int
    left_out: LeftOut


class Memory:
    """What the requests of an engine draft from besides themselves.

    Args:
        projects: the texts of each, in the engine's tokenizer, by its folder.
        fingerprint: of that tokenizer.
        vocabulary_size: the ids of the model; no other is ever drafted.
        notices: lines for the user, if something cannot be used.
        remembers: whether earlier requests are drafted from, too: those that named no project, or
            the same one.
    """

    def __init__(
        self,
        projects: Mapping[str, ProjectTexts] = _NO_PROJECTS,
        notices: Sequence[str] = (),
        *,
        fingerprint: bytes = b"",
        vocabulary_size: int = FIRST_BOUNDARY,
        remembers: bool = False,
    ) -> None:
        self.projects = projects
        self.notices = tuple(notices)
        self._fingerprint = fingerprint
        self._vocabulary_size = vocabulary_size
        self._remembers = remembers
        self._recent: defaultdict[str | None, RecentTexts] = defaultdict(RecentTexts)

    def lend(self, drafter: AutoDrafter, project: str | None) -> None:
        """Gives a drafter the texts of a request that has not begun.

        Args:
            drafter: whose `end` is called at the end of the request.
            project: the only one to draft from; None for all, empty for none.

        Raises:
            InvalidRequestError: if the engine does not know the project.
        """
        if project and project not in self.projects:
            raise InvalidRequestError(f"There is no project {project} to draft from here.")
        chosen = self.projects if project is None else filter(None, [project])
        drafter.tiers = [MemoryTier(self.projects[name]) for name in chosen]
        if self._remembers:
            recent = self._recent[project]
            if drafter.keeper is not recent:
                drafter.begin(())  # its text stays with those of its own project
                drafter.keeper = recent
            drafter.tiers.append(MemoryTier(recent, 1))

    def learn(self, project: str, text: str, encode: Encode) -> int:
        """Keeps a text in the memory of a project, until the project is indexed again.

        Any thread may call it. The same text is kept once.

        Returns:
            How many tokens it has.

        Raises:
            InvalidRequestError: if it is empty, holds a secret, or cannot be kept; also if the
                project has been forgotten since, which then is drafted from no more.
        """
        if not text:
            raise InvalidRequestError("There is no text to keep.")
        if holds_secret(text):
            raise InvalidRequestError("The text is not kept: it seems to hold a key or a password.")
        if not is_utf8(text):
            raise InvalidRequestError("The text is not kept: it has half of a surrogate pair.")
        digest, tokens = sha256(text.encode()).digest(), encode(f"\n{text}")
        if max(tokens, default=0) >= self._vocabulary_size:
            raise InvalidRequestError("The text is not kept: the model does not have its tokens.")
        known = KnownFile(digest, len(text), 0)
        store = MemoryStore()
        try:
            if not store.files(Path(project), self._fingerprint):
                self.projects[project].replace([])
                raise InvalidRequestError(
                    f"The text is not kept: the memory of {project} was deleted; index it again."
                )
            name = f"{_LEARNT}{digest.hex()}"
            if not store.update(Path(project), self._fingerprint, {name: (known, tokens)}):
                raise InvalidRequestError("The text is not kept: the memory is full.")
            opened = store.open(Path(project), self._fingerprint)
            self.projects[project].replace(_usable(opened, self._vocabulary_size))
        finally:
            store.close()
        return len(tokens)

    def forget_requests(self) -> None:
        """Drops the texts of earlier requests."""
        self._recent.clear()


def project_folder(path: Path) -> Path:
    """The folder that a project is known by.

    Raises:
        InvalidRequestError: if there is no such folder, or its name is no text.
    """
    folder = Path(os.path.realpath(os.path.expanduser(path)))
    if not is_utf8(str(folder)):
        raise InvalidRequestError(f"The name of {path} is no text in UTF-8; rename the folder.")
    if not folder.is_dir():
        raise InvalidRequestError(f"There is no folder {path}; a project is a folder.")
    return folder


def index_project(
    store: MemoryStore,
    project: Path,
    fingerprint: bytes,
    encode: Encode,
    *,
    progress: Callable[[float, float], None] | None = None,
) -> IndexResult:
    """Brings the memory of a project up to date.

    Args:
        store: where it is kept.
        project: as `project_folder` returns it.
        fingerprint: of the tokenizer.
        encode: the tokenizer's.
        progress: called with the bytes examined, and those of all files.

    Raises:
        InvalidRequestError: if the memory cannot be written.
    """
    left_out = LeftOut()
    files = list(source_files(project, left_out))
    known = store.files(project, fingerprint)
    total, done = sum(file.size for file in files), 0
    batch: dict[str, tuple[KnownFile, Sequence[int]]] = {}
    present, pending, changed = set(), 0, 0
    fits = True

    def write(gone: Sequence[str] = ()) -> None:
        nonlocal pending, changed, fits
        if (batch or gone) and fits:
            fits = store.update(project, fingerprint, batch, gone)
            changed += len(batch) if fits else 0
            if not fits:
                first = next(iter(batch or gone))
                left_out.lines.append(f"The memory is full: {first} and what follows is left out.")
        batch.clear()
        pending = 0

    for file in files:
        found = _examine(file, known.get(file.name), left_out)
        if found is not None:
            present.add(file.name)
            if isinstance(found, tuple):
                digest, text = found
                tokens = encode(f"\n{text}")
                batch[file.name] = KnownFile(digest, file.size, file.mtime), tokens
                pending += len(tokens)
                if pending >= _BATCH_TOKENS:
                    write()
        done += file.size
        if progress is not None:
            progress(done, total)
        if not fits:
            break
    gone = [name for name in known if name not in present] if fits else []
    write(gone)
    return IndexResult(len(store.files(project, fingerprint)), changed, len(gone), left_out)


def _examine(
    file: SourceFile, known: KnownFile | None, left_out: LeftOut
) -> KnownFile | tuple[bytes, str] | None:
    """What is known of an unchanged file, the hash and the text of another, None if left out."""
    if known is not None and (known.size, known.mtime) == (file.size, file.mtime):
        return known
    read = read_source(file, left_out)
    if read is None:
        return None
    content, text = read
    digest = sha256(content).digest()
    return known if known is not None and known.digest == digest else (digest, text)


def open_memory(
    asked: Iterable[str], fingerprint: bytes, vocabulary_size: int, *, remembers: bool = False
) -> Memory:
    """The memory of projects for a model.

    Args:
        asked: their folders; `AUTO` is one that there may not be.
        fingerprint: of the model's tokenizer.
        vocabulary_size: the ids of the model; no other is ever drafted.
        remembers: see `Memory`.

    Raises:
        InvalidRequestError: if a project was named and has no memory; the text says why.
    """
    projects, notices = {}, []
    for name in asked:
        try:
            project = _git_root(Path.cwd()) if name == AUTO else project_folder(Path(name))
            opened = _segments_of(project, fingerprint)
        except InvalidRequestError as error:
            if name != AUTO:
                raise
            notices.append(f"--project auto: {error}")
            continue
        usable = _usable(opened, vocabulary_size)
        if len(usable) < len(opened):
            notices.append(f"The memory of {project} has ids that this model does not have.")
        projects[str(project)] = ProjectTexts(usable)
    return Memory(
        projects,
        notices,
        fingerprint=fingerprint,
        vocabulary_size=vocabulary_size,
        remembers=remembers,
    )


def _usable(segments: Iterable[Segment], vocabulary_size: int) -> list[Segment]:
    """Those whose ids the model has."""
    return [segment for segment in segments if segment.largest < vocabulary_size]


def _segments_of(project: Path, fingerprint: bytes) -> list[Segment]:
    store = MemoryStore()
    try:
        found = [status for status in store.projects() if status.path == project]
        if fingerprint not in {status.fingerprint for status in found}:
            why = "was indexed with another tokenizer" if found else "was not indexed"
            raise InvalidRequestError(
                f"{project} {why}; run `akunu-py index {project}` with this --model."
            )
        return store.open(project, fingerprint)
    finally:
        store.close()


def _git_root(folder: Path) -> Path:
    """The folder of the git project that a folder is in.

    Raises:
        InvalidRequestError: if it is in none.
    """
    for candidate in (folder, *folder.parents):
        if (candidate / ".git").exists():
            return Path(os.path.realpath(candidate))
    raise InvalidRequestError("the current folder is in no git project.")
