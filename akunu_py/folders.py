"""Where the program keeps what it has worked out: under the user's cache folder."""

import os
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "AKUNU_CACHE"
"""Environment variable that names another folder for the cache."""


def cache_folder() -> Path:
    """The folder for what can be worked out again; it may not exist yet."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).expanduser()
    from platformdirs import user_cache_path  # noqa: PLC0415  (only where it is not named)

    return user_cache_path("akunu-py", appauthor=False)
