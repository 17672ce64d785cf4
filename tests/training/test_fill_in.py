"""Holes: prefix, middle and suffix always make up the text again."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.training import fill_in
from models.training.copies import NOWHERE
from models.training.examples import END_OF_TEXT

TEXT = st.text(alphabet="ab (\n\t é", min_size=1, max_size=300)
CUTS = (
    fill_in.cut_line,
    fill_in.cut_told_line,
    fill_in.cut_rest_of_line,
    fill_in.cut_block,
    fill_in.cut_anywhere,
)


@given(TEXT, st.sampled_from(CUTS), st.integers(0, 99))
def test_the_parts_make_up_the_text(text: str, cut: fill_in.Cut, seed: int) -> None:
    hole = cut(text, random.Random(seed))
    assert hole is None or hole.prefix + hole.middle + hole.suffix == text


@given(TEXT, st.sampled_from(CUTS), st.integers(0, 99))
def test_a_line_break_at_a_border_may_be_part_of_the_hole(
    text: str, cut: fill_in.Cut, seed: int
) -> None:
    draw = random.Random(seed)
    hole = cut(text, draw)
    if hole is None:
        return
    wider = fill_in.with_breaks(hole, draw)
    assert wider.prefix + wider.middle + wider.suffix == text
    assert wider.middle.strip("\n") == hole.middle.strip("\n")
    assert len(wider.middle) - len(hole.middle) <= 2


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


def learned(*runs: tuple[int, bool]) -> np.ndarray:
    return np.concatenate([np.full(length, flag) for length, flag in runs])


def test_the_middle_is_what_is_learned_after_the_suffix() -> None:
    psm = learned((1, False), (20, True), (8, False), (6, True))
    assert fill_in.middle(psm) == slice(29, 35)
    without_prefix = learned((9, False), (6, True))
    suffix_first = learned((10, False), (26, True))
    for one in (without_prefix, suffix_first):
        assert one[fill_in.middle(one)].size == 0


def test_a_filling_begins_and_ends_by_looking_at_the_borders_of_its_hole() -> None:
    psm = learned((1, False), (20, True), (8, False), (6, True))
    assert fill_in.suffix(psm) == slice(22, 28)
    alignment = fill_in.align(psm)
    borders = [*range(29, 29 + fill_in.OPENING), 34]
    assert np.flatnonzero(fill_in.borders(psm)).tolist() == borders
    assert (alignment.place[borders] == 21).all()
    assert (alignment.source[borders] == 22).all()
    for targets in (alignment.place, alignment.source):
        assert (np.delete(targets, borders) == NOWHERE).all()
