"""TextStream: emitted tokens in, readable text out, up to the first stop string."""

from collections.abc import Sequence
from dataclasses import dataclass

from akunu_py.text.detokenizer import Detokenizer, WholeTextDetokenizer
from akunu_py.text.stop import StopScanner


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text that became readable with one token, and whether that was drafted."""

    text: str
    drafted: bool


class TextStream:
    """Detokenises one answer and watches for stop strings.

    Args:
        detokenizer: a fresh one for this answer.
        stops: strings to stop at.

    Raises:
        InvalidRequestError: if a stop string is empty.
    """

    def __init__(
        self, detokenizer: Detokenizer | WholeTextDetokenizer, stops: Sequence[str]
    ) -> None:
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has appeared."""
        return self._scanner.stopped

    def feed(self, token: int, *, drafted: bool) -> Piece:
        """Takes the next token and returns the text that may be shown now, often its own."""
        return Piece(self._scanner.feed(self._detokenizer.add(token)), drafted)

    def finish(self) -> Piece:
        """What was held back for the rest of a character or of a stop string."""
        text = self._scanner.feed(self._detokenizer.finish())
        return Piece(text + self._scanner.flush(), drafted=False)
