"""The package's version, where it keeps files, and how it writes them."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

__version__: Final = "0.1.0"

CACHE_VARIABLE: Final = "AKUNU_CACHE"
"""Environment variable that names another folder for the cache."""

UNFINISHED: Final = ".akunu-part"
"""How the names of files that are being written end."""


def cache_folder() -> Path:
    """The folder for what can be computed again; it may not exist yet."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(os.path.expanduser(named))
    from platformdirs import user_cache_path  # noqa: PLC0415  (only where it is not named)

    return user_cache_path("akunu-py", appauthor=False)


def write_atomically(path: Path, text: str) -> None:
    """Replaces a text file in one step; see `replacement`.

    Raises:
        OSError: if it cannot be written; the old file is still there then.
    """
    with replacement(path) as file:
        file.write(text.encode())


@contextmanager
def replacement(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of another one in one step, at the end of the block.

    After a crash there is the old file or the new one, and perhaps a part of the new one, named
    `.NAME.` to `UNFINISHED`. A new file is readable only by the user; an existing one keeps its
    mode.

    Raises:
        OSError: if it cannot be written; the old file is still there then.
    """
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    handle, temporary = tempfile.mkstemp(UNFINISHED, f".{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
