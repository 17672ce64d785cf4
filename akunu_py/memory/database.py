"""The database of a memory: SQLite knows projects, their files and their segments.

It is opened privately and checked; one that is damaged or of another version is replaced.
"""

import logging
import sqlite3
import stat
from pathlib import Path
from typing import Final

from akunu_py.errors import InvalidRequestError

_VERSION: Final = 1
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


def open_database(folder: Path) -> sqlite3.Connection:
    """Opens the database of a folder; one that is damaged or of another version is replaced.

    Raises:
        InvalidRequestError: if there can be none.
        OSError: if the folder cannot be used, and so does `sqlite3.OperationalError`.
    """
    path = folder / "projects.sqlite"
    path.touch(mode=0o600)
    for held in (path, *folder.glob("projects.sqlite-*")):
        make_private(held, 0o600)
    for _ in range(2):
        database = sqlite3.connect(path, timeout=20, isolation_level=None)
        database.text_factory = _text
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA secure_delete = ON")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            (tables,) = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            (health,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if not tables:
                database.executescript(f"BEGIN; {_TABLES} COMMIT;")
                return database
            if version == _VERSION and health == "ok":
                _ask_every_table(database)
                return database
            why = "is damaged" if version == _VERSION else "is of another version"
        except sqlite3.OperationalError as error:
            if "no such" not in str(error):
                raise
            why = "is damaged"
        except (sqlite3.DatabaseError, UnicodeDecodeError):  # a name of a column
            why = "is damaged"
        database.close()
        logger.warning("%s %s; the memory starts anew, so index your projects again", path, why)
        delete_database(folder)
        path.touch(mode=0o600)
    raise InvalidRequestError(f"There can be no database in {folder}.")


def delete_database(folder: Path) -> None:
    """Deletes it; the next one to open it starts anew."""
    for old in folder.glob("projects.sqlite*"):
        old.unlink()


def _ask_every_table(database: sqlite3.Connection) -> None:
    for table in ("projects", "segments", "files"):
        database.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()


def _text(raw: bytes) -> str:
    """A text of the database; one that is damaged becomes another one, which no file has."""
    return raw.decode(errors="replace")


def make_private(path: Path, mode: int) -> None:
    """Takes rights from what another program has made, or a user has copied.

    Raises:
        OSError: if it is somebody else's.
    """
    if stat.S_IMODE(path.stat().st_mode) & ~mode:
        path.chmod(mode)
