"""MemoryStore: the tokens of projects in a private folder, separately for each tokenizer.

SQLite has the projects and their files; the tokens are in segments, which never change. A segment
is written before SQLite names it and deleted after SQLite has forgotten it, so a crash leaves the
old state or the new one. One process at a time changes the folder; others may read.
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
from dataclasses import astuple, dataclass
from pathlib import Path
from time import time
from typing import Final

from akunu_py.errors import InvalidRequestError
from akunu_py.memory.segment import (
    MAX_TOKENS,
    DamagedSegmentError,
    Segment,
    joined_documents,
    write_segment,
)
from akunu_py.package import cache_folder, make_private

DEFAULT_BYTES: Final = 2_000_000_000
"""Bytes that all segments may take."""

_BYTES_PER_TOKEN: Final = 8
_USED_AGAIN_S: Final = 3600.0
"""Seconds before another use is recorded, because writing takes longer than opening."""
_OUTDATED_SHARE: Final = 1 / 8
"""A segment with a larger share of outdated tokens is rewritten."""

_VERSION: Final = 2
"""Memories of version 1 may contain secrets that are left out now."""
_TABLES: Final = f"""
    CREATE TABLE projects (
        id INTEGER PRIMARY KEY, path TEXT, fingerprint BLOB, used REAL, UNIQUE (path, fingerprint));
    CREATE TABLE segments (
        name TEXT PRIMARY KEY, project INTEGER, tokens INTEGER, bytes INTEGER);
    CREATE TABLE files (
        project INTEGER, path TEXT, digest BLOB, size INTEGER, mtime INTEGER, segment TEXT,
        first INTEGER, tokens INTEGER, PRIMARY KEY (project, path));
    PRAGMA user_version = {_VERSION};
