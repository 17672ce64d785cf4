"""TextStream: emitted tokens in, readable text out, up to the first stop string.

mlx-lm's own streaming detokenizers drop the first space of an answer, which a completion needs.
`Detokenizer` starts from the last tokens of the prompt instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tokenizers.decoders import DecodeStream

from akunu_py.options import Reasoning
from akunu_py.tokens import Origin

_CONTEXT: Final = 8
"""Tokens of the prompt that decide how the first token of the answer is spelled."""


class Detokenizer:
    """Releases text as soon as its characters are whole; `tokenizer` is the Rust part of a Hugging
    Face one."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._recent = list(prompt[-_CONTEXT:])
        self._held: list[int] = []
        self._stream = self._new_stream()

    def add(self, token: int) -> str:
        self._held.append(token)
        try:
            text: str | None = self._stream.step(self._tokenizer, token)
        except Exception:  # the stream fails if an id changes the text before it
            text = self.finish()
            self._stream = self._new_stream()
        if text is None:
            return ""
        self._settle()
        return text

    def finish(self) -> str:
        """The text of ids that were held back because a character was incomplete."""
        text: str = self._tokenizer.decode(self._held, skip_special_tokens=False)
        self._settle()
        return text

    def _new_stream(self) -> DecodeStream:
        # A context that ends with U+FFFD looks incomplete to the stream, which would then release
        # its text with the first token.
        context: str = self._tokenizer.decode(self._recent, skip_special_tokens=False)
        ids = [] if context.endswith("\ufffd") else self._recent
        return DecodeStream(ids=ids, skip_special_tokens=False)

    def _settle(self) -> None:
        self._recent = [*self._recent, *self._held][-_CONTEXT:]
        self._held.clear()


class WholeTextDetokenizer:
    """A `Detokenizer` without the Rust part: decodes the last line again for each token."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._line: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        self._line.append(token)
        text = self._decode(self._line)
        return "" if text.endswith("\ufffd") else self._show(text)

    def finish(self) -> str:
        return self._show(self._decode(self._line)) if self._line else ""

    def _show(self, text: str) -> str:
        fresh = text[len(self._shown) :]
        self._shown = text
        if text.endswith("\n"):
            self._line, self._shown = [], ""
        return fresh


class StopScanner:
    """Releases text that cannot be part of a stop string, and ends at the first one.

    Of several stop strings, none of them empty, the one that starts first wins; the text ends
    before it, and `found` names it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Takes the next piece of text and returns what may be shown now, if anything."""
        if self.found:
            return ""
        self._held += text
        # A longer stop string that began earlier may still be incomplete.
        return self._release(len(self._held) - pending_length(self._held, self._stops))

    def flush(self) -> str:
        """The text held back for a stop string that did not come; call it at the stream's end."""
        return "" if self.found else self._release(len(self._held))

    def _release(self, length: int) -> str:
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


class ReasoningSplitter:
    """Splits a streamed answer into the reasoning that it may begin with, and the rest, which
    follows once it is `over`.
    """

    def __init__(self, reasoning: Reasoning | None) -> None:
        self.over = reasoning is None
        self._reasoning = reasoning or Reasoning("", "")
        self._inside = self._reasoning.is_open
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Takes the next piece of text; returns what is reasoning now, with its marks, and what is
        the answer."""
        if self.over:
            return "", text
        self._held += text
        start, end = self._reasoning.start, self._reasoning.end
        if not self._inside:
            begun = self._held.lstrip()
            if not begun.startswith(start):
                self.over = not start.startswith(begun)
                return "", self._take(len(self._held) if self.over else 0)
            self._inside = True
        at = self._held.find(end)
        self.over = at >= 0
        if self.over:
            return self._take(at + len(end)), self._take(len(self._held))
        return self._take(len(self._held) - pending_length(self._held, (end,))), ""

    def flush(self) -> tuple[str, str]:
        """What was held back for a mark that did not come; call it at the stream's end."""
        rest = self._take(len(self._held))
        return (rest, "") if self._inside else ("", rest)

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken


