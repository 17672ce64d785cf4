"""Exchanging words of an example: what stays as it was, and what changes alike everywhere."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.training.examples import Shard
from models.training.substitution import KEPT, Substitution, request_words

WORDS = np.arange(100, 100 + 3 * KEPT)
FREQUENT = WORDS[:KEPT]
CORPUS = np.concatenate((np.repeat(FREQUENT, 9), WORDS))


def exchanged(tokens: list[int], seed: int) -> list[int]:
    result = Substitution(WORDS, CORPUS).apply(np.random.default_rng(seed), np.array(tokens))
    return [int(token) for token in result]


@given(st.lists(st.integers(0, 99 + 3 * KEPT), min_size=1, max_size=80), st.integers(0, 99))
def test_equal_tokens_stay_equal_and_different_ones_different(ids: list[int], seed: int) -> None:
    after = exchanged(ids, seed)
    pairs = set(zip(ids, after, strict=True))
    assert len(pairs) == len(set(ids)) == len(set(after))
    for old, new in pairs:
        if old != new:
            assert old in WORDS
            assert old not in FREQUENT
            assert new in WORDS
            assert new not in ids


def test_words_that_tell_what_is_asked_for_are_known() -> None:
    fence, quote, before, name = 3, 4, 5, 6
    request = [before, quote, name, quote, before, fence, name]
    edits = Shard.of([(np.array([*request, 9]), np.array([False] * 7 + [True]))])
    found = request_words(edits, fence=fence, quote=quote)
    assert set(found.tolist()) - {quote} == {before}


def test_a_share_of_the_rarer_words_is_exchanged() -> None:
    rare = [int(word) for word in WORDS[KEPT : KEPT + 200]]
    changed = sum(old != new for old, new in zip(rare, exchanged(rare, 1), strict=True))
    assert 50 < changed < 110