"""

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


Documents = Mapping[str, tuple[KnownFile, Sequence[int]]]
"""What is known about each file, and its tokens, by path."""


class MemoryStore:
    """The memory of one user. All methods raise an InvalidRequestError if the folder is unusable.

    All segments together may take `limit` bytes; the least recently used projects are dropped.
    """

    def __init__(self, folder: Path | None = None, *, limit: int = DEFAULT_BYTES) -> None:
        self.folder = cache_folder() / "memory" if folder is None else folder
        self._limit = limit
        try:
            make_private(self.folder)
            self.folder.chmod(0o700)
            with self._locked():
                self._database = _open_database(self.folder)
        except (OSError, sqlite3.OperationalError) as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        self._database.close()

    def projects(self) -> list[ProjectStatus]:
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
        """What is known about a project's files, by path, without those in damaged segments."""
        with self._changing() as database:
            number = self._number(project, fingerprint)
            for name in self._segments(number):
                self._open_segment(name, fingerprint)
            rows = database.execute(
                "SELECT path, digest, size, mtime FROM files WHERE project = ?", (number,)
            ).fetchall()
        return {path: KnownFile(*known) for path, *known in rows}

    def update(
        self, project: Path, fingerprint: bytes, documents: Documents, gone: Sequence[str] = ()
    ) -> bool:
        """Adds or replaces files of a project, and drops those that are gone, in one step.

        The new segment also takes over what is left of older ones that are no larger or mostly
        outdated. Returns False, without any change, if there is no room.
        """
        with self._changing() as changes:
            number = self._number(project, fingerprint, make=True)
            changes.executemany(
                "DELETE FROM files WHERE project = ? AND path = ?",
                [(number, path) for path in (*gone, *documents)],
            )
            merged = self._to_merge(number, sum(len(held) + 1 for _, held in documents.values()))
            written = self._documents_in(merged, fingerprint) | dict(documents)
            added = sum(len(held) + 1 for _, held in written.values())
            kept = sum(held for name, held in self._segments(number).items() if name not in merged)
            if added > MAX_TOKENS or kept + _BYTES_PER_TOKEN * added > self._limit:
                changes.rollback()
                return False
            if written:
                self._write(number, fingerprint, written)
            changes.executemany("DELETE FROM segments WHERE name = ?", [(one,) for one in merged])
            changes.execute("UPDATE projects SET used = ? WHERE id = ?", (time(), number))
            self._trim(number)
        return True

    def open(self, project: Path, fingerprint: bytes) -> list[Segment]:
        """The segments of a project for a tokenizer; damaged ones are dropped."""
        with self._changing() as changes:
            number, now = self._number(project, fingerprint), time()
            changes.execute(
                "UPDATE projects SET used = ? WHERE id = ? AND used < ?",
                (now, number, now - _USED_AGAIN_S),
            )
            opened = [self._open_segment(name, fingerprint) for name in self._segments(number)]
        return [segment for segment in opened if segment is not None]

    def forget(self, project: Path) -> bool:
        """Deletes a project; returns whether anything was known about it."""
        with self._changing() as changes:
            numbers = changes.execute(
                "SELECT id FROM projects WHERE path = ?", (str(project),)
            ).fetchall()
            for (number,) in numbers:
                self._drop(number)
        with self._locked():
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return bool(numbers)

    def forget_all(self) -> None:
        self.close()
        try:
            shutil.rmtree(self.folder)
        except OSError as error:
            raise self._unusable(error) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, in the only process that changes the folder. If the database turns out to
        be damaged, it is deleted, and the next process to open it makes a new one."""
        database = self._database
        try:
            with self._locked():
                try:
                    database.execute("BEGIN IMMEDIATE")
                    changes = database.total_changes
                    yield database
                    changed = database.in_transaction and database.total_changes > changes
                    database.commit()
                    if changed:
                        self._remove_strays()
                except BaseException as error:
                    database.rollback()
                    if _is_damage(error):
                        _delete_database(self.folder)
                    raise
        except (OSError, sqlite3.DatabaseError) as error:
            raise self._unusable(error) from error

    def _number(self, project: Path, fingerprint: bytes, *, make: bool = False) -> int:
        key = (str(project), fingerprint)
        if make:
            self._database.execute(
                "INSERT OR IGNORE INTO projects (path, fingerprint) VALUES (?, ?)", key
            )
        row = self._database.execute(
            "SELECT id FROM projects WHERE path = ? AND fingerprint = ?", key
        ).fetchone()
        return int(row[0]) if row else 0

    def _segments(self, number: int) -> dict[str, int]:
        return dict(
            self._database.execute("SELECT name, bytes FROM segments WHERE project = ?", (number,))
        )

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
            for column in ("files WHERE segment", "segments WHERE name"):
                self._database.execute(f"DELETE FROM {column} = ?", (name,))
            return None

    def _to_merge(self, number: int, new: int) -> list[str]:
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

    def _documents_in(
        self, names: Sequence[str], fingerprint: bytes
    ) -> dict[str, tuple[KnownFile, Sequence[int]]]:
        found: dict[str, tuple[KnownFile, Sequence[int]]] = {}
        for name in names:
            if (segment := self._open_segment(name, fingerprint)) is not None:
                for path, first, tokens, *known in self._database.execute(
                    "SELECT path, first, tokens, digest, size, mtime FROM files WHERE segment = ?",
                    (name,),
                ).fetchall():
                    found[path] = KnownFile(*known), segment.tokens[first : first + tokens]
        return found

    def _write(self, number: int, fingerprint: bytes, documents: Documents) -> None:
        name, first = f"{secrets.token_hex(8)}.segment", 0
        tokens = joined_documents([held for _, held in documents.values()])
        nbytes = write_segment(self.folder / name, fingerprint, tokens)
        self._database.execute(
            "INSERT INTO segments VALUES (?, ?, ?, ?)", (name, number, len(tokens), nbytes)
        )
        for path, (known, held) in documents.items():
            self._database.execute(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (number, path, *astuple(known), name, first, len(held)),
            )
            first += len(held) + 1

    def _trim(self, kept: int) -> None:
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
        for column in ("files WHERE project", "segments WHERE project", "projects WHERE id"):
            self._database.execute(f"DELETE FROM {column} = ?", (number,))

    def _remove_strays(self) -> None:
        """Deletes segments without a row. Call it only right after a change by this process: SQLite
        may restore the last change of a process that was killed while committing, unless a later
        one has overwritten it."""
        named = {name for (name,) in self._database.execute("SELECT name FROM segments")}
        for path in [*self.folder.glob("*.segment"), *self.folder.glob(".*.segment.*")]:
            if path.name not in named:
                with suppress(OSError):
                    path.unlink()

    def _unusable(self, error: Exception) -> InvalidRequestError:
        if _is_damage(error):
            return InvalidRequestError(
                f"The memory in {self.folder} is damaged ({error}) and was deleted; index your "
                "projects again."
            )
        why = getattr(error, "strerror", None) or error
        return InvalidRequestError(f"The memory in {self.folder} cannot be used: {why}.")


def _open_database(folder: Path) -> sqlite3.Connection:
    path = folder / "projects.sqlite"
    for _ in range(2):
        path.touch(mode=0o600)
        for held in (path, *folder.glob("projects.sqlite-*")):
            held.chmod(0o600)
        database = sqlite3.connect(path, timeout=20, isolation_level=None)
        # A damaged text becomes another text, which matches no file.
        database.text_factory = lambda raw: raw.decode(errors="replace")
        try:
            why = _prepare(database)
        except sqlite3.OperationalError as error:
            if "no such" not in str(error):
                raise
            why = "is damaged"
        except (sqlite3.DatabaseError, UnicodeDecodeError):  # a name of a column
            why = "is damaged"
        if not why:
            return database
        database.close()
        logger.warning("%s %s and was deleted; index your projects again", path, why)
        _delete_database(folder)
    raise InvalidRequestError(f"No database can be made in {folder}.")


def _prepare(database: sqlite3.Connection) -> str:
    """Makes the tables if there are none; returns why the database cannot be used, or nothing."""
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA secure_delete = ON")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    (health,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if not tables:
        database.executescript(f"BEGIN; {_TABLES} COMMIT;")
        return ""
    if version != _VERSION:
        return "has another version"
    for table in ("projects", "segments", "files"):
        database.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()
    return "" if health == "ok" else "is damaged"


def _delete_database(folder: Path) -> None:
    for old in folder.glob("projects.sqlite*"):
        old.unlink()


def _is_damage(error: BaseException) -> bool:
    """Whether SQLite calls a file malformed or no database: it has no type for this error."""
    return type(error) is sqlite3.DatabaseError
