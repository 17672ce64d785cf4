"""The bytes of every id, however a tokenizer spells it; and a lower bound on a text's tokens."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from akunu_py.errors import ContextOverflowError
from akunu_py.model.loading import load_tokenizer
from akunu_py.text.tokenizer import _CUT, PieceLengths, TokenBytes, any_of

EMBER = load_tokenizer("ember")
BOUND = PieceLengths(map(EMBER.token_bytes.of, range(len(EMBER.wrapped))))


@given(st.text(max_size=40))
def test_a_text_is_the_sum_of_its_tokens_bytes(text: str) -> None:
    tokens = EMBER.encode_plain(text)
    assert b"".join(map(EMBER.token_bytes.of, tokens)).decode() == text


def test_end_tokens_are_special_and_spelled_by_their_names() -> None:
    assert EMBER.end_tokens <= EMBER.special_tokens
    for token in sorted(EMBER.end_tokens):
        assert EMBER.token_bytes.of(token).decode() == EMBER.decode([token])
    assert EMBER.token_bytes.of(1 << 20) == b"", "it is outside the vocabulary"


@pytest.fixture(scope="module")
def sentencepiece_like() -> Any:
    """As Llama 2's: a sign for a space, and bytes spelled out."""
    vocabulary = {"<0x0A>": 0, "<0xC3>": 1, "▁def": 2, "def": 3, "▁": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def test_spaces_and_bytes_are_read_from_the_spelling(sentencepiece_like: Any) -> None:
    spelled = [TokenBytes(sentencepiece_like).of(token) for token in range(6)]
    assert spelled == [b"\n", b"\xc3", b" def", b"def", b" ", b"</s>"]


@given(st.text() | st.lists(st.sampled_from(sorted(EMBER.wrapped.get_vocab()))).map("".join))
def test_no_text_has_fewer_tokens(text: str) -> None:
    assert BOUND.least_tokens(text) <= len(EMBER.encode(text, special_tokens=False))


@pytest.mark.parametrize("text", [" " * 32 * 50, "<|fim_prefix|>" * 50])
def test_the_bound_holds_for_texts_of_the_longest_entries(text: str) -> None:
    assert BOUND.least_tokens(text) <= len(EMBER.encode(text, special_tokens=False)) == 50


@given(st.lists(st.text() | st.just("<|im_end|>"), min_size=1, max_size=5))
def test_each_part_of_a_cut_text_is_encoded_on_its_own(texts: list[str]) -> None:
    EMBER.encode_plain("leaves the tokenizer in another state")
    alone = [token for text in texts for token in EMBER.encode(text, special_tokens=False)]
    assert EMBER.encode(_CUT.join(texts), special_tokens=False) == alone


@given(st.text(st.sampled_from([chr(0xFDD0 + i) for i in range(32)])))
def test_code_points_that_are_left_to_programs_are_text(text: str) -> None:
    assert EMBER.decode(EMBER.encode(text, special_tokens=False)) == text


@given(st.sets(st.text("ab|<", min_size=1, max_size=5)), st.text("ab|<", max_size=40))
def test_any_of_some_words_is_the_longest_of_them(words: set[str], text: str) -> None:
    longest = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    found = re.finditer(any_of(words) or r"(?!)", text)
    expected = re.finditer(longest or r"(?!)", text)
    assert [one.span() for one in found] == [one.span() for one in expected]


def test_a_text_that_is_far_too_long_is_not_encoded() -> None:
    with pytest.raises(ContextOverflowError, match=r"4194304 characters, .* context size of 2048"):
        EMBER.encode("a" * (4 << 20), most=2048)


def test_a_text_that_is_a_little_too_long_is_encoded_whole() -> None:
    assert len(EMBER.encode("x = 1\n" * 1000, most=2048)) > 2048


def test_a_text_that_is_far_too_long_is_not_encoded_to_be_counted() -> None:
    giant = "a" * (4 << 20)
    assert EMBER.count(giant, most=2048) == BOUND.least_tokens(giant) > 2048
    for text in ("def f(x):\n", "x = 1\n" * 1000):
        assert EMBER.count(text, most=2048) == len(EMBER.encode(text))
