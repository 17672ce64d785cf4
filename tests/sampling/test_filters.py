"""XTC excludes what mlx-lm excludes; infill leaves what llama.cpp leaves; drafts change nothing."""

from random import Random

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import apply_xtc

from akunu_py.engine import Engine
from akunu_py.options import Options, Sampling
from akunu_py.sampling.processors import InfillFilter, XTCFilter, most_likely
from akunu_py.sampling.sampler import Sampler, SamplerFactory
from tests.fakes import OracleDrafter, drafted_answer

WORDS = ["<end>", "hel", "hell", "hello", "dummy", "x", "xy", "<stop>"]
END, HEL, HELL, HELLO, DUMMY, X, XY, STOP = range(len(WORDS))
PROMPT = [Random(5).randrange(256) for _ in range(30)]


def spell(token: int) -> bytes:
    return b"" if token in (END, STOP) else WORDS[token].encode()


FILTER = InfillFilter([END, STOP], spell)


@pytest.mark.parametrize(
    ("candidates", "left"),
    [
        # The example of llama.cpp's description, with a dummy that is too unlikely.
        ({HEL: 0.5, HELL: 0.2, HELLO: 0.1, DUMMY: 0.2}, {HEL: 1.0}),
        ({HEL: 0.3, HELL: 0.1, HELLO: 0.1, DUMMY: 0.5}, {HEL: 0.5, DUMMY: 0.5}),
        # A longer text wins where it is likelier; the shorter ones count for it.
        ({HEL: 0.1, HELLO: 0.9}, {HELLO: 1.0}),
        ({XY: 0.5, X: 0.1, DUMMY: 0.4}, {XY: 0.6, DUMMY: 0.4}),
        # An end token that is likely enough beside so many candidates is taken.
        ({END: 0.1, HEL: 0.3, DUMMY: 0.3, XY: 0.3}, {END: 1.0}),
        ({END: 0.2, STOP: 0.1, HEL: 0.7}, {END: 2 / 3, STOP: 1 / 3}),
        ({END: 0.05, HEL: 0.95}, {END: 0.05, HEL: 0.95}),
        # With two candidates left a text needs one third, measured after the others are dropped.
        ({HEL: 0.24, DUMMY: 0.76}, {DUMMY: 1.0}),
        # No token is likely enough: the answer ends.
        ({HEL: 0.18, DUMMY: 0.17, X: 0.16, **{100 + i: 0.07 for i in range(7)}}, {END: 1.0}),
        ({HEL: 1.0, DUMMY: 0.0}, {HEL: 1.0}),
    ],
)
def test_tokens_that_are_left(candidates: dict[int, float], left: dict[int, float]) -> None:
    def spelled(token: int) -> bytes:
        return spell(token) if token < len(WORDS) else b"#%d" % token

    assert InfillFilter([END, STOP], spelled).left_of(candidates) == pytest.approx(left)


def test_without_end_tokens_the_most_likely_text_is_left() -> None:
    candidates = {100 + i: 0.1 for i in range(10)}
    assert InfillFilter([], lambda token: b"%d" % token).left_of(candidates) == {100: 1.0}


def test_rows_are_filtered_after_top_k_and_top_p() -> None:
    rows = np.full((2, len(WORDS)), 1e-6)
    rows[0, [HEL, HELLO, DUMMY, X]] = [0.35, 0.2, 0.4, 0.05]
    rows[1, [XY, END, DUMMY]] = [0.5, 0.2, 0.3]
    sampling = Sampling(temperature=1.0, top_k=3, top_p=0.97, infill=True)
    logits = mx.log(mx.array(rows.astype(np.float32)))
    found = np.array(Sampler(sampling, infill=FILTER).distributions(logits, 0))
    assert found[0, [HEL, DUMMY]] == pytest.approx([0.55 / 0.95, 0.4 / 0.95], abs=1e-4)
    assert found[1, END] == pytest.approx(1.0)
    assert (found > 0).sum() == 3


def test_an_end_token_ends_the_answer_even_if_it_was_no_candidate() -> None:
    row = np.full((1, 120), 1e-9, np.float32)
    row[0, 20:60] = 1 / 40
    other = InfillFilter([7], lambda token: b"#%d#" % token)
    sampling = Sampling(temperature=1.0, infill=True)
    found = Sampler(sampling, infill=other).distributions(mx.log(mx.array(row)), 0)
    assert np.flatnonzero(np.array(found)[0]).tolist() == [7]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_do_not_change_the_text(engine: Engine, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, top_k=40, top_p=0.9, seed=2, infill=True)
    plain = engine.generate(PROMPT, Options(40, drafter="none").sampled_as(sampling))
    unfiltered = Sampling(temperature=temperature, top_k=40, top_p=0.9, seed=2)
    if temperature:  # else the most likely token is what the filter leaves, mostly
        assert (
            plain.token_ids != engine.generate(PROMPT, Options(40).sampled_as(unfiltered)).token_ids
        )
    for silence in (0.0, 0.4):
        oracle = OracleDrafter(len(PROMPT), plain.token_ids, error=0.2, silence=silence)
        drafted = drafted_answer(engine, oracle, PROMPT, Options(40).sampled_as(sampling))
        assert drafted.token_ids == plain.token_ids


