"""XTC excludes what mlx-lm excludes, as often as asked, and at the same positions in any batch."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.sample_utils import apply_xtc

import akunu_py
from akunu_py.engine import Engine
from akunu_py.options import Options, Sampling
from akunu_py.sampling.filters import XTCFilter
from akunu_py.sampling.sampler import Sampler, SamplerFactory

VOCABULARY = 12
ALWAYS = Sampling(temperature=1.0, xtc_probability=1.0, seed=1)


def scores(rows: int) -> mx.array:
    drawn = mx.random.normal((rows, VOCABULARY), key=mx.random.key(rows)) * 2
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


@settings(deadline=None)
@given(rows=st.integers(1, 6), position=st.integers(0, 10**6), seed=st.integers(0, 2**40))
def test_a_choice_depends_on_seed_and_position_not_on_the_batch(
    rows: int, position: int, seed: int
) -> None:
    logits = scores(rows)
    sampler = Sampler(Sampling(temperature=1.0, xtc_probability=0.5, seed=seed))
    together = sampler.choose(logits, position).tolist()
    alone = [sampler.choose(logits[i : i + 1], position + i).item() for i in range(rows)]
    assert together == alone


def test_line_breaks_and_ends_stay_possible(engine: Engine) -> None:
    factory = SamplerFactory(engine.tokenizer, engine.model.vocabulary_size)
    (newline,) = engine.tokenizer.encode("\n")
    (end,) = engine.tokenizer.end_tokens
    logits = np.full((1, engine.model.vocabulary_size), -9.0, np.float32)
    logits[0, [5, 6, newline, end]] = [2.1, 2.0, 2.2, 2.3]
    (row,) = np.array(
        factory.make(Options(sampling=ALWAYS), [1]).distributions(mx.array(logits), 0)
    )
    assert [token for token in (5, 6, newline, end) if row[token] > 0.01] == [6, newline, end]


def test_ends_that_the_model_does_not_have_change_nothing(engine: Engine) -> None:
    sampler = SamplerFactory(engine.tokenizer, VOCABULARY).make(Options(sampling=ALWAYS), [1])
    likely = [0.02] * 6 + [0.5, 0.3] + [0.02] * 4
    rows = mx.broadcast_to(mx.log(mx.array([likely])), (40, VOCABULARY))
    assert sampler.xtc is not None
    assert min(engine.tokenizer.end_tokens) >= VOCABULARY
    assert mx.array_equal(sampler.xtc.apply(rows, 0), apply_xtc(rows, 1.0, 0.1, []))


def test_greedy_answers_stay_as_they_are(engine: Engine) -> None:
    plain = engine.generate("abcabc", akunu_py.Options(max_tokens=12))
    sampling = Sampling(xtc_probability=1.0, xtc_threshold=0.0)
    assert engine.generate("abcabc", Options(12, sampling)).token_ids == plain.token_ids
