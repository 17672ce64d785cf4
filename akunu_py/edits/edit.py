"""Edit: one edit of one text, from the instruction to the new text; it asks whoever is given, and
says what is wrong with the result that the instruction did not ask for.

Knows no engine, no file and no screen: `ask` sends a message to a model and returns its events, and
None while there are none, if it does not wait for them.
"""

import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final

from akunu_py.edits.growing import growing_diff
from akunu_py.edits.parts import (
    Part,
    definitions,
    function_part,
    is_quickly_parsed,
    lines_part,
    parse_python,
    splice,
    windows,
)
from akunu_py.edits.reading import (
    WHOLE,
    question,
    read_answer,
    references,
    whole_lines,
)
from akunu_py.edits.text_file import TextFile
from akunu_py.errors import EditError, InvalidRequestError, UnreadableRequestError
from akunu_py.events import Completion, Event
from akunu_py.options import Options
from akunu_py.rounds import Finish, Stats
from akunu_py.text.tokenizer import Message, Tokenizer

_DELETES: Final = re.compile(
    r"(?<!not )(?<!n't )\b(?:remove|delete|drop|strip|trim|omit|shorten|simplify|reduce|rewrite|"
    r"merge|split|extract|inline|move|replace|refactor)\b",
    re.IGNORECASE,
)
"""Imperatives by which an instruction asks for less than there was."""
_QUOTED: Final = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|(?<!\w)'[^'\n]*'")
_LOST_LINES, _LOST_SHARE, _LOST_OF_FEW = 8, 0.5, 0.8
"""An edit is doubted if it loses more than this number of lines and more than the first share of
all; or fewer lines, and more than the second share. Of 522 right answers (EditEval, HumanEvalPack,
renames in these), five lose 4 to 7 lines, which are 56 to 78%."""
_LEFT_OUT: Final = r"(?:^|\s)(?:#|//|--|;|/\*|<!--|%)\s*"
_ELISION: Final = re.compile(
    rf".*{_LEFT_OUT}(?:\.\.\.|…|[(\[]?(?:the )?unchanged\b)"
    rf"|(?>.*?{_LEFT_OUT}[(\[]?(?:the )?(?:rest|remaining|existing|other|previous)\b)"
    r".*\b(?:code|functions?|methods?|class(?:es)?|file|text|unchanged|same|before)\b",
    re.IGNORECASE,
)
"""How models write that they leave something out, from the beginning of a line on. Without `(?>`,
each word that may begin it would be tried in turn, each with all of the line."""
_COMMENT: Final = re.compile(r"#|//|--|;|/\*|<!--|%|\.\.\.")
"""How lines of an update begin that may only describe it."""


def doubt(name: str, old: str, new: str, instruction: str) -> str | None:
    """Why an edited file is perhaps not what was asked for, in one sentence; None if nothing is
    wrong with it. The file's name tells the language; `old` and `new` are all of its text.
    """
    if new == old:
        return "The model gave the text back unchanged."
    language = _language(name, old)
    if language and not (
        language.is_short(old) and language.is_short(new) and language.wrong(old) is None
    ):
        language = None
    if language and (wrong := language.wrong(new)):
        return f"With this edit, {name} is no longer valid {language.name} ({wrong})."
    if _elisions(new) - _elisions(old):
        return "The answer leaves out a part of the text, with a comment in its place."
    if language is _PYTHON and (gone := _gone(old, new, instruction)):
        which = ", ".join(gone[:3]) + " ..." * (len(gone) > 3)
        return f"The answer drops {which}, which the instruction does not ask for."
    before, after = (sum(map(bool, map(str.strip, text.split("\n")))) for text in (old, new))
    lost = before - after
    share = _LOST_SHARE if lost > _LOST_LINES else _LOST_OF_FEW
    if lost > share * before and not _deletes(instruction):
        return f"The answer drops {lost} of {before} lines, which the instruction does not ask for."
    return None


def merge_doubt(old: str, update: str, new: str) -> str | None:
    """Why a text is perhaps not what a text and an update, which may leave out what stays, make
    together; None if it has the lines of both, and no others."""
    before, sketch, after = (
        {stripped: None for line in text.split("\n") if (stripped := line.strip())}
        for text in (old, update, new)
    )
    if added := [line for line in after if line not in before and line not in sketch]:
        return f"The answer has a line that is neither in the text nor in the update: {added[0]}"
    lost = [line for line in sketch if line not in after and not _COMMENT.match(line)]
    return f"The answer lacks a line of the update: {lost[0]}" if lost else None


