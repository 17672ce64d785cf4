"""Progress bars on a terminal, for work that takes long."""

from time import perf_counter
from typing import TYPE_CHECKING, Final, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

_LONG_PROMPT: Final = 4096
_LONG_WAIT_S: Final = 1.0


class MeasuringBar:
    """A progress bar; call it with the work done and the work in total.

    It appears with the first call if the stream is a terminal, and disappears when it is closed.
    With `counts`, it also shows the work as numbers.
    """

    def __init__(
        self, stream: TextIO, title: str = "measuring this machine", *, counts: bool = False
    ) -> None:
        self._stream = stream
        self._title = title
        self._counts = counts
        self._bar: Progress | None = None

    def __call__(self, done: float, total: float) -> None:
        """Shows the progress."""
        if not self._stream.isatty():
            return
        if self._bar is None:
            self._bar = _start_bar(self._stream, self._title, total, counts=self._counts)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def close(self) -> None:
        """Removes the bar; the next call starts another."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PrefillBar(MeasuringBar):
    """A progress bar for the tokens of a prompt, only for prompts that take long.

    It disappears when all tokens are done.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, "reading the prompt", counts=True)
        self._started: float | None = None

    def __call__(self, done: float, total: float) -> None:
        if done >= total:
            self.close()
            return
        if self._started is None:
            self._started = perf_counter()
        if total > _LONG_PROMPT or perf_counter() - self._started > _LONG_WAIT_S:
            super().__call__(done, total)

    def close(self) -> None:
        self._started = None
        super().close()


def _start_bar(stream: TextIO, title: str, total: float, *, counts: bool) -> "Progress":
    from rich.console import Console  # noqa: PLC0415  (most waits are short)
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = [TextColumn(title), BarColumn(), *([MofNCompleteColumn()] if counts else [])]
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(file=stream), transient=True)
    bar.add_task("", total=total)
    bar.start()
    return bar
