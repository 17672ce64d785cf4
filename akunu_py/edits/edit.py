"""Edit: one edit of one text, from the instruction to the new text; it asks whoever is given.

Knows no engine, no file and no screen: `ask` sends a message to a model and returns its events.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from akunu_py.edits.doubts import doubt
from akunu_py.edits.growing import growing_diff
from akunu_py.edits.parts import Part, function_part, lines_part, splice, windows
from akunu_py.edits.reading import (
    WHOLE,
    last_block,
    question,
    read_answer,
    references,
    whole_lines,
)
from akunu_py.errors import EditError, InvalidRequestError
from akunu_py.events import Event
from akunu_py.round import Finish
from akunu_py.stats import Stats
from akunu_py.text.tokenizer import Message

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
    """Messages to a model, what the answer may repeat, and how many tokens it may have."""

    part: Part
    messages: Sequence[Message]
    references: tuple[str, ...]
    max_tokens: int


Ask = Callable[[Question], Generator[Event, None, None]]


def apply_answer(name: str, old: str, answer: str, instruction: str) -> str:
    """The text with the last code block of an answer to an instruction in its place; an `EditError`
    says what is wrong with that, if anything is."""
    part = Part.of(old, 0, len(old))
    new = splice(
        old, [(part, part.answered(read_answer(last_block(answer, part.text), part.text)))]
    )
    if why := doubt(name, old, new, instruction):
        raise EditError(f"{why} It was not applied.")
    return new


class Edit:
    """Asks for an edit, reads the answers and judges the result.

    Args:
        name: of the file; its suffix tells the language.
        old: its text.
        wanted: what to do with it.
        count: how many tokens messages have, with the template around them.
        limit: how many tokens messages and their answer may have together.

    Attributes:
        questions: one for each part that is to be rewritten: a single one unless the text is
            longer than the context.
        new: the text with the edit, once it is answered; until then the old one.
        doubt: what is wrong with the edit, in one sentence; None if nothing is.
        stats: the sums of all answers.

    Raises:
        InvalidRequestError: if there is nothing to edit.
        EditError: if it does not fit the context.
    """

    def __init__(
        self,
        name: str,
        old: str,
        wanted: Wanted,
        count: Callable[[Sequence[Message]], int],
        limit: int,
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

        def ask(part: Part) -> list[Message]:
            return question(part.text, wanted.instruction, name, form)

        def fits(part: Part) -> bool:
            return (1 + (form == WHOLE)) * count(ask(part)) + _GROWTH <= limit

        self.questions = []
        for one in windows(old, part, wanted.instruction, fits):
            tokens = count(ask(one))
            room = min(limit - tokens, 2 * (tokens + _GROWTH))
            self.questions.append(Question(one, ask(one), references(one.text, form), room))

    def answer(self, ask: Ask) -> Iterator[str]:
        """Asks all questions; yields a diff as it grows, and sets `new`, `doubt` and `stats`.

        Raises:
            EditError: if an answer is no edit, or was cut.
        """
        changed = list[tuple[Part, str]]()
        for one in self.questions:
            old, new = one.part.in_place(one.part.text), list[str]()
            first = self.old.count("\n", 0, one.part.start) + 1
            yield from growing_diff(old.split("\n"), self._lines(one, ask, new), first)
            changed.append((one.part, "\n".join(new)))
        self.new = splice(self.old, changed)
        self.doubt = doubt(self.name, self.old, self.new, self._instruction)

    def _lines(self, asked: Question, ask: Ask, new: list[str]) -> Iterator[str]:
        """The lines that an answer makes of a part, as they come; `new` gets them as well. Those of
        search/replace blocks and diffs come at the end."""
        part, said, finish, stats = asked.part, list[str](), None, Stats()

        def lines(events: Iterator[Event]) -> Iterator[str]:
            nonlocal finish, stats
            rest = ""
            for event in events:
                said.append("".join(piece.text[piece.thought :] for piece in event.pieces))
                stats, finish = event.stats, event.finish_reason
                *complete, rest = (rest + said[-1]).split("\n")
                yield from (line.removesuffix("\r") for line in complete)

        with closing(ask(asked)) as events:
            answer = lines(events)
            for line in whole_lines(answer):
                if not new and part.indent and line.startswith(part.indent):
                    break  # whether it is indented twice is known at the end
                new.append(part.in_place(line))
                yield new[-1]
            deque(answer, maxlen=0)
        self.stats.include(stats)
        if finish in _CUT:
            raise EditError(
                f"The answer was cut after {stats.generated_tokens} tokens; allow more with "
                "`max_tokens`, or edit a smaller part."
            )
        read = part.answered(read_answer("".join(said), part.text)).split("\n")
        if read[: len(new)] != new:
            raise EditError("The answer is in more than one format.")
        for line in read[len(new) :]:
            new.append(line)
            yield line
