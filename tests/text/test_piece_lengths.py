"""How few tokens a text can have: never more than it has, and more for what is surely longer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.errors import ContextOverflowError
from akunu_py.model import load_tokenizer
from akunu_py.text.token_bytes import PieceLengths

EMBER = load_tokenizer("ember")
BOUND = PieceLengths(map(EMBER.token_bytes.of, range(len(EMBER.wrapped))))


@given(st.text() | st.lists(st.sampled_from(sorted(EMBER.wrapped.get_vocab()))).map("".join))
def test_no_text_has_fewer(text: str) -> None:
    assert BOUND.least_tokens(text) <= len(EMBER.encode(text, special_tokens=False))


@pytest.mark.parametrize("text", [" " * 32 * 50, "<|fim_prefix|>" * 50])
def test_texts_of_the_longest_entries_have_as_few_as_they_have(text: str) -> None:
    assert BOUND.least_tokens(text) <= len(EMBER.encode(text, special_tokens=False)) == 50


def test_each_byte_counts_by_the_longest_entry_that_has_it() -> None:
    bound = PieceLengths([b"a", b"ab", b"    "])
    assert bound.least_tokens("a" * 10) == 5
    assert bound.least_tokens(" " * 10) == 2
    assert bound.least_tokens("ab" * 2 + " " * 4) == 3
    assert bound.least_tokens("ccc") == 0, "what no entry spells may be one token, or none"


def test_what_is_far_too_long_is_not_encoded() -> None:
    with pytest.raises(ContextOverflowError, match=r"4194304 characters, .* context only 2048"):
        EMBER.encode("a" * (4 << 20), most=2048)


def test_what_is_a_little_too_long_comes_back_whole() -> None:
    assert len(EMBER.encode("x = 1\n" * 1000, most=2048)) > 2048
