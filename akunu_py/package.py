"""The package's version, where it keeps files, and how it writes them."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

__version__: Final = "0.1.0"

CACHE_VARIABLE: Final = "AKUNU_CACHE"
"""Environment variable that names another folder for the cache."""


def cache_folder() -> Path:
    """The folder for what can be computed again; it may not exist yet."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(os.path.expanduser(named))
    from platformdirs import user_cache_path  # noqa: PLC0415  (only where it is not named)

    return user_cache_path("akunu-py", appauthor=False)


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file in one step: after a crash it holds the old text or the new one.

    A new file is readable by the user alone; an existing one keeps its mode.

    Raises:
        OSError: if it cannot be written; the old file is still there then.
    """
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
