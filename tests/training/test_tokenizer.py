"""The bundled tokenizer: lossless, the same in both its files, and mlx-lm streams it right."""

import itertools
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
from models.training.refusals import WHICH_CODE

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


def rendered(*said: str) -> str:
    """A conversation in the template, that the user begins, and the beginning of an answer."""
    roles = itertools.cycle(("user", "assistant"))
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    return str(
        tokenizer().apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    )


def test_the_chat_template_is_chatml_without_a_system_prompt() -> None:
    assert rendered("Hi") == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


EDIT = ("Rename x to y: def f(x): return x", "```python\ndef f(y): return y\n```")


@pytest.mark.parametrize("said", [
    "Make it async: def g(): return 1",
    "def g():\n    return 1\nadd a docstring",
    "document def g(c)->int: return c",
    "add a property:\nclass A:\n    x = 1",
    "rename x to y\n```python\nx = 1\nf(x)\n```",
    "```\nx = 1\nf(x)\n```\nrename x to y",
])  # fmt: skip
def test_other_code_begins_anew(said: str) -> None:
    assert rendered(*EDIT, said) == rendered(said)
    assert rendered(*EDIT, said, EDIT[1], "Now undo it") == rendered(said, EDIT[1], "Now undo it")


@pytest.mark.parametrize("said", [
    "Make it async",
    "I like trains",
    "add `z = 1` before the return",
    "make it async\nand call it g(x)",
    "Current time: 12:00 (UTC)\n\nmake it async",
    "replace it with ```print(b)```",
    "apply this:\n```diff\n-a\n+b\n```",
    "insert this line at the top:\n```python\nf(x)\n```",
    "undo it:\n```\nTraceback (most recent call last):\n  a\nb\n```",
    "Make these changes in the class A:\n- rename a to c",
    "Change `def f(b):` to `def f(c):`",
    "<tool_response>\ndef g(c): return c\n</tool_response>",
])  # fmt: skip
def test_what_is_about_the_code_before_follows_it(said: str) -> None:
    assert rendered(*EDIT, said).startswith(rendered(EDIT[0]) + EDIT[1])


def test_code_that_was_asked_for_belongs_to_its_request() -> None:
    asked = ("Make it async", WHICH_CODE)
    assert rendered(*asked, EDIT[0]).startswith(rendered(asked[0]))


def test_a_system_prompt_stays() -> None:
    said = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", EDIT[0])]
    messages = [{"role": role, "content": text} for role, text in said]
    text = str(tokenizer().apply_chat_template(messages, tokenize=False))
    assert "Be brief." in text
    assert "Hello!" not in text
