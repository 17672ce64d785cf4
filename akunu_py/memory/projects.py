"""Projects: builds the memory of a folder, reading only what has changed, and opens it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Final

from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.recall import PLACES, MemoryTier, Place, RecentTexts
from akunu_py.errors import InvalidRequestError
from akunu_py.memory.files import LeftOut, git_root, is_utf8, read_source, source_files
from akunu_py.memory.segment import Segment
from akunu_py.memory.store import KnownFile, MemoryStore

AUTO: Final = "auto"
"""Stands for the git root of the current folder."""

_NO_PROJECTS: Final[Mapping[str, ProjectTexts]] = MappingProxyType({})

_BATCH_TOKENS: Final = 1 << 22
"""How much is written at a time; a crash loses no more than this."""

Encode = Callable[[str], Sequence[int]]
"""The ids of a text, with special tokens treated as plain text."""


@dataclass(frozen=True)
class IndexResult:
    """How many files of a project are in memory, how many of them are new or changed, how many
    were dropped, and what was left out."""

    files: int
    changed: int
    gone: int
    left_out: LeftOut


class ProjectTexts:
    """The files of a project, in `segments` of the request's tokenizer."""

    version = 0

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments

    def nearest(self, context: Sequence[int]) -> list[Place]:
        places = [
            Place(segment.tokens, at, length)
            for segment in self.segments
            for length, at in segment.nearest(context, PLACES)
        ]
        if len(self.segments) > 1:
            places.sort(key=lambda place: -place.length)
        return places[:PLACES]


class Memory:
    """Other texts that an engine's requests draft from: those of projects, by folder, and if it
    `remembers`, those of earlier requests that named no project, or the same one."""

    def __init__(
        self,
        projects: Mapping[str, ProjectTexts] = _NO_PROJECTS,
        notices: Sequence[str] = (),
        *,
        remembers: bool = False,
    ) -> None:
        self.projects = projects
        self.notices = tuple(notices)
        self._remembers = remembers
        self._recent: defaultdict[str | None, RecentTexts] = defaultdict(RecentTexts)

    def lend(self, drafter: AutoDrafter, project: str | None) -> None:
        """Gives a drafter the texts for a request that has not begun; the request calls the
        drafter's `end`.

        `project` is the only project to draft from; None means all, an empty name none. A project
        that the engine does not know is refused.
        """
        if project and project not in self.projects:
            raise InvalidRequestError(f"There is no project {project} to draft from here.")
        chosen = self.projects if project is None else filter(None, [project])
        drafter.tiers = [MemoryTier(self.projects[name]) for name in chosen]
        if self._remembers:
            recent = self._recent[project]
            if drafter.keeper is not recent:
                drafter.begin(())  # its text is kept only for its own project
                drafter.keeper = recent
            drafter.tiers.append(MemoryTier(recent, 1))

    def forget_requests(self) -> None:
        self._recent.clear()


def project_folder(path: Path) -> Path:
    """The folder that identifies a project; refused if it does not exist or its name is no text."""
    folder = Path(os.path.realpath(os.path.expanduser(path)))
    if not is_utf8(str(folder)):
        raise InvalidRequestError(f"The name of {path} is not valid UTF-8; rename the folder.")
    if not folder.is_dir():
        raise InvalidRequestError(f"There is no folder {path}; a project is a folder.")
    return folder


def index_project(
    store: MemoryStore,
    project: Path,
    fingerprint: bytes,
    encode: Encode,
    *,
    named: Collection[Path] = (),
    progress: Callable[[float, float], None] | None = None,
) -> IndexResult:
    """Brings the memory of a project, as `project_folder` returns it, up to date; `fingerprint` is
    that of the tokenizer of `encode`. `named` files are read even if they are hidden or look like
    secrets. `progress` gets the bytes examined, and those of all files.
    """
    left_out = LeftOut()
    files = list(source_files(project, left_out, named))
    known = store.files(project, fingerprint)
    total, done = sum(file.size for file in files), 0
    batch: dict[str, tuple[KnownFile, Sequence[int]]] = {}
    gone, pending, changed = set(known), 0, 0

    def write(dropped: Sequence[str] = ()) -> bool:
        nonlocal changed, pending
        fits = not (batch or dropped) or store.update(project, fingerprint, batch, dropped)
        if fits:
            changed += len(batch)
        else:
            first = next(iter(batch or dropped))
            left_out.lines.append(
                f"The memory is full: {first} and the files after it are left out."
            )
        batch.clear()
        pending = 0
        return fits

    fits = True
    for file in files:
        before = known.get(file.name)
        is_unchanged = (
            before is not None
            and (before.size, before.mtime) == (file.size, file.mtime)
            and not file.is_named
        )
        read = None if is_unchanged else read_source(file, left_out)
        if is_unchanged or read is not None:
            gone.discard(file.name)
        if read is not None:
            digest = sha256(read[0]).digest()
            if before is None or before.digest != digest:
                tokens = encode(f"\n{read[1]}")
                batch[file.name] = KnownFile(digest, file.size, file.mtime), tokens
                pending += len(tokens)
        done += file.size
        if progress is not None:
            progress(done, total)
        if pending >= _BATCH_TOKENS and not write():
            fits = False
            break
    dropped = sorted(gone) if fits else []
    if not write(dropped):
        dropped = []
    return IndexResult(len(store.files(project, fingerprint)), changed, len(dropped), left_out)


def open_memory(
    asked: Iterable[str], fingerprint: bytes, vocabulary_size: int, *, remembers: bool = False
) -> Memory:
    """The memory of the projects `asked` for, for a tokenizer with this fingerprint. `AUTO` may
    have no memory; any other project without one is refused. Ids beyond the `vocabulary_size` are
    never drafted.
    """
    projects, notices = {}, []
    for name in asked:
        try:
            project = _current_project() if name == AUTO else project_folder(Path(name))
            opened = _segments_of(project, fingerprint)
        except InvalidRequestError as error:
            if name != AUTO:
                raise
            notices.append(f"--project auto: {error}")
            continue
        usable = [segment for segment in opened if segment.largest < vocabulary_size]
        if len(usable) < len(opened):
            notices.append(f"{project} is not used: its memory has ids that this model lacks.")
        projects[str(project)] = ProjectTexts(usable)
    return Memory(projects, notices, remembers=remembers)


def _segments_of(project: Path, fingerprint: bytes) -> list[Segment]:
    store = MemoryStore()
    try:
        found = [status for status in store.projects() if status.path == project]
        if fingerprint not in {status.fingerprint for status in found}:
            why = "was indexed with another tokenizer" if found else "has not been indexed"
            raise InvalidRequestError(
                f"{project} {why}; run `akunu-py index {project}` with this --model."
            )
        return store.open(project, fingerprint)
    finally:
        store.close()


def _current_project() -> Path:
    if root := git_root(Path.cwd()):
        return Path(os.path.realpath(root))
    raise InvalidRequestError("the current folder is not in a git project.")
