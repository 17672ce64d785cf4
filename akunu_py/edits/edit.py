"""Edit: one edit of one text, from the instruction to the new text; it asks whoever is given.

Knows no engine, no file and no screen: `ask` sends a message to a model and returns its events.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from akunu_py.edits.doubts import doubt
from akunu_py.edits.growing import DiffLine, GrowingDiff
from akunu_py.edits.parts import Part, function_part, lines_part, splice, windows
from akunu_py.edits.reading import (
    WHOLE,
    Change,
    changes_in,
    is_complete,
    place_of,
    question,
    read_answer,
    references,
    whole_lines,
)
from akunu_py.errors import EditError, InvalidRequestError
from akunu_py.events import Event
from akunu_py.round import Finish
from akunu_py.stats import Stats

_GROWTH: Final = 288
"""Tokens that an answer may be longer than its text: the right ones of EditEval and HumanEvalPack
are by 273 at most."""
_CUT: Final = (Finish.LENGTH, Finish.CONTEXT)


@dataclass(frozen=True)
class Wanted:
    """What to edit: `lines` from one number to another or a `function` by its name, or else all;
    and in which format the model is to answer."""

    instruction: str
    lines: tuple[int, int] | None = None
    function: str | None = None
    answer_format: str = "auto"


@dataclass(frozen=True)
class Question:
    """A message to a model, what the answer may repeat, and how long it may be."""

    part: Part
    message: str
    references: tuple[str, ...]
    max_tokens: int


Ask = Callable[[Question], Generator[Event, None, None]]


class Edit:
    """Asks for an edit, reads the answers and judges the result.

    Args:
        name: of the file; its suffix tells the language.
        old: its text.
        wanted: what to do with it.
        count: how many tokens a message has, with the template around it.
        limit: how many tokens a message and its answer may have together.

    Attributes:
        questions: a message for each part that is to be rewritten; one unless the text is longer
            than the context.
        new: the text with the edit, once it is answered; until then the old one.
        doubt: what is wrong with the edit, in one sentence; None if nothing is.
        stats: the sums of all answers.

    Raises:
        InvalidRequestError: if there is nothing to edit.
        EditError: if it does not fit the context.
    """

    def __init__(
        self, name: str, old: str, wanted: Wanted, count: Callable[[str], int], limit: int
    ) -> None:
        self.name = name
        self.old = self.new = old
        self.doubt: str | None = None
        self.stats = Stats()
        self._instruction = wanted.instruction
        part = Part.of(old, 0, len(old))
        if wanted.lines is not None:
            part = lines_part(name, old, *wanted.lines)
        elif wanted.function is not None:
            part = function_part(name, old, wanted.function)
        if not part.text.strip():
            raise InvalidRequestError(f"There is no text in {name} to edit.")
        # Drafts make the whole text cheap to repeat, and every model knows how to.
        form = WHOLE if wanted.answer_format == "auto" else wanted.answer_format

        def ask(part: Part) -> Question:
            message = question(part.text, wanted.instruction, name, form)
            tokens = count(message)
            room = min(limit - tokens, 2 * (tokens + _GROWTH))
            return Question(part, message, references(part.text, form), room)

        def fits(part: Part) -> bool:
            tokens = count(ask(part).message)
            return (2 * tokens if form == WHOLE else tokens) + _GROWTH <= limit

        self.questions = [ask(one) for one in windows(name, old, part, wanted.instruction, fits)]

    def answer(self, ask: Ask) -> Iterator[DiffLine]:
        """Asks all questions; yields a diff as it grows, and sets `new`, `doubt` and `stats`.

        Raises:
            EditError: if an answer is no edit, or was cut.
        """
        changed = []
        for one in self.questions:
            changed.append((one.part, (yield from self._answer(one, ask))))
        self.new = splice(self.old, changed)
        self.doubt = doubt(self.name, self.old, self.new, self._instruction)

    def _answer(self, asked: Question, ask: Ask) -> Generator[DiffLine, None, str]:
        text, finish, stats = asked.part.text, None, Stats()
        said, shown = "", _Shown(asked.part)
        with closing(ask(asked)) as events:
            for event in events:
                more = "".join(piece.text[piece.thought :] for piece in event.pieces)
                said, stats, finish = said + more, event.stats, event.finish_reason
                if "\n" in more:
                    yield from shown.more(whole_lines(said, text), changes_in(said, ended=False))
                    if is_complete(said, text):
                        break
        self.stats.include(stats)
        if finish in _CUT:
            raise EditError(
                f"The answer was cut after {stats.generated_tokens} tokens; allow more with "
                "`max_tokens`, or edit a smaller part."
            )
        new = read_answer(said, text)
        changes = changes_in(said) if not shown.lines else []
        yield from shown.more([] if changes else new.split("\n"), changes)
        yield from shown.diff.end() if shown.lines else ()
        return new


class _Shown:
    """What was shown of the answer about a part: as many of its `lines` or of its `changes`."""

    def __init__(self, part: Part) -> None:
        self.lines = self.changes = 0
        self.diff = GrowingDiff(part.in_place(part.text).split("\n"), part.line)
        self._part = part

    def more(self, lines: Sequence[str], changes: Sequence[Change]) -> Iterator[DiffLine]:
        part = self._part
        for line in lines[self.lines :]:
            yield from self.diff.feed(part.in_place(line))
        self.lines = max(self.lines, len(lines))
        for change in changes[self.changes :]:
            at, new = place_of(change, part.text.split("\n"))
            old = part.text.split("\n")[at : at + len(change.search)]
            diff = GrowingDiff([part.in_place(line) for line in old], part.line + at)
            for line in new:
                yield from diff.feed(part.in_place(line))
            yield from diff.end()
        self.changes = max(self.changes, len(changes))
