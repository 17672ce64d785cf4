"""Every id's bytes, for the three ways in which tokenizers spell them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from akunu_py.model import load_tokenizer
from akunu_py.text.token_bytes import TokenBytes

EMBER = load_tokenizer("ember")


@given(st.text(max_size=40))
def test_a_text_is_the_sum_of_its_tokens_bytes(text: str) -> None:
    tokens = EMBER.encode_plain(text)
    assert b"".join(map(EMBER.token_bytes.of, tokens)).decode() == text


def test_special_tokens_are_what_they_are_called() -> None:
    for token in sorted(EMBER.end_tokens):
        assert EMBER.token_bytes.of(token).decode() == EMBER.decode([token])


def test_ids_beyond_the_vocabulary_have_none() -> None:
    assert EMBER.token_bytes.of(1 << 20) == b""


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
