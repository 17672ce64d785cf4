"""Fill-in-the-middle prompts, in the layout that the model's own special tokens announce.

While somebody types, each prompt should begin as the one before it did, so that little of it has to
be computed. Therefore:

- The line with the cursor goes behind the token that opens the middle: the answer goes on from it,
  and only it changes with a keystroke. All families know middles that begin with a line, and
  llama.cpp's clients send just this. It is the default.
- Suffix-prefix-middle only ever appends, beyond the end of a line too. It is what Codestral was
  trained for. Others were trained for it in a minority of cases or not at all (Qwen2.5-Coder,
  DeepSeek-Coder), and their special tokens do not tell which, so there it has to be asked for.
- What does not fit is cut in coarse steps, far from the gap.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from akunu_py.errors import InvalidRequestError
from akunu_py.text.fim_formats import FillFormat, find_format
from akunu_py.text.tokenizer import Tokenizer

LONGEST_WINDOW: Final = 4096
"""Tokens around a gap that are looked at, if the context has room for that many."""

_STEPS: Final = 16
_UNNAMED: Final = "untitled"


@dataclass(frozen=True)
class RepositoryFile:
    """Another file, or a piece of one, that helps to fill a gap."""

    filename: str
    text: str


@dataclass(frozen=True)
class FillRequest:
    """A gap in a file, and what is around it.

    Attributes:
        prefix: the text before the gap, up to the cursor.
        suffix: the text after it.
        files: others of the same repository, those that matter most last.
        filename: of the file with the gap.
        repository: its name.
        suffix_first: asks in the suffix-prefix-middle layout; False leaves that to the model.
    """

    prefix: str
    suffix: str
    files: tuple[RepositoryFile, ...] = ()
    filename: str = ""
    repository: str = ""
    suffix_first: bool = False


@dataclass(frozen=True)
class FillPrompt:
    """A prompt that asks for the text between a prefix and a suffix.

    Attributes:
        tokens: the prompt's ids.
        end_tokens: ids that end the answer, beside the model's usual ones.
    """

    tokens: list[int]
    end_tokens: frozenset[int]


def fill_prompt(tokenizer: Tokenizer, request: FillRequest, room: int = sys.maxsize) -> FillPrompt:
    """The prompt for what is to be filled in.

    Args:
        tokenizer: of the model.
        request: what is around the gap.
        room: how many tokens the prompt may have. Of the text around the gap the nearest tokens
            stay, a quarter of them after it and more where there is little before it; of the other
            files the last ones, each whole.

    Raises:
        InvalidRequestError: if the model was not trained to fill gaps.
    """
    format_ = find_format(tokenizer.token_id)
    if format_ is None:
        raise InvalidRequestError(
            "This model has no fill-in-the-middle tokens; leave the suffix out, "
            "or use a model trained to fill gaps, Qwen2.5-Coder say."
        )
    layout = _Layout(tokenizer, format_, request)
    opening = tokenizer.encode("")
    room -= len(opening) + len(layout.around((), (), ()))
    window = min(LONGEST_WINDOW, max(1, room))
    head, line = layout.split(request.prefix)
    most = window * tokenizer.longest_piece  # so many characters fill a window, whatever they are
    head_ids, line_ids, suffix_ids = _trim(
        layout.inside(_ending(head, most)),
        layout.inside(_ending(line, most)),
        layout.inside(request.suffix[:most]),
        window,
    )
    taken = len(head_ids) + len(line_ids) + len(suffix_ids)
    files = layout.files(request, room - _rounded(taken, window))
    around = layout.around(head_ids, line_ids, suffix_ids)
    return FillPrompt([*opening, *files, *around], layout.end_tokens)


def fills_gap(tokenizer: Tokenizer, tokens: Sequence[int]) -> bool:
    """Whether a prompt, whoever wrote it, asks for what goes into a gap."""
    format_ = find_format(tokenizer.token_id)
    return format_ is not None and tokenizer.token_id(format_.suffix) in tokens


def _ending(text: str, least: int) -> str:
    """The end of a text, as many characters or up to twice as many: cut where the next keystrokes
    leave the cut."""
    return text[max(0, len(text) - least) // least * least :]


def _trim(
    head: Sequence[int], line: Sequence[int], suffix: Sequence[int], window: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """What fits into a window of whole lines before a gap, the line with it, and what follows.

    Every length that may change with a keystroke is rounded first, so that all cuts stay where
    they are until a sixteenth of the window has been typed.
    """
    quarter = window // 4
    longest = window // 2 if head else window - min(len(suffix), quarter)
    line = line[_excess(len(line), longest, window) :]
    written = _rounded(len(head) + len(line) + 1, window)
    suffix = suffix[: max(quarter, window - written)]
    left = window - len(suffix) - _rounded(len(line) + 1, window)
    return head[_excess(len(head), left, window) :], line, suffix


def _excess(length: int, limit: int, window: int) -> int:
    """How much to cut off, in steps."""
    return min(length, _rounded(max(0, length - limit), window))


def _rounded(length: int, window: int) -> int:
    step = max(1, window // _STEPS)
    return -(-length // step) * step


class _Layout:
    """Turns the parts of a request into ids, as one family of models expects them."""

    def __init__(self, tokenizer: Tokenizer, format_: FillFormat, request: FillRequest) -> None:
        self._tokenizer = tokenizer
        self._format = format_
        self._suffix_first = request.suffix_first or format_.suffix_first
        # Some tokenizers put a space in front of every text, which does not belong into one.
        alone, within = tokenizer.encode_plain("a"), tokenizer.encode_plain("\na")
        spaced = within[-len(alone) :] != alone
        self._newline = tokenizer.encode_plain("\n") if spaced else []
        self._file = self._special(format_.file) if request.files else []
        self._name = self.inside(f"{request.filename or _UNNAMED}\n") if self._file else []

    @property
    def end_tokens(self) -> frozenset[int]:
        """The special tokens that end an answer."""
        own = self._format
        names = (own.prefix, own.suffix, own.middle, own.repository, own.file, *own.enders)
        return frozenset(token for name in names for token in self._special(name))

    def split(self, prefix: str) -> tuple[str, str]:
        """What is told before the suffix, and what after it."""
        start = 0 if self._suffix_first else prefix.rfind("\n") + 1
        return prefix[:start], prefix[start:]

    def inside(self, text: str) -> list[int]:
        """The ids of a text in which nothing is special, as it is spelled within another."""
        if self._newline:
            tokens = self._tokenizer.encode_plain(f"\n{text}")
            if tokens[: len(self._newline)] == self._newline:
                return tokens[len(self._newline) :]
        return self._tokenizer.encode_plain(text)

    def around(self, head: Sequence[int], line: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """The text around the gap, behind the name of its file if there are others."""
        own = self._format
        opening = [*self._file, *self._name, *self._special(own.prefix)]
        if own.name_inside:
            opening = [*self._file, *self._special(own.prefix), *self._name]
        following, middle = [*self._special(own.suffix), *suffix], self._special(own.middle)
        if own.middle is None:
            return [*following, *opening, *head, *line]
        if self._suffix_first:
            return [*opening, *following, *middle, *head, *line]
        return [*opening, *head, *following, *middle, *line]

    def files(self, request: FillRequest, room: int) -> list[int]:
        """As many of the last files as there is room for, behind the repository's name."""
        repository = self._special(self._format.repository)
        if repository:
            repository += self.inside(f"{request.repository or _UNNAMED}\n")
        room -= len(repository)
        told: list[int] = []
        for file in reversed(request.files):
            if len(file.text) > room * self._tokenizer.longest_piece:
                break  # it need not be encoded to tell
            name = f"{file.filename or _UNNAMED}\n"
            header = [*self._file, *self.inside(name)] if self._file else self.inside(f"#{name}")
            block = [*header, *self.inside(f"{file.text}\n")]
            if len(told) + len(block) > room:
                break
            told = [*block, *told]
        return [*repository, *told] if told else []

    def _special(self, name: str | None) -> list[int]:
        token = None if name is None else self._tokenizer.token_id(name)
        return [] if token is None else [token]
