"""TextStream: emitted tokens in, readable text out, up to the first stop string."""

from collections.abc import Sequence
from dataclasses import dataclass

from akunu_py.text.stop import StopScanner
from akunu_py.text.tokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text that became readable with one token, and whether that was drafted."""

    text: str
    drafted: bool


class TextStream:
    """Detokenises one answer and watches for stop strings.

    Args:
        detokenizer: a fresh one.
        stops: strings to stop at.

    Raises:
        InvalidRequestError: if a stop string is empty.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has appeared."""
        return self._scanner.stopped

    def feed(self, token: int, *, drafted: bool) -> Piece:
        """Takes the next token and returns the text that may be shown now, often its own."""
        self._detokenizer.add_token(token)
        return Piece(self._scanner.feed(self._detokenizer.last_segment), drafted)

    def finish(self) -> Piece:
        """What was held back for the rest of a character or of a stop string."""
        self._detokenizer.finalize()
        text = self._scanner.feed(self._detokenizer.last_segment)
        return Piece(text + self._scanner.flush(), drafted=False)
