"""Where an answer copies from, as the guided attention is told."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.training import repeats
from models.training.copies import NOT_COPIED, sources_of


def test_a_renamed_copy_points_at_everything_but_the_new_name() -> None:
    tokens = np.array([1, 2, 3, 4, 5, 6, 0, 1, 2, 9, 4, 5, 6])
    learned = np.arange(13) >= 7
    expected = [NOT_COPIED] * 7 + [0, 1, NOT_COPIED, 3, 4, 5]
    assert sources_of(tokens, learned).tolist() == expected


def test_the_second_answer_copies_from_the_first() -> None:
    code, other = [11, 12, 13, 14], [11, 12, 13, 15]
    tokens = np.array([*code, 1, *other, 2, *other])
    learned = np.array([False] * 5 + [True] * 4 + [False] + [True] * 4)
    assert sources_of(tokens, learned)[10:].tolist() == [5, 6, 7, 8]


@given(st.lists(st.integers(0, 5), max_size=60), st.lists(st.booleans(), max_size=60))
def test_a_source_is_earlier_and_holds_the_same_token(ids: list[int], flags: list[bool]) -> None:
    length = min(len(ids), len(flags))
    tokens, learned = np.array(ids[:length], int), np.array(flags[:length], bool)
    for position, source in enumerate(sources_of(tokens, learned)):
        if source != NOT_COPIED:
            assert learned[position]
            assert source < position
            assert tokens[source] == tokens[position]


def test_a_repetition_points_one_stretch_back_also_when_cut_short() -> None:
    tokens, learned = repeats.repeat(np.random.default_rng(1), np.arange(10, 17))
    for length in (3, 8, 13, len(tokens)):
        sources = repeats.sources_of(tokens[:length], learned[:length])
        for position in range(length):
            assert sources[position] == (position - 7 if learned[position] else NOT_COPIED)
