"""StopScanner: finds stop strings in streamed text, wherever the stream is cut."""

from collections.abc import Sequence

from akunu_py.errors import InvalidRequestError


class StopScanner:
    """Releases text that cannot be part of a stop string, and ends at the first one.

    Of several stop strings the one that starts first wins; the text ends before it.

    Raises:
        InvalidRequestError: if one of them is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InvalidRequestError("A stop string must not be empty.")
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string has appeared."""
        return self.found is not None

    def feed(self, text: str) -> str:
        """Takes the next piece of text and returns what may be shown now.

        Once `stopped` is true, nothing more is returned.
        """
        if self.stopped:
            return ""
        self._held += text
        # A longer stop string that began earlier may still be incomplete.
        return self._release(len(self._held) - pending_length(self._held, self._stops))

    def flush(self) -> str:
        """The text held back for a stop string that did not come; call it at the stream's end."""
        return "" if self.stopped else self._release(len(self._held))

    def _release(self, length: int) -> str:
        """The first characters of the held text, up to a stop string."""
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found and min(found)[0] <= length:
            length, self.found = min(found)
        shown, self._held = self._held[:length], self._held[length:]
        return shown


def pending_length(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of a text that begins, but does not finish, one of `stops`."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
