"""Fill-in-the-middle prompts, in the layout that belongs to the model's own special tokens.

While somebody types, each prompt should begin as the one before it did. So in prefix-suffix-middle
the line with the cursor goes after the token that opens the middle, as llama.cpp's clients send it,
and what does not fit is cut in coarse steps, far from the gap. Suffix-prefix-middle only appends,
but few models were trained for it.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from akunu_py.errors import InvalidRequestError
from akunu_py.text.tokenizer import Tokenizer

MAX_WINDOW: Final = 4096
"""The most tokens around a gap that go into a prompt."""

_STEPS: Final = 16
_UNNAMED: Final = "untitled"


@dataclass(frozen=True)
class FillFormat:
    """The special tokens of a family of models, and the layout of its prompts. Without a token
    `middle` that opens the answer, it continues the prefix. `file` opens a file's name and, on the
    next line, its text; `name_inside` puts the name after the prefix token. Only this family has
    `marker`, among those with the same three tokens; `enders` end an answer, too.
    """

    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    repository: str | None = None
    file: str | None = None
    name_inside: bool = False
    marker: str | None = None
    enders: tuple[str, ...] = ()


_PIPED: Final = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_STARCODER: Final = FillFormat(
    "<fim_prefix>",
    "<fim_suffix>",
    "<fim_middle>",
    repository="<reponame>",
    file="<filename>",
    name_inside=True,
    enders=("<fim_pad>", "<|endoftext|>"),
)
_DEEPSEEK: Final = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")  # noqa: RUF001

FILL_FORMATS: Final = (
    # CodeGemma
    FillFormat(*_PIPED, file="<|file_separator|>", marker="<|file_separator|>"),
    # Granite from version 4 on
    FillFormat(
        *_PIPED,
        repository="<|reponame|>",
        file="<|filename|>",
        marker="<|filename|>",
        enders=("<|fim_pad|>", "<|end_of_text|>"),
    ),
    # Qwen2.5-Coder and its successors, ember, and others with these tokens
    FillFormat(
        *_PIPED,
        repository="<|repo_name|>",
        file="<|file_sep|>",
        enders=("<|fim_pad|>", "<|endoftext|>"),
    ),
    # StarCoder2
    replace(_STARCODER, repository="<repo_name>", file="<file_sep>", marker="<file_sep>"),
    # Mellum
    replace(_STARCODER, suffix_first=True, repository=None, name_inside=False,
            marker="</assistant>"),
    # Granite Code, StarCoder
    _STARCODER,
    # SantaCoder
    FillFormat("<fim-prefix>", "<fim-suffix>", "<fim-middle>", repository="<fim-repo>",
               enders=("<fim-pad>", "<|endoftext|>")),
    # Seed-Coder
    FillFormat("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),
    # GLM from version 4.5 on
    FillFormat("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>",
               enders=("<|endoftext|>", "<|user|>")),
    # Falcon-H1's coder
    FillFormat("<|prefix|>", "<|suffix|>", "<|middle|>", enders=("<|end_of_text|>",)),
    # DeepSeek-Coder, which calls the prefix begin, the suffix hole, and the middle end
    FillFormat(*_DEEPSEEK, enders=("<|EOT|>",)),
    # CodeLlama
    FillFormat("▁<PRE>", "▁<SUF>", "▁<MID>", enders=("▁<EOT>",)),
    FillFormat("<PRE>", "<SUF>", "<MID>", repository="<REPO>", enders=("<PAD>", "<EOT>")),
    # Codestral
    FillFormat("[PREFIX]", "[SUFFIX]", None, suffix_first=True),
)  # fmt: skip


@dataclass(frozen=True)
class RepositoryFile:
    """Another file, or a piece of one."""

    filename: str
    text: str


@dataclass(frozen=True)
class FillRequest:
    """A gap in a file, the text around it, and other `files` of the same repository, the most
    important last."""

    prefix: str
    suffix: str
    files: tuple[RepositoryFile, ...] = ()


def fill_prompt(
    tokenizer: Tokenizer, request: FillRequest, room: int = sys.maxsize
) -> tuple[list[int], frozenset[int]]:
    """The prompt of at most `room` tokens that asks for the text in a gap, and the tokens that end
    the answer besides the model's own.

    It keeps the tokens nearest to the gap: a quarter of them after it, more if there is little text
    before it. It keeps the last of the other files, each one whole. A model that was not trained to
    fill gaps is refused.
    """
    format_ = find_format(tokenizer.token_id)
    if format_ is None:
        raise InvalidRequestError(
            "This model has no fill-in-the-middle tokens; leave the suffix out, "
            "or use a model trained to fill gaps, such as Qwen2.5-Coder."
        )
    layout = _Layout(tokenizer, format_, request.files)
    opening = tokenizer.encode("")
    room -= len(opening) + len(layout.around((), (), ()))
    window = min(MAX_WINDOW, max(1, room))
    head, line = layout.split(request.prefix)
    most = window * tokenizer.longest_piece  # characters that fill a window in any case
    head_ids, line_ids, suffix_ids = _trim(
        layout.inside(_ending(head, most)),
        layout.inside(_ending(line, most)),
        layout.inside(request.suffix[:most]),
        window,
    )
    taken = len(head_ids) + len(line_ids) + len(suffix_ids)
    files = layout.before(room - _rounded(taken, window))
    around = layout.around(head_ids, line_ids, suffix_ids)
    return [*opening, *files, *around], fill_end_tokens(tokenizer)


def fill_end_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that end the text in a gap besides the model's own: all that mark its parts."""
    own = find_format(tokenizer.token_id)
    if own is None:
        return frozenset()
    names = (own.prefix, own.suffix, own.middle, own.repository, own.file, *own.enders)
    found = (tokenizer.token_id(name) for name in names if name)
    return frozenset(token for token in found if token is not None)