SMALL = 12
ALWAYS = Sampling(temperature=1.0, xtc_probability=1.0, seed=1)


def scores(rows: int) -> mx.array:
    drawn = mx.random.normal((rows, SMALL), key=mx.random.key(rows)) * 2
    return drawn - mx.logsumexp(drawn, axis=-1, keepdims=True)


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.1, 0.3, 0.5])
@pytest.mark.parametrize("kept", [[], [3, 7]])
def test_it_excludes_what_mlx_lm_excludes(threshold: float, kept: list[int]) -> None:
    rows = scores(6)
    sampling = Sampling(xtc_probability=1.0, xtc_threshold=threshold)
    own = XTCFilter(sampling, 0, kept).apply(rows, 0)
    assert mx.array_equal(own, apply_xtc(rows, 1.0, threshold, kept))
    if threshold < 0.1:
        assert not mx.array_equal(own, rows)


def test_it_excludes_as_often_as_asked() -> None:
    row = mx.log(mx.array([[0.6, 0.3, 0.1]]))
    rows = mx.broadcast_to(row, (20_000, 3))
    own = np.array(XTCFilter(Sampling(xtc_probability=0.3), 5).apply(rows, 0))
    excluded = np.isinf(own[:, 0])
    assert not np.isinf(own[:, 1:]).any()
    assert abs(excluded.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 20_000)
    both = (excluded[1:] & excluded[:-1]).mean()  # neighbours decide independently
    assert abs(both - 0.09) < 4 * np.sqrt(0.09 * 0.91 / 20_000)


def test_line_breaks_and_ends_stay_possible(engine: Engine) -> None:
    factory = SamplerFactory(engine.tokenizer, engine.model.vocabulary_size)
    (newline,) = engine.tokenizer.encode("\n")
    (end,) = engine.tokenizer.end_tokens
    logits = np.full((1, engine.model.vocabulary_size), -9.0, np.float32)
    logits[0, [5, 6, newline, end]] = [2.1, 2.0, 2.2, 2.3]
    (row,) = np.array(
        factory.make(Options().sampled_as(ALWAYS), [1]).distributions(mx.array(logits), 0)
    )
    assert [token for token in (5, 6, newline, end) if row[token] > 0.01] == [6, newline, end]


def test_ends_that_the_model_does_not_have_change_nothing(engine: Engine) -> None:
    sampler = SamplerFactory(engine.tokenizer, SMALL).make(Options().sampled_as(ALWAYS), [1])
    likely = [0.02] * 6 + [0.5, 0.3] + [0.02] * 4
    rows = mx.broadcast_to(mx.log(mx.array([likely])), (40, SMALL))
    assert sampler.xtc is not None
    assert min(engine.tokenizer.end_tokens) >= SMALL
    assert mx.array_equal(sampler.xtc.apply(rows, 0), apply_xtc(rows, 1.0, 0.1, []))


def test_greedy_answers_stay_as_they_are(engine: Engine) -> None:
    plain = engine.generate("abcabc", Options(max_tokens=12))
    sampling = Sampling(xtc_probability=1.0, xtc_threshold=0.0)
    assert engine.generate("abcabc", Options(12).sampled_as(sampling)).token_ids == plain.token_ids


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("vocabulary", "count"), [(5003, 40), (64 * 81, 1), (900, 128), (40, 40)])
def test_the_most_likely_are_those_of_a_sort(dtype: mx.Dtype, vocabulary: int, count: int) -> None:
    """In 16 bits, many scores are equal; a row of a constraint has few that are not excluded."""
    scores = mx.random.normal((5, vocabulary), key=mx.random.key(3)).astype(dtype)
    scores[3, 20:] = -mx.inf
    scores[4] = -mx.inf
    ids = most_likely(scores, count)
    found = np.array(mx.take_along_axis(scores, ids, axis=-1).astype(mx.float32))
    expected = np.array(mx.sort(scores.astype(mx.float32), axis=-1))[:, -count:]
    np.testing.assert_array_equal(np.sort(found, axis=-1), expected)
    assert all(len(set(row)) == count and max(row) < vocabulary for row in np.array(ids).tolist())


def test_a_row_without_numbers_ends_nothing() -> None:
    sampler = Sampler(Sampling(temperature=1.0, top_p=0.9, seed=1))
    assert sampler.choose(mx.full((2, 300), float("nan")), 0).shape == (2,)
