"""Progress bars on a terminal, for work that takes long."""

from time import perf_counter
from typing import TYPE_CHECKING, Final, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

_LONG_PROMPT: Final = 4096
_LONG_WAIT_S: Final = 1.0


class ProgressBar:
    """A progress bar; call it with the work done and the work in total.

    It appears with the first call if the stream is a terminal, and disappears when it is closed.
    With `counts`, it also shows the work as numbers. With `patient`, it appears only for work that
    takes long, and disappears when all is done.
    """

    def __init__(
        self, stream: TextIO, title: str, *, counts: bool = False, patient: bool = False
    ) -> None:
        self._stream = stream
        self._title = title
        self._counts = counts
        self._patient = patient
        self._bar: Progress | None = None
        self._started: float | None = None

    def __call__(self, done: float, total: float) -> None:
        """Shows the progress."""
        if self._patient and done >= total:
            self.close()
            return
        self._started = self._started or perf_counter()
        waited = perf_counter() - self._started
        brief = self._patient and total <= _LONG_PROMPT and waited <= _LONG_WAIT_S
        if brief or not self._stream.isatty():
            return
        if self._bar is None:
            self._bar = _start_bar(self._stream, self._title, total, counts=self._counts)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def close(self) -> None:
        """Removes the bar; the next call starts another."""
        self._started = None
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def prefill_bar(stream: TextIO) -> ProgressBar:
    """A bar for the tokens of a prompt, if they take long."""
    return ProgressBar(stream, "reading the prompt", counts=True, patient=True)


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
