"""MemoryStore: the tokens of projects in a private folder, for each tokenizer on its own.

SQLite knows projects and their files; the tokens are in segments (`segment.py`), which never
change. An update adds a segment of what is new, together with older ones that are no larger or have
much that is outdated. A segment is written before SQLite names it, and deleted after SQLite has
forgotten it, so a crash leaves the old state or the new one. One process at a time changes the
folder; others may read meanwhile.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Final

from akunu_py.errors import InvalidRequestError
from akunu_py.memory.database import delete_database, make_private, open_database
from akunu_py.memory.segment import (
    MAX_TOKENS,
    DamagedSegmentError,
    Segment,
    joined_documents,
    write_segment,
)
from akunu_py.package import cache_folder

DEFAULT_BYTES: Final = 2_000_000_000
"""Bytes that all segments may take."""

_BYTES_PER_TOKEN: Final = 8
_USED_AGAIN_S: Final = 3600.0
"""Seconds after which another use is written down; to write takes longer than to open."""
_OUTDATED_SHARE: Final = 1 / 8
"""A segment with a larger share of outdated tokens is written anew."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownFile:
    """A file as it was when it was read: the hash of its content, its size and its time (ns)."""

    digest: bytes
    size: int
    mtime: int


@dataclass(frozen=True)
class ProjectStatus:
    """A project in memory; `used` is the time of its last use, in seconds since 1970."""

    path: Path
    fingerprint: bytes
    files: int
    tokens: int
    nbytes: int
    used: float


