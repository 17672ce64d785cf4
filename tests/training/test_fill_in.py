"""Holes: prefix, middle and suffix always make up the text again."""

import random

from hypothesis import given
from hypothesis import strategies as st

from models.training import fill_in
from models.training.examples import END_OF_TEXT

TEXT = st.text(alphabet="ab (\n\t é", min_size=1, max_size=300)
CUTS = (fill_in.cut_line, fill_in.cut_rest_of_line, fill_in.cut_block, fill_in.cut_anywhere)


@given(TEXT, st.sampled_from(CUTS), st.integers(0, 99))
def test_the_parts_make_up_the_text(text: str, cut: fill_in.Cut, seed: int) -> None:
    hole = cut(text, random.Random(seed))
    assert hole is None or hole.prefix + hole.middle + hole.suffix == text


@given(TEXT, st.integers(0, 99))
def test_an_example_ends_where_the_middle_ends(text: str, seed: int) -> None:
    example = fill_in.example(text, random.Random(seed))
    if example is None:
        return
    assert example[-1].text == END_OF_TEXT
    assert example[-1].learned
    given_parts = "".join(segment.text for segment in example if not segment.learned)
    assert given_parts.startswith("<|fim_prefix|>")
    assert given_parts.endswith("<|fim_middle|>")
