"""Bars that say how far something is, on a terminal, while it takes long."""

from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

_LONG_PROMPT: Final = 4096
_LONG_WAIT_S: Final = 1.0


class PrefillBar:
    """A progress bar that appears only where there is something to wait for.

    It is called with prompt tokens done and to do, and vanishes once all are done.

    Args:
        stream: where it is drawn, if that is a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._first_news: float | None = None
        self._bar: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        """Shows how far the prefill is."""
        if done >= total:
            self.close()
            return
        if self._bar is None:
            self._first_news = self._first_news or perf_counter()
            long = total > _LONG_PROMPT or perf_counter() - self._first_news > _LONG_WAIT_S
            if not (long and self._stream.isatty()):
                return
            self._bar = _make_bar(self._stream, "reading the prompt", total, counts=True)
        self._bar.update(self._bar.task_ids[0], completed=done)

    def close(self) -> None:
        """Takes the bar away; the next call begins another."""
        self._first_news = None
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class MeasuringBar:
    """A progress bar for a measurement, gone when that is done.

    It is called with what is done and what is to do: seconds, or runs.

    Args:
        stream: where it is drawn, if that is a terminal.
        title: what is going on.
        counts: whether what is done can be counted, and is shown as a number.
    """

    def __init__(
        self, stream: TextIO, title: str = "measuring this machine", *, counts: bool = False
    ) -> None:
        self._stream = stream
        self._title = title
        self._counts = counts
        self._bar: Progress | None = None

    def __call__(self, done: float, total: float) -> None:
        """Shows how far the measurement is."""
        if self._bar is None:
            if not self._stream.isatty():
                return
            self._bar = _make_bar(self._stream, self._title, total, counts=self._counts)
        self._bar.update(self._bar.task_ids[0], completed=done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _make_bar(stream: TextIO, title: str, total: float, *, counts: bool) -> "Progress":
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
