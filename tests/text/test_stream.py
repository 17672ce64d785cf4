"""Text comes through whole, and ends at the first stop string, wherever the stream is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options
from akunu_py.text.stream import Detokenizer, StopScanner, WholeTextDetokenizer

letters = st.text(alphabet="ab\n", max_size=24)
stop_strings = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)


def cut_anywhere(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[start:end] for start, end in pairwise(borders)]


@given(text=letters, stops=stop_strings, cuts=st.lists(st.integers(0, 24)))
def test_the_text_ends_at_the_first_stop_wherever_the_stream_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    scanner = StopScanner(stops)
    shown = "".join(scanner.feed(part) for part in cut_anywhere(text, cuts)) + scanner.flush()

    found = [text.find(stop) for stop in stops if stop in text]
    assert shown == (text[: min(found)] if found else text)
    assert bool(scanner.found) == bool(found)


@given(text=letters, stops=stop_strings)
def test_exactly_what_may_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    beginnings = {stop[:length] for stop in stops for length in range(len(stop))}
    shown = ""
    for end, letter in enumerate(text, start=1):
        shown += scanner.feed(letter)
        if scanner.found:
            break
        held = max((part for part in beginnings if text[:end].endswith(part)), key=len, default="")
        assert shown + held == text[:end]


def test_text_without_a_possible_stop_is_not_held_back() -> None:
    scanner = StopScanner(["\n\n"])
    assert scanner.feed("one line") == "one line"
    assert scanner.feed("\n") == ""
    assert scanner.feed("another") == "\nanother"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="must not be empty"):
        Options(stop=("x", ""))


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
