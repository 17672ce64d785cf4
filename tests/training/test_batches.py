"""What a batch asks a model to learn, on shards of a few tokens, and the curriculum."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.training.batches import (
    ANSWER_WEIGHT,
    COPIED_WEIGHT,
    OPENING,
    OPENING_WEIGHT,
    REQUEST_WEIGHT,
    TURN_WEIGHT,
    Batch,
    Batches,
    Substitution,
    Vocabulary,
)
from models.training.copies import LINE, line_begins
from models.training.curriculum import CURRICULUM, Stage, rate_scale, stage_at, total_steps
from models.training.examples import Shard

END, FENCE, FIRST_WORD, BREAK = 1, 10, 10, 4000
REQUEST, ANSWER = list(range(10, 40)), list(range(10, 40))


def source_of(shards: dict[str, Shard]) -> Batches:
    vocabulary = Vocabulary(
        plain=np.arange(2, 100),
        words=np.arange(FIRST_WORD, 500),
        end=END,
        fence=FENCE,
        breaks=np.array([BREAK]),
    )
    return Batches(shards, vocabulary, positions=2048, seed=3)


def batches(**shards: tuple[list[int], list[bool]]) -> Batches:
    examples = {"code": (list(range(100, 400)), [True] * 300), **shards}
    return source_of(
        {
            kind: Shard.of([(np.array(tokens, np.uint16), np.array(learned))])
            for kind, (tokens, learned) in examples.items()
        }
    )


def drawn(source: Batches, kind: str, step: int = 0) -> Batch:
    return source.draw(step, rows=1, length=99, mix={kind: 1.0})


EDIT = ([*REQUEST, 7, *ANSWER[:10], 900, *ANSWER[10:]], [False] * 31 + [True] * 31)


def test_the_tokens_at_which_an_edit_is_decided_weigh_more() -> None:
    source = batches(edits=EDIT)
    batch = drawn(source, "edits")
    edit = source.kind_names.index("edits")
    answer = slice(31, 62)
    assert (batch.kinds[0, answer] == edit).all()
    weights = batch.weights[0, answer]
    # The first token of the copy, the one put in, and the one after it.
    assert np.flatnonzero(weights == TURN_WEIGHT).tolist() == [0, 10, 11]
    assert set(weights.tolist()) == {COPIED_WEIGHT, TURN_WEIGHT}


def test_a_request_is_learned_as_code_unless_its_words_were_exchanged() -> None:
    source = batches(edits=EDIT)
    code = source.kind_names.index("code")
    seen = set()
    for step in range(12):
        batch = drawn(source, "edits", step)
        exchanged = batch.tokens[0, :30].tolist() != REQUEST
        learned = (batch.kinds[0, 1:31] == code).all()
        assert learned == (not exchanged)
        if learned:
            assert set(batch.weights[0, 1:31].tolist()) == {REQUEST_WEIGHT}
        else:
            assert (batch.kinds[0, 1:31] == -1).all()
        seen.add(exchanged)
    assert seen == {True, False}


def test_what_fills_a_hole_weighs_more_and_its_borders_most() -> None:
    learned = [False, *[True] * 20, *[False] * 20, *[True] * 10]
    source = batches(fim=(list(range(10, 61)), learned))
    batch = drawn(source, "fim")
    assert (batch.weights[0, [41, 42, 43, 50]] == TURN_WEIGHT).all()
    assert (batch.weights[0, 44:50] == ANSWER_WEIGHT).all()
    assert (batch.weights[0, 1:21] == 1.0).all()
    # What follows the hole is code like any other; the tokens that mark the parts are not learned.
    assert (batch.weights[0, 22:40] == REQUEST_WEIGHT).all()
    assert (batch.kinds[0, 22:40] == source.kind_names.index("code")).all()
    assert (batch.kinds[0, [0, 21, 40]] == -1).all()


def test_an_answer_weighs_more_and_its_first_tokens_most() -> None:
    learned = [False] * 41 + [True] * 10
    batch = drawn(batches(questions=(list(range(10, 61)), learned)), "questions")
    assert (batch.weights[0, 41 : 41 + OPENING] == OPENING_WEIGHT).all()
    assert (batch.weights[0, 41 + OPENING : 51] == ANSWER_WEIGHT).all()
    assert (batch.weights[0, :41] == 1.0).all()


def test_every_token_knows_where_its_example_begins() -> None:
    source = batches(chats=([BREAK, *range(10, 59)], [False] * 25 + [True] * 25))
    batch = source.draw(0, rows=2, length=199, mix={"chats": 1.0})
    at = np.arange(200)
    assert (batch.begins[:, :150] == at[:150] // 50 * 50).all()
    # A line does not begin before its example does, though no break stands between them.
    assert (batch.targets[LINE, :, 1:] >= batch.begins[:, :-1]).all()
    assert (batch.targets[LINE, :, 51] == 50).all()


def test_nothing_is_learned_across_the_border_of_two_examples() -> None:
    source = batches(edits=EDIT, fim=(list(range(10, 61)), [True] * 51))
    mix = {"edits": 0.4, "fim": 0.3, "code": 0.2, "repeats": 0.1}
    for step in range(10):
        batch = source.draw(step, rows=2, length=199, mix=mix)
        first = batch.begins == np.arange(200)
        assert first.sum() > 2
        assert (batch.kinds[first] == -1).all()


def test_an_end_of_text_is_learned_where_a_file_ends_and_nowhere_else() -> None:
    source, ends = batches(), 0
    for step in range(40):
        batch = source.draw(step, rows=1, length=99, mix={"code": 1.0})
        tokens, kinds = batch.tokens[0], batch.kinds[0]
        for at in np.flatnonzero((tokens == END) & (kinds >= 0)):
            assert tokens[at - 1] == 399
            ends += 1
    assert ends > 5


def test_a_batch_depends_on_its_step_alone() -> None:
    once, again = (drawn(batches(edits=EDIT), "edits", 5) for _ in range(2))
    assert np.array_equal(once.tokens, again.tokens)
    assert np.array_equal(once.weights, again.weights)
    other = drawn(batches(edits=EDIT), "edits", 6)
    assert not np.array_equal(once.tokens, other.tokens)


def test_every_token_knows_where_its_line_begins() -> None:
    tokens = np.array([[5, 6, BREAK, 7, BREAK, BREAK, 8], [BREAK, 5, 6, 7, 8, 9, BREAK]])
    begins = line_begins(tokens, np.array([BREAK]))
    assert begins.tolist() == [[-1, 0, 0, 0, 3, 3, 5], [-1, 0, 1, 1, 1, 1, 1]]
    batch = drawn(batches(edits=([END, 11, BREAK, *range(12, 109)], [True] * 100)), "edits")
    assert batch.targets[LINE, 0].tolist() == [-1, 0, 0, 0, *[3] * 96]


WORDS, KEPT = np.arange(100, 1000), 300
FREQUENT = WORDS[:KEPT]
CORPUS = np.concatenate((np.repeat(FREQUENT, 9), WORDS))


def exchanged(tokens: list[int], seed: int) -> list[int]:
    result = Substitution(WORDS, CORPUS).apply(np.random.default_rng(seed), np.array(tokens))
    return [int(token) for token in result]


@given(st.lists(st.integers(0, 999), min_size=1, max_size=80), st.integers(0, 99))
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


def stage(name: str, steps: int, **options: Any) -> Stage:
    return Stage(name, steps, 1, 8, {"code": 1.0}, **options)


TWICE = (
    stage("up", 100),
    stage("down", 40, decays=True),
    stage("farther down", 60, decays=True),
    stage("up again", 50),
    stage("down again", 50, decays=True),
    stage("down from half", 50, decays=True, peak=0.5),
)


def test_the_rate_falls_over_each_run_of_stages_that_decay() -> None:
    scales = [rate_scale(TWICE, step) for step in range(total_steps(TWICE))]
    assert scales[0] == pytest.approx(0.01)
    assert set(scales[100:101]) == set(scales[200:251]) == {1.0}
    assert [scales[step] for step in (140, 199, 275, 300, 325)] == pytest.approx(
        [0.6, 0.02, 0.5, 0.5, 0.25]
    )
    assert [stage_at(TWICE, step).name for step in (0, 99, 100, 299)] == [
        *("up", "up", "down", "down again")
    ]
    with pytest.raises(ValueError, match="beyond the last stage"):
        rate_scale(TWICE, 350)


def test_every_stage_of_the_curriculum_is_of_known_kinds_in_rows_that_fit() -> None:
    kinds = {"repeats", "code", "fim", "questions", "edits", "long_edits"}
    kinds |= {"short_edits", "refusals", "chats", "hard_cases", "people", "remarks"}
    for one in CURRICULUM:
        assert set(one.mix) <= kinds
        assert sum(one.mix.values()) == pytest.approx(1.0, abs=0.05)
        assert one.length <= 2048