def _gone(old: str, new: str, instruction: str) -> list[str]:
    """The functions and classes that have no successor, unless the instruction lets them go."""
    before, after = (
        Counter(names[-1] for names, _ in definitions(parse_python(text))) for text in (old, new)
    )
    gone, come = before - after, after - before
    if gone.total() <= come.total() or _deletes(instruction):
        return []
    renamed = " ".join(_QUOTED.findall(instruction)) if come else ""
    return sorted(gone.keys() - set(re.findall(r"\w+", renamed)))


def _deletes(instruction: str) -> bool:
    return _DELETES.search(_QUOTED.sub("", instruction)) is not None


def _elisions(text: str) -> Counter[str]:
    return Counter(line.strip() for line in text.split("\n") if _ELISION.match(line))


@dataclass(frozen=True)
class _Language:
    """`wrong` says what is wrong with a text, or None; it may take long unless `is_short`."""

    name: str
    wrong: Callable[[str], str | None]
    is_short: Callable[[str], bool]


def _language(name: str, text: str) -> _Language | None:
    for path in (name, os.path.realpath(name)):
        if found := _LANGUAGES.get(os.path.splitext(path)[1].lower()):
            return found
    return _PYTHON if re.match("#!.*python", text) else None


def _wrong(parse: Callable[[str], Any]) -> Callable[[str], str | None]:
    def check(text: str) -> str | None:
        try:
            parse(text)
        except SyntaxError as error:
            return f"line {error.lineno}: {error.msg}"
        except (ValueError, RecursionError, MemoryError) as error:
            return str(error).rstrip(".")
        return None

    return check


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_MOST_CHARACTERS: Final = 1 << 20
"""The most characters of JSON to parse, which takes 0.1 s, and of TOML, which takes 1 s."""
_MOST_DOTS: Final = 64
"""The most dots in a line of TOML to parse: a key takes memory for the square of its parts."""


def _is_short(text: str) -> bool:
    return len(text) <= _MOST_CHARACTERS


def _is_short_toml(text: str) -> bool:
    return _is_short(text) and all(line.count(".") <= _MOST_DOTS for line in text.split("\n"))


_PYTHON: Final = _Language("Python", _wrong(parse_python), is_quickly_parsed)
_JSON: Final = _Language(
    "JSON", _wrong(partial(json.loads, parse_constant=_no_constant)), _is_short
)
_TOML: Final = _Language("TOML", _wrong(tomllib.loads), _is_short_toml)
_LANGUAGES: Final = {
    ".py": _PYTHON,
    ".pyi": _PYTHON,
    ".json": _JSON,
    ".ipynb": _JSON,
    ".toml": _TOML,
}


_GROWTH: Final = 288
"""Tokens that an answer may be longer than its text: the right ones of EditEval and HumanEvalPack
are by 273 at most."""
_CUT: Final = (Finish.LENGTH, Finish.CONTEXT)


@dataclass(frozen=True)
class Wanted:
    """What to edit: `lines` from one number to another or a `function` by its name, or else all;
    in which format the model is to answer; and a sketch of the edit, an `update` with elisions."""

    instruction: str
    lines: tuple[int, int] | None = None
    function: str | None = None
    answer_format: str = "auto"
    update: str = ""


@dataclass(frozen=True)
class Question:
    """Messages to a model, what the answer may repeat, and how many tokens it may have."""

    part: Part
    messages: Sequence[Message]
    references: tuple[str, ...]
    max_tokens: int


Said = Event | Completion
Ask = Callable[[Question], Generator[Said | None, None, None]]


