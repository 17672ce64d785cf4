"""StopScanner: finds stop strings in streamed text, wherever the stream happens to be cut."""

from collections.abc import Sequence

from akunu_py.errors import InvalidRequestError


class StopScanner:
    """Releases text that cannot be part of a stop string, and ends at the first one.

    Of several stop strings the one that starts first wins; the text before it is all there is.

    Args:
        stops: the strings to stop at.

    Raises:
        InvalidRequestError: if one of them is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InvalidRequestError("A stop string must not be empty.")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Takes the next piece of text and returns what may be shown now.

        Once `stopped` is true, nothing more is returned.
        """
        if self.stopped:
            return ""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        # A longer stop string that began earlier may still be under way.
        safe = len(self._held) - pending_length(self._held, self._stops)
        if found and min(found) <= safe:
            self.stopped = True
            safe = min(found)
        shown, self._held = self._held[:safe], self._held[safe:]
        return shown

    def flush(self) -> str:
        """What was held back for a stop string that never came; call it at the stream's end."""
        if self.stopped:
            return ""
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        self.stopped = bool(found)
        rest = self._held[: min(found)] if found else self._held
        self._held = ""
        return rest


def pending_length(text: str, marks: Sequence[str]) -> int:
    """The length of the longest tail of a text that begins, but does not finish, one of `marks`."""
    longest = 0
    for mark in marks:
        for length in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:length]):
                longest = length
                break
    return longest
