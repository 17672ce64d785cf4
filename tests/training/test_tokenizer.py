"""The bundled tokenizer: lossless, the same in both its files, and mlx-lm streams it right."""

import json
from functools import cache

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer

from models.training.corpus import standard_library
from models.training.examples import EMBER, SPECIAL_TOKENS

LAYOUT = ("\t", "\n", "\n    ", "\n\n", "\n\n        ", "  ", " " * 32)

AWKWARD = (
    "\u2581",
    " \u2581 x",
    "\r\n\r",
    "\t\t",
    "   lead",
    "日本語 テキスト",
    "a\u0301",
    "\x00",
    "👩‍👩‍👧 😀😀",
)
TEXTS = st.one_of(
    st.sampled_from(AWKWARD),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.text(alphabet=" \n\t\r\u2581ab0é😀<|>", max_size=60),
)


@cache
def tokenizer() -> TokenizerWrapper:
    return load_tokenizer(EMBER)


@cache
def pieces() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(EMBER / "tokenizer.model"))


def streamed(ids: list[int]) -> str:
    detokenizer = tokenizer().detokenizer
    detokenizer.reset()
    segments = []
    for token in ids:
        detokenizer.add_token(token)
        segments.append(detokenizer.last_segment)
    detokenizer.finalize()
    return "".join([*segments, detokenizer.last_segment])


@settings(max_examples=400)
@given(TEXTS)
def test_any_text_comes_back_as_it_went_in(text: str) -> None:
    ids = tokenizer().encode(text, add_special_tokens=False)
    assert tokenizer().decode(ids, skip_special_tokens=False) == text
    assert pieces().encode(text) == ids
    assert pieces().decode(ids) == text


@settings(max_examples=200)
@given(TEXTS)
def test_streaming_gives_the_same_text(text: str) -> None:
    assert streamed(tokenizer().encode(text, add_special_tokens=False)) == text


def test_both_files_agree_on_held_out_source() -> None:
    held_out = [file for file in standard_library() if file.held_out][:40]
    assert held_out
    for file in held_out:
        ids = tokenizer().encode(file.text, add_special_tokens=False)
        assert ids == pieces().encode(file.text), file.path


def test_digits_stand_alone_and_indentation_is_one_piece() -> None:
    assert len(tokenizer().encode("12345", add_special_tokens=False)) == 5
    for text in (*LAYOUT, *SPECIAL_TOKENS):
        assert len(tokenizer().encode(text, add_special_tokens=False)) == 1


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_every_special_token_stops_generation(file: str) -> None:
    """Those that end a turn and a text, and those that only a confused model writes."""
    stops = json.loads((EMBER / file).read_text())["eos_token_id"]
    assert sorted(tokenizer().convert_ids_to_tokens(stops)) == sorted(SPECIAL_TOKENS)


def test_the_chat_template_is_chatml_without_a_system_prompt() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer().apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