class MessageSplitter(ReasoningSplitter):
    """Splits an answer that is several messages, any of which may be reasoning, and leaves out
    their headers. Reasoning that follows text in one piece waits for the next piece.
    """

    def __init__(self, reasoning: Reasoning) -> None:
        super().__init__(reasoning)
        self._marks = (reasoning.start, reasoning.end, reasoning.again, *reasoning.headers)

    def feed(self, text: str) -> tuple[str, str]:
        self._held += text
        start, end, again = self._marks[:3]
        thought = answer = ""
        while True:
            marks = (end, again) if self._inside else self._marks
            found = [(at, mark) for mark in marks if (at := self._held.find(mark)) >= 0]
            ready = len(self._held) - pending_length(self._held, marks)
            at, mark = min(found, default=(ready, ""))
            before = self._take(at)
            if self._inside:
                self._inside = not mark
                thought += before + self._take(len(end) if mark == end else 0)
            else:
                answer += before
                if mark == start and answer:
                    break
                self._inside = mark == start
                thought += self._take(len(mark)) if self._inside else ""
                self._held = self._held.removeprefix(mark)
            if not mark:
                break
        self.over = not self._inside and not self._held
        return thought, answer

    def flush(self) -> tuple[str, str]:
        thought, rest = super().flush()
        return thought, rest if len(rest) == 1 else ""  # or it is a header that was cut


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became readable with one token, what drafted that token, if anything did, and how
    many of the first characters are reasoning, with its marks."""

    text: str
    drafted: Origin
    thought: int = 0


class TextStream:
    """Detokenises one answer, with a new detokenizer, and watches for stop strings after its
    reasoning, which had `reasoning_tokens` so far, with its marks.
    """

    def __init__(
        self,
        detokenizer: Detokenizer | WholeTextDetokenizer,
        stops: Sequence[str] = (),
        reasoning: Reasoning | None = None,
    ) -> None:
        self.reasoning_tokens = 0
        self._undecided = 0  # tokens that may have begun the reasoning
        self._in_gap = False  # between the reasoning and the first word after it
        self._detokenizer = detokenizer
        self._splitter = ReasoningSplitter(reasoning)
        if reasoning is not None and reasoning.headers:
            self._splitter = MessageSplitter(reasoning)
        self._scanner = StopScanner(stops)

    @property
    def stop(self) -> str | None:
        """The stop string that has ended the answer."""
        return self._scanner.found

    def feed(self, token: int, drafted: Origin = Origin.NONE) -> Piece:
        splitter = self._splitter
        self._undecided += not splitter.over
        thought, answer = splitter.feed(self._detokenizer.add(token))
        if thought or splitter.over:
            self.reasoning_tokens += self._undecided if thought else 0
            self._undecided = 0
        return Piece(thought + self._scan(answer, thought), drafted, len(thought))

    def _scan(self, answer: str, thought: str) -> str:
        """What may be shown of the answer after a `thought`; the blanks between are no part of it,
        so stop strings do not hold there."""
        self._in_gap = self._in_gap or bool(thought and self._splitter.over)
        if not self._in_gap:
            return self._scanner.feed(answer)
        words = answer.lstrip()
        self._in_gap = not words
        return answer[: len(answer) - len(words)] + self._scanner.feed(words)

    def finish(self) -> Piece:
        """The text held back because a character, a mark or a stop string was incomplete."""
        thought, answer = self._splitter.feed(self._detokenizer.finish())
        more, rest = self._splitter.flush()
        self.reasoning_tokens += self._undecided if thought + more else 0
        text = self._scan(answer + rest, thought) + self._scanner.flush()
        return Piece(thought + more + text, Origin.NONE, thought=len(thought + more))