class MemoryStore:
    """The memory of one user.

    Args:
        folder: None takes the user's cache folder. It is made if there is none.
        limit: bytes that all segments may take; the projects that were used longest ago go first.

    Raises:
        InvalidRequestError: if the folder cannot be used.
    """

    def __init__(self, folder: Path | None = None, *, limit: int = DEFAULT_BYTES) -> None:
        self.folder = cache_folder() / "memory" if folder is None else folder
        self._limit = limit
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            make_private(self.folder, 0o700)
            with self._locked():
                self._database = open_database(self.folder)
        except (OSError, sqlite3.OperationalError) as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        """Closes the database."""
        self._database.close()

    def projects(self) -> list[ProjectStatus]:
        """All projects, the last used first.

        Raises:
            InvalidRequestError: if the folder cannot be used.
        """
        with self._changing() as database:
            rows = database.execute(
                "SELECT path, fingerprint,"
                " (SELECT COUNT(*) FROM files WHERE project = id),"
                " (SELECT COALESCE(SUM(tokens), 0) FROM files WHERE project = id),"
                " (SELECT COALESCE(SUM(bytes), 0) FROM segments WHERE project = id), used"
                " FROM projects ORDER BY used DESC"
            ).fetchall()
        return [ProjectStatus(Path(path), *values) for path, *values in rows]

    def files(self, project: Path, fingerprint: bytes) -> dict[str, KnownFile]:
        """What is known of a project's files, by path; those in damaged segments are left out."""
        with self._changing() as database:
            number = self._number(project, fingerprint)
            for name in self._segments(number):
                self._open_segment(name, fingerprint)
            rows = database.execute(
                "SELECT path, digest, size, mtime FROM files WHERE project = ?", (number,)
            ).fetchall()
        return {path: KnownFile(digest, size, mtime) for path, digest, size, mtime in rows}

    def update(
        self,
        project: Path,
        fingerprint: bytes,
        documents: Mapping[str, tuple[KnownFile, Sequence[int]]],
        gone: Sequence[str] = (),
    ) -> bool:
        """Adds or replaces files of a project, and drops others, in one step.

        Args:
            project: its folder, absolute.
            fingerprint: of the tokenizer, 32 bytes.
            documents: by path, what is known of each new file, and its tokens.
            gone: the paths of files that are no longer there.

        Returns:
            False if there is no room for them; nothing has changed then.

        Raises:
            InvalidRequestError: if the folder cannot be written.
        """
        with self._changing() as changes:
            number = self._number(project, fingerprint, make=True)
            changes.executemany(
                "DELETE FROM files WHERE project = ? AND path = ?",
                [(number, path) for path in (*gone, *documents)],
            )
            merged = self._to_merge(number, sum(len(held) + 1 for _, held in documents.values()))
            parts, rows = self._rewritten(fingerprint, merged)
            for path, (known, held) in documents.items():
                parts.append(held)
                rows.append((path, known.digest, known.size, known.mtime, len(held)))
            added = sum(map(len, parts)) + len(parts)
            kept = sum(held for name, held in self._sizes(number).items() if name not in merged)
            if added > MAX_TOKENS or kept + _BYTES_PER_TOKEN * added > self._limit:
                changes.rollback()
                return False
            if parts:
                self._write(number, fingerprint, parts, rows)
            changes.executemany("DELETE FROM segments WHERE name = ?", [(one,) for one in merged])
            changes.execute("UPDATE projects SET used = ? WHERE id = ?", (time(), number))
            self._trim(number)
        return True

    def open(self, project: Path, fingerprint: bytes) -> list[Segment]:
        """The segments of a project for a tokenizer; damaged ones are dropped.

        Raises:
            InvalidRequestError: if the folder cannot be used.
        """
        with self._changing() as changes:
            number, now = self._number(project, fingerprint), time()
            changes.execute(
                "UPDATE projects SET used = ? WHERE id = ? AND used < ?",
                (now, number, now - _USED_AGAIN_S),
            )
            names = self._segments(number)
            opened = [self._open_segment(name, fingerprint) for name in names]
        return [segment for segment in opened if segment is not None]

    def forget(self, project: Path) -> bool:
        """Deletes all that is known of a project; False if nothing is."""
        with self._changing() as changes:
            found = changes.execute("SELECT id FROM projects WHERE path = ?", (str(project),))
            numbers = [number for (number,) in found]
            for number in numbers:
                self._drop(number)
        with self._locked():
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return bool(numbers)

    def forget_all(self) -> None:
        """Deletes the folder."""
        self.close()
        try:
            shutil.rmtree(self.folder)
        except OSError as error:
            raise self._unusable(error) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps other processes from changing the folder; waits for those that do."""
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the only process that changes something.

        Raises:
            InvalidRequestError: if the folder cannot be used. A database that turns out to be
                damaged is deleted, so that the next one to open it starts anew.
        """
        try:
            with self._locked():
                try:
                    self._database.execute("BEGIN IMMEDIATE")
                    changes = self._database.total_changes
                    try:
                        yield self._database
                    except BaseException:
                        self._database.rollback()
                        raise
                    changed = self._database.in_transaction
                    changed &= self._database.total_changes > changes
                    self._database.commit()
                    if changed:
                        self._remove_strays()
                except sqlite3.DatabaseError as error:
                    if type(error) is not sqlite3.DatabaseError:
                        raise
                    delete_database(self.folder)  # it is none, or is malformed
                    raise InvalidRequestError(
                        f"The memory in {self.folder} is damaged ({error}) and starts anew; "
                        "index your projects again."
                    ) from error
        except (OSError, sqlite3.DatabaseError) as error:
            raise self._unusable(error) from error

    def _number(self, project: Path, fingerprint: bytes, *, make: bool = False) -> int:
        """The id of a project; 0 if it is unknown and not to be made."""
        key = (str(project), fingerprint)
        if make:
            self._database.execute(
                "INSERT OR IGNORE INTO projects (path, fingerprint) VALUES (?, ?)", key
            )
        row = self._database.execute(
            "SELECT id FROM projects WHERE path = ? AND fingerprint = ?", key
        ).fetchone()
        return int(row[0]) if row else 0

    def _segments(self, number: int) -> list[str]:
        rows = self._database.execute("SELECT name FROM segments WHERE project = ?", (number,))
        return [name for (name,) in rows]

    def _sizes(self, number: int) -> dict[str, int]:
        rows = self._database.execute(
            "SELECT name, bytes FROM segments WHERE project = ?", (number,)
        )
        return dict(rows.fetchall())

    def _open_segment(self, name: str, fingerprint: bytes) -> Segment | None:
        """Opens a segment; one that cannot be used is forgotten, with its files."""
        path = self.folder / name
        try:
            segment = Segment(path)
            if segment.fingerprint != fingerprint:
                raise DamagedSegmentError("it belongs to another tokenizer")
            return segment
        except (OSError, DamagedSegmentError) as error:
            logger.warning("%s is ignored: %s; index its project again", path, error)
            for statement in (
                "DELETE FROM files WHERE segment = ?",
                "DELETE FROM segments WHERE name = ?",
            ):
                self._database.execute(statement, (name,))
            return None

    def _to_merge(self, number: int, new: int) -> list[str]:
        """The segments that are written together with so many new tokens."""
        rows = self._database.execute(
            "SELECT name, tokens, (SELECT COALESCE(SUM(tokens + 1), 0) FROM files"
            " WHERE segment = name) FROM segments WHERE project = ? ORDER BY tokens",
            (number,),
        ).fetchall()
        merged = []
        for name, tokens, live in rows:
            outdated = tokens - live > _OUTDATED_SHARE * tokens
            if (live <= new or outdated) and new + live <= MAX_TOKENS:
                merged.append(name)
                new += live
        return merged

    def _rewritten(
        self, fingerprint: bytes, merged: Sequence[str]
    ) -> tuple[list[Sequence[int]], list[tuple[str, bytes, int, int, int]]]:
        """The tokens and the rows of the files in segments."""
        parts: list[Sequence[int]] = []
        rows = []
        for name in merged:
            segment = self._open_segment(name, fingerprint)
            if segment is None:
                continue
            for path, digest, size, mtime, first, tokens in self._database.execute(
                "SELECT path, digest, size, mtime, first, tokens FROM files WHERE segment = ?",
                (name,),
            ).fetchall():
                held = segment.tokens[first : first + tokens]
                parts.append(held)
                rows.append((path, digest, size, mtime, len(held)))
        return parts, rows

    def _write(
        self,
        number: int,
        fingerprint: bytes,
        parts: Sequence[Sequence[int]],
        rows: Sequence[tuple[str, bytes, int, int, int]],
    ) -> None:
        """Writes a segment and names it."""
        name, tokens, first = f"{secrets.token_hex(8)}.segment", joined_documents(parts), 0
        nbytes = write_segment(self.folder / name, fingerprint, tokens)
        self._database.execute(
            "INSERT INTO segments VALUES (?, ?, ?, ?)", (name, number, len(tokens), nbytes)
        )
        for path, digest, size, mtime, count in rows:
            self._database.execute(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (number, path, digest, size, mtime, name, first, count),
            )
            first += count + 1

    def _trim(self, kept: int) -> None:
        """Drops the projects that were used longest ago, but for one, until the others fit."""
        rows = self._database.execute(
            "SELECT id, (SELECT COALESCE(SUM(bytes), 0) FROM segments WHERE project = id)"
            " FROM projects ORDER BY id = ? DESC, used DESC",
            (kept,),
        ).fetchall()
        total = 0
        for number, nbytes in rows:
            total += nbytes
            if total > self._limit and number != kept:
                self._drop(number)

    def _drop(self, number: int) -> None:
        for statement in (
            "DELETE FROM files WHERE project = ?",
            "DELETE FROM segments WHERE project = ?",
            "DELETE FROM projects WHERE id = ?",
        ):
            self._database.execute(statement, (number,))

    def _remove_strays(self) -> None:
        """Deletes segments without a row, which deletions and crashes leave.

        Only right behind a change of this process: SQLite may bring back the last change of a
        process that was killed while it committed, unless another was written over it.
        """
        named = {name for (name,) in self._database.execute("SELECT name FROM segments")}
        for path in [*self.folder.glob("*.segment"), *self.folder.glob(".*.segment.*")]:
            if path.name not in named:
                with suppress(OSError):
                    path.unlink()

    def _unusable(self, error: Exception) -> InvalidRequestError:
        why = getattr(error, "strerror", None) or error
        return InvalidRequestError(f"The memory in {self.folder} cannot be used: {why}.")