def _rendered(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    try:
        return tokenizer.render_chat(messages, open_answer=True)
    except UnreadableRequestError:  # some templates know no system message
        joined = "\n\n".join(message["content"] for message in messages)
        return tokenizer.render_chat([{"role": "user", "content": joined}], open_answer=True)


def request_for(
    tokenizer: Tokenizer, question: Question, options: Options
) -> tuple[list[int], Options]:
    """The prompt and the options with which an engine answers a question of an edit."""
    options = replace(
        options,
        max_tokens=options.max_tokens or (None if tokenizer.reasoning else question.max_tokens),
        references=(*options.references, *question.references),
        reasoning=tokenizer.reasoning,
    )
    return tokenizer.encode(_rendered(tokenizer, question.messages)), options


def edit_of(
    file: TextFile,
    wanted: Wanted,
    tokenizer: Tokenizer,
    limit: int,
    *,
    most_parts: int | None = None,
) -> "Edit":
    """An edit of a file for a model with this tokenizer and context; errors as for `Edit`."""

    def count(asked: Sequence[Message]) -> int:
        return tokenizer.count(_rendered(tokenizer, asked), most=limit)

    return Edit(file.name, file.text, wanted, count, limit, most_parts=most_parts)


def apply_answer(name: str, old: str, answer: str, instruction: str) -> tuple[str, str | None]:
    """The text that an answer to an instruction makes of a text, and what is wrong with it, if
    anything is; an `EditError` if it makes none."""
    part = Part.of(old, 0, len(old))
    new = splice(old, [(part, part.answered(read_answer(answer, part.text)))])
    return new, doubt(name, old, new, instruction)


class Edit:
    """Asks for an edit of the text `old`, reads the answers and judges the result in `doubt`. The
    file's name tells the language. `count` counts messages' tokens with the template; with their
    answer, they may have `limit`. There is one question, or, for a text longer than that, one per
    part to rewrite, of the first `most_parts`.

    Raises InvalidRequestError if there is nothing to edit, and EditError if it does not fit.
    """

    def __init__(
        self,
        name: str,
        old: str,
        wanted: Wanted,
        count: Callable[[Sequence[Message]], int],
        limit: int,
        *,
        most_parts: int | None = None,
    ) -> None:
        self.name = name
        self.old = self.new = old
        self.doubt: str | None = None
        self.stats = Stats()
        self._wanted = wanted
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
            return question(part.text, wanted.instruction, name, form, wanted.update)

        def fits(part: Part) -> bool:
            return (1 + (form == WHOLE)) * count(ask(part)) + _GROWTH <= limit

        self.questions = []
        for one in islice(windows(old, part, wanted.instruction, fits), most_parts):
            tokens = count(ask(one))
            room = min(limit - tokens, 2 * (tokens + _GROWTH))
            self.questions.append(Question(one, ask(one), references(one.text, form), room))

    def answer(self, ask: Ask, *, as_text: bool = False) -> Iterator[str | None]:
        """Asks all questions; yields a diff, or the new text, as it grows, and None when `ask`
        does; sets `new`, `doubt` and `stats`. Raises EditError if an answer is no edit, or was cut.
        """
        changed, at = list[tuple[Part, str]](), 0
        for one in self.questions:
            part, new = one.part, list[str]()
            lines = self._lines(one, ask, new)
            if as_text:
                yield self.old[at : part.start]
                for line in lines:
                    yield line if line is None or len(new) == 1 else f"\n{line}"
            else:
                old = part.in_place(part.text).split("\n")
                yield from growing_diff(old, lines, self.old.count("\n", 0, part.start) + 1)
            changed.append((part, "\n".join(new)))
            at = part.end
        if as_text:
            yield self.old[at:]
        self.new = splice(self.old, changed)
        self.doubt = doubt(self.name, self.old, self.new, self._wanted.instruction)
        if self.doubt is None and (update := self._wanted.update):
            self.doubt = merge_doubt(self.old, update, self.new)

    def _lines(self, asked: Question, ask: Ask, new: list[str]) -> Iterator[str | None]:
        """The lines that an answer makes of a part, as they come; `new` gets them as well. Those of
        search/replace blocks and diffs come at the end."""
        part, said, finish, stats = asked.part, list[str](), None, Stats()

        def lines(events: Iterator[Said | None]) -> Iterator[str | None]:
            nonlocal finish, stats
            rest = ""
            for event in events:
                if event is None:
                    yield None
                    continue
                said.append("".join(piece.text[piece.thought :] for piece in event.pieces))
                stats, finish = event.stats, event.finish_reason
                *complete, rest = (rest + said[-1]).split("\n")
                yield from (line.removesuffix("\r") for line in complete)

        with closing(ask(asked)) as events:
            answer = lines(events)
            for line in whole_lines(answer):
                if line is None:
                    yield None
                    continue
                if not new and part.indent and line.startswith(part.indent):
                    break  # whether it is indented twice is known at the end
                new.append(part.in_place(line))
                yield new[-1]
            yield from (None for line in answer if line is None)
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
