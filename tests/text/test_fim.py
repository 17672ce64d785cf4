import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.errors import InvalidRequestError
from akunu_py.text.fim import fill_prompt
from akunu_py.text.tokenizer import Tokenizer


class FakeTokenizer:
    """Encodes a text as its code points and knows a few special tokens."""

    def __init__(self, *special: str) -> None:
        self._special = {token: -1 - index for index, token in enumerate(special)}

    def token_id(self, token: str) -> int | None:
        return self._special.get(token)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    encode_plain = encode


def fill(special: tuple[str, ...], prefix: str, suffix: str) -> tuple[list[int], frozenset[int]]:
    tokenizer: Tokenizer = FakeTokenizer(*special)  # type: ignore[assignment]
    filling = fill_prompt(tokenizer, prefix, suffix)
    return filling.tokens, filling.end_tokens


QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")


@given(prefix=st.text(max_size=9), suffix=st.text(max_size=9))
def test_qwens_layout(prefix: str, suffix: str) -> None:
    tokens, ends = fill(QWEN, prefix, suffix)
    assert tokens == [-1, *map(ord, prefix), -2, *map(ord, suffix), -3]
    assert -4 in ends


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), [-1, 97, -2, 98, -3]),
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), [-1, 97, -2, 98, -3]),
        (("▁<PRE>", "▁<SUF>", "▁<MID>"), [-1, 97, -2, 98, -3]),
        (("[PREFIX]", "[SUFFIX]"), [-2, 98, -1, 97]),
    ],
)
def test_each_familys_layout(special: tuple[str, ...], expected: list[int]) -> None:
    assert fill(special, "a", "b")[0] == expected


def test_a_model_that_cannot_fill_says_so() -> None:
    with pytest.raises(InvalidRequestError, match="no fill-in-the-middle tokens"):
        fill((), "a", "b")
