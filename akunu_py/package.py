"""The package's version, and where and how it stores files."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

__version__: Final = "1.0.0"

CACHE_VARIABLE: Final = "AKUNU_CACHE"
"""The environment variable that sets another folder for the cache."""

UNFINISHED: Final = ".akunu-part"
"""The suffix of files that are being written."""


def cache_folder() -> Path:
    """The folder for what can be computed again; it may not exist yet."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(os.path.expanduser(named))
    from platformdirs import user_cache_path  # noqa: PLC0415  (needed only without the variable)

    return user_cache_path("akunu-py", appauthor=False)


def make_private(folder: Path) -> None:
    """Makes a folder and its missing parents, private to this user whatever the umask. Raises an
    OSError if that is impossible, or if its content may be other users'.
    """
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        with suppress(FileExistsError):  # another process has just made it
            missing.mkdir(0o700)
            missing.chmod(0o700)
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError("it is a file, not a folder")
    if why := _why_foreign(found):
        raise OSError(f"{why}; delete it, or choose another folder")


def open_file(path: Path, *, own: bool = True, below: Path | None = None) -> BinaryIO:
    """Opens a regular file for reading, without waiting for pipes or following links: no link to
    the file, and none in its path `below` a folder. Raises an OSError if it is not a regular file,
    or if it should be this user's `own` but others can write to it.
    """
    handle = None if below is None else os.open(below, os.O_RDONLY | os.O_CLOEXEC)
    for part in (path,) if below is None else path.relative_to(below).parts:
        folder = handle
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(part, flags, dir_fd=folder)
        finally:
            if folder is not None:
                os.close(folder)
    assert handle is not None
    found = os.fstat(handle)  # of the opened file: the path may name another one by now
    is_file = stat.S_ISREG(found.st_mode)
    if why := "it is not a regular file" if not is_file else _why_foreign(found) if own else "":
        os.close(handle)
        raise OSError(why)
    return os.fdopen(handle, "rb")


def _why_foreign(found: os.stat_result) -> str:
    """Why a file or a folder may contain what other users wrote; empty if it cannot."""
    if found.st_uid != os.geteuid():
        return "it belongs to another user"
    is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return "other users can write to it" if is_open else ""


def write_atomically(path: Path, text: str) -> None:
    """Replaces a text file, or the file that a link points to, in one step; see `replacement`."""
    with replacement(Path(os.path.realpath(path))) as file:
        file.write(text.encode())


@contextmanager
def replacement(path: Path) -> Iterator[BinaryIO]:
    """A new file that replaces another one in one step, at the end of the block.

    After a crash, either the old file or the new one is there, and perhaps also an unfinished one
    named `.NAME...` with the suffix `UNFINISHED`. After an OSError, the old file is there. A new
    file is readable only by the user; an existing one keeps its mode and, where allowed, its owner.
    """
    found = path.stat() if path.exists() else None
    mode = 0o600 if found is None else stat.S_IMODE(found.st_mode)
    handle, temporary = tempfile.mkstemp(UNFINISHED, f".{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if found is not None:
            try:
                os.chown(temporary, found.st_uid, found.st_gid)
            except PermissionError:
                mode &= 0o777  # it must not run as another user
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
