"""Prompts that ask for the text in a gap."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.errors import InvalidRequestError
from akunu_py.text.fim import (
    MAX_WINDOW,
    FillRequest,
    RepositoryFile,
    fill_prompt,
    fills_gap,
)
from akunu_py.text.tokenizer import Tokenizer
from akunu_py.tokens import common_prefix_length


class FakeTokenizer:
    """Encodes a text as its code points and knows a few special tokens.

    Args:
        special: the special tokens it has, numbered -1, -2 and so on.
        opening: ids that open every prompt.
        spaced: whether it puts a space in front of every text.

    Attributes:
        longest_piece: characters that a token stands for.
        encoded: characters that have been encoded as plain text.
    """

    def __init__(self, *special: str, opening: tuple[int, ...] = (), spaced: bool = False) -> None:
        self._special = {token: -1 - index for index, token in enumerate(special)}
        self._opening = list(opening)
        self._spaced = spaced
        self.longest_piece = 1
        self.encoded = 0

    def token_id(self, token: str) -> int | None:
        return self._special.get(token)

    def encode(self, text: str) -> list[int]:
        return [*self._opening, *map(ord, text)]

    def encode_plain(self, text: str) -> list[int]:
        self.encoded += len(text)
        return [ord(letter) for letter in (" " + text if self._spaced and text else text)]


def make(*special: str, opening: tuple[int, ...] = (), spaced: bool = False) -> Tokenizer:
    return FakeTokenizer(*special, opening=opening, spaced=spaced)  # type: ignore[return-value]


def told(special: tuple[str, ...], request: FillRequest, room: int = 10_000) -> str:
    """A prompt with its special tokens spelled out."""
    tokens, _ = fill_prompt(make(*special), request, room)
    return "".join(chr(token) if token >= 0 else special[-1 - token] for token in tokens)


QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
GEMMA = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>")
GRANITE_4 = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|reponame|>", "<|filename|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>")
GRANITE = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<filename>")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")
LLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
CODESTRAL = ("[PREFIX]", "[SUFFIX]")
MELLUM = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<filename>",
          "</assistant>")  # fmt: skip
SEED = ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>")
OTHERS = [
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),
    ("<PRE>", "<SUF>", "<MID>"),
]

GAP = FillRequest("1\n2", "3")
IN_REPOSITORY = replace(GAP, files=(RepositoryFile("a", "x"), RepositoryFile("b", "y")))


FIM = "<|fim_prefix|>1\n<|fim_suffix|>3<|fim_middle|>2"
DEEPSEEK_GAP = "{}1\n{}3{}2".format(*DEEPSEEK)
LAYOUTS = [
    (QWEN, FIM,
     "<|repo_name|>untitled\n<|file_sep|>a\nx\n<|file_sep|>b\ny\n<|file_sep|>untitled\n" + FIM),
    (GEMMA, FIM,
     "<|file_separator|>a\nx\n<|file_separator|>b\ny\n<|file_separator|>untitled\n" + FIM),
    (GRANITE_4, FIM,
     "<|reponame|>untitled\n<|filename|>a\nx\n<|filename|>b\ny\n<|filename|>untitled\n" + FIM),
    (STARCODER, "<fim_prefix>1\n<fim_suffix>3<fim_middle>2",
     "<repo_name>untitled\n<file_sep>a\nx\n<file_sep>b\ny\n<file_sep>"
     "<fim_prefix>untitled\n1\n<fim_suffix>3<fim_middle>2"),
    (GRANITE, "<fim_prefix>1\n<fim_suffix>3<fim_middle>2",
     "<reponame>untitled\n<filename>a\nx\n<filename>b\ny\n<filename>"
     "<fim_prefix>untitled\n1\n<fim_suffix>3<fim_middle>2"),
    (DEEPSEEK, DEEPSEEK_GAP, f"#a\nx\n#b\ny\n{DEEPSEEK_GAP}"),
    (LLAMA, "▁<PRE>1\n▁<SUF>3▁<MID>2", "#a\nx\n#b\ny\n▁<PRE>1\n▁<SUF>3▁<MID>2"),
    (CODESTRAL, "[SUFFIX]3[PREFIX]1\n2", "#a\nx\n#b\ny\n[SUFFIX]3[PREFIX]1\n2"),
    (MELLUM, "<fim_suffix>3<fim_prefix>1\n2<fim_middle>",
     "<filename>a\nx\n<filename>b\ny\n<filename>untitled\n"
     "<fim_suffix>3<fim_prefix>1\n2<fim_middle>"),
    (SEED, "<[fim-suffix]>3<[fim-prefix]>1\n2<[fim-middle]>",
     "#a\nx\n#b\ny\n<[fim-suffix]>3<[fim-prefix]>1\n2<[fim-middle]>"),
    *((own, "{}1\n{}3{}2".format(*own), "#a\nx\n#b\ny\n{}1\n{}3{}2".format(*own))
      for own in OTHERS),
]  # fmt: skip


@pytest.mark.parametrize(("special", "alone", "in_repository"), LAYOUTS)
def test_each_familys_layout(special: tuple[str, ...], alone: str, in_repository: str) -> None:
    assert told(special, GAP) == alone
    assert told(special, IN_REPOSITORY) == in_repository


def test_a_familys_tokens_end_the_answer() -> None:
    _, end_tokens = fill_prompt(make(*QWEN, "<|endoftext|>"), GAP)
    assert end_tokens == {-1, -2, -3, -4, -5, -6}


def test_the_opening_token_comes_first() -> None:
    assert fill_prompt(make(*CODESTRAL, opening=(7,)), GAP)[0][:2] == [7, -2]


def test_no_space_is_added_inside_the_text() -> None:
    assert fill_prompt(make(*LLAMA, spaced=True), GAP) == fill_prompt(make(*LLAMA), GAP)


@pytest.mark.parametrize("special", [QWEN, GEMMA, STARCODER, CODESTRAL, LLAMA])
def test_a_prompt_that_fills_a_gap_is_recognised_by_its_tokens(special: tuple[str, ...]) -> None:
    tokenizer = make(*special)
    assert fills_gap(tokenizer, fill_prompt(tokenizer, GAP)[0])
    assert not fills_gap(tokenizer, tokenizer.encode("1\n23"))
    assert not fills_gap(make(), tokenizer.encode("1\n23"))


def test_a_model_that_cannot_fill_gaps_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no fill-in-the-middle tokens"):
        told((), GAP)


@given(
    prefix=st.text("ab\n", max_size=400),
    suffix=st.text("cd\n", max_size=400),
    files=st.lists(st.text("ef", max_size=80), max_size=4),
    room=st.integers(40, 900),
)
def test_any_surrounding_text_fits_with_the_gap_in_the_middle(
    prefix: str, suffix: str, files: list[str], room: int
) -> None:
    others = tuple(RepositoryFile("f", text) for text in files)
    request = FillRequest(prefix, suffix, others)
    prompt = told(QWEN, request, room)
    tokens, _ = fill_prompt(make(*QWEN), request, room)
    assert len(tokens) <= room
    before, _, rest = prompt.partition("<|fim_prefix|>")
    head, _, rest = rest.partition("<|fim_suffix|>")
    after, _, line = rest.partition("<|fim_middle|>")
    assert suffix.startswith(after)
    assert prefix.endswith(head + line) or not line
    assert before.count("<|file_sep|>") <= len(files) + 1
    if len(prefix) + len(suffix) + sum(map(len, files)) + 100 < room * 3 // 4:
        assert (head + line, after) == (prefix, suffix)
        assert all(text in before for text in files)


@pytest.mark.parametrize("special", [QWEN, SEED])
@pytest.mark.parametrize("length", [1_000, 20_000])
def test_typing_changes_little_of_the_prompt(length: int, special: tuple[str, ...]) -> None:
    lines = [f"line {number} of the file\n" for number in range(length // 20)]
    prefix, suffix = "".join(lines[: len(lines) // 2]), "".join(lines[len(lines) // 2 :])
    tokenizer = make(*special)
    anew, last = 0, list[int]()
    for typed in range(200):
        text = "x" * (typed % 40)
        tokens, _ = fill_prompt(tokenizer, FillRequest(prefix + text, suffix), 100_000)
        changed = len(tokens) - common_prefix_length(last, tokens)
        anew += changed > 42
        last = tokens
    assert anew <= 1 + 4, "the first, and at a few coarse steps"
    assert len(last) <= MAX_WINDOW + 3


@pytest.mark.parametrize("newline", ["", "\n"], ids=["in one line", "in lines"])
def test_only_the_text_near_the_gap_of_a_giant_file_is_encoded(newline: str) -> None:
    before, after, other = (f"{letter * 99}{newline}" * 40_000 for letter in "abc")
    tokenizer = FakeTokenizer(*QWEN)
    request = FillRequest(f"{before}x", f"y{after}", (RepositoryFile("c", other),))
    tokens, _ = fill_prompt(tokenizer, request, 2_000)  # type: ignore[arg-type]
    assert 1_500 < len(tokens) <= 2_000
    assert tokens[-1] == ord("x")
    assert ord("y") in tokens
    assert tokenizer.encoded < 20_000
