"""What the user typed in earlier conversations, in a file that only the user can read."""

import os
from contextlib import suppress

from platformdirs import user_data_path
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

_APPLICATION = "akunu-py"


def open_history() -> History:
    """The history in the user's data folder, or one for this conversation alone if that fails."""
    path = user_data_path(_APPLICATION, appauthor=False) / "chat_history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return _ForgivingHistory(path)


class _ForgivingHistory(FileHistory):
    """Goes on without the file if that can no longer be written: a full disk ends no chat."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)
