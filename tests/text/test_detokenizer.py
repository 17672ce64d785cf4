import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.engine import Engine
from akunu_py.text.stream import Detokenizer, WholeTextDetokenizer


def streamed(detokenizer: Detokenizer | WholeTextDetokenizer, tokens: list[int]) -> str:
    return "".join([*map(detokenizer.add, tokens), detokenizer.finish()])


@given(prompt=st.text(max_size=12), text=st.text(max_size=40))
def test_any_text_comes_through_whole(shared_engine: Engine, prompt: str, text: str) -> None:
    tokenizer = shared_engine.tokenizer
    tokens = tokenizer.encode_plain(text)
    assert streamed(tokenizer.detokenizer(tokenizer.encode_plain(prompt)), tokens) == text
    assert streamed(WholeTextDetokenizer(tokenizer.decode), tokens) == text


@given(tokens=st.lists(st.integers(0, 255), max_size=60))
def test_invalid_bytes_are_decoded_as_a_whole_answer_would_be(
    shared_engine: Engine, tokens: list[int]
) -> None:
    tokenizer = shared_engine.tokenizer
    assert streamed(tokenizer.detokenizer([]), tokens) == tokenizer.decode(tokens)


def test_a_character_is_shown_once_it_is_whole(engine: Engine) -> None:
    tokens = engine.tokenizer.encode_plain("é😀!")
    detokenizer = engine.tokenizer.detokenizer([])
    assert [detokenizer.add(token) for token in tokens] == ["", "é", "", "", "", "😀", "!"]


@pytest.mark.parametrize("prompt", ["caf\ufffd", "hello \U0001f600"])
def test_nothing_of_a_prompt_that_ends_oddly_is_repeated(engine: Engine, prompt: str) -> None:
    """With a real U+FFFD at its end, or cut inside a character."""
    tokens = engine.tokenizer.encode_plain(prompt)
    for end in (len(tokens), len(tokens) - 1):
        shown = streamed(
            engine.tokenizer.detokenizer(tokens[:end]), engine.tokenizer.encode_plain("xyz")
        )
        assert shown == "xyz"


@pytest.mark.parametrize("text", [" leading", "   indented", "\tx", "\n\n"])
def test_leading_space_survives(engine: Engine, text: str) -> None:
    prompt = engine.tokenizer.encode("x =")
    tokens = engine.tokenizer.encode_plain(text)
    assert streamed(engine.tokenizer.detokenizer(prompt), tokens) == text