def fills_gap(tokenizer: Tokenizer, tokens: Sequence[int]) -> bool:
    """Whether a prompt, which a client may have written itself, asks to fill a gap."""
    format_ = find_format(tokenizer.token_id)
    return format_ is not None and tokenizer.token_id(format_.suffix) in tokens


def find_format(token_id: Callable[[str], int | None]) -> FillFormat | None:
    """The format whose tokens a tokenizer has; None if the model cannot fill gaps."""
    for format_ in FILL_FORMATS:
        needed = (format_.prefix, format_.suffix, format_.middle, format_.marker)
        if all(token is None or token_id(token) is not None for token in needed):
            return format_
    return None


def _ending(text: str, least: int) -> str:
    """The last characters of a text, `least` to twice as many. The cut moves only every `least`
    characters, so that the next keystrokes leave it where it is."""
    return text[max(0, len(text) - least) // least * least :]


def _trim(
    head: Sequence[int], line: Sequence[int], suffix: Sequence[int], window: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """The lines before a gap, the line with it, and the text after it, cut to fit a window.

    Every length that a keystroke may change is rounded first, so that the cuts stay where they are
    until a sixteenth of the window has been typed.
    """
    quarter = window // 4
    longest = window // 2 if head else window - min(len(suffix), quarter)
    line = line[_excess(len(line), longest, window) :]
    written = _rounded(len(head) + len(line) + 1, window)
    suffix = suffix[: max(quarter, window - written)]
    left = window - len(suffix) - _rounded(len(line) + 1, window)
    return head[_excess(len(head), left, window) :], line, suffix


def _excess(length: int, limit: int, window: int) -> int:
    return min(length, _rounded(max(0, length - limit), window))


def _rounded(length: int, window: int) -> int:
    step = max(1, window // _STEPS)
    return -(-length // step) * step


class _Layout:
    """Turns the parts of a request into ids, in the layout of one family of models."""

    def __init__(
        self, tokenizer: Tokenizer, format_: FillFormat, files: Sequence[RepositoryFile]
    ) -> None:
        self._tokenizer = tokenizer
        self._format = format_
        self._files = files
        # Some tokenizers put a space in front of every text; inside a text it would be wrong.
        alone, within = tokenizer.encode_plain("a"), tokenizer.encode_plain("\na")
        spaced = within[-len(alone) :] != alone
        self._newline = tokenizer.encode_plain("\n") if spaced else []
        self._file = self._special(format_.file) if files else []
        self._name = self.inside(f"{_UNNAMED}\n") if self._file else []

    def split(self, prefix: str) -> tuple[str, str]:
        start = 0 if self._format.suffix_first else prefix.rfind("\n") + 1
        return prefix[:start], prefix[start:]

    def inside(self, text: str) -> list[int]:
        """The ids of a text inside another one; special tokens in it are plain text."""
        if self._newline:
            tokens = self._tokenizer.encode_plain(f"\n{text}")
            if tokens[: len(self._newline)] == self._newline:
                return tokens[len(self._newline) :]
        return self._tokenizer.encode_plain(text)

    def around(self, head: Sequence[int], line: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """The text around the gap, after the name of its file if there are other files."""
        own, named = self._format, [*self._file, *self._name]
        prefix, middle = self._special(own.prefix), self._special(own.middle)
        opening, following = [*named, *prefix], [*self._special(own.suffix), *suffix]
        if own.suffix_first:
            return [*named, *following, *prefix, *head, *line, *middle]
        if own.name_inside:
            opening = [*self._file, *prefix, *self._name]
        return [*opening, *head, *following, *middle, *line]

    def before(self, room: int) -> list[int]:
        """As many of the last files as fit, after the repository's name."""
        repository = self._special(self._format.repository)
        if repository:
            repository += self.inside(f"{_UNNAMED}\n")
        room -= len(repository)
        kept: list[int] = []
        for file in reversed(self._files):
            if len(file.text) > room * self._tokenizer.longest_piece:
                break  # too long, whatever its ids are
            name = f"{file.filename or _UNNAMED}\n"
            header = [*self._file, *self.inside(name)] if self._file else self.inside(f"#{name}")
            block = [*header, *self.inside(f"{file.text}\n")]
            if len(kept) + len(block) > room:
                break
            kept = [*block, *kept]
        return [*repository, *kept] if kept else []

    def _special(self, name: str | None) -> list[int]:
        token = None if name is None else self._tokenizer.token_id(name)
        return [] if token is None else [token]
