from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from akunu_py.errors import InvalidRequestError
from akunu_py.options import Sampling
from akunu_py.sampling.sampler import Sampler, random_keys

VOCABULARY = 12


def logits(rows: int, seed: int = 0) -> mx.array:
    return mx.random.normal((rows, VOCABULARY), key=mx.random.key(seed)) * 2


@pytest.mark.parametrize("xtc", [0.0, 0.5])
@given(rows=st.integers(1, 6), position=st.integers(0, 10**6), seed=st.integers(0, 2**40))
def test_a_choice_depends_on_seed_and_position_not_on_the_batch(
    xtc: float, rows: int, position: int, seed: int
) -> None:
    scores = logits(rows)
    sampler = Sampler(Sampling(temperature=1.0, seed=seed, xtc_probability=xtc))
    together = sampler.choose(scores, position).tolist()
    alone = [sampler.choose(scores[i : i + 1], position + i).item() for i in range(rows)]
    assert together == alone


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.7, seed=2),
        Sampling(temperature=1.3, top_k=4, seed=3),
        Sampling(temperature=1.0, top_p=0.8, seed=4),
        Sampling(temperature=1.0, min_p=0.2, seed=5),
        Sampling(temperature=0.9, top_k=6, top_p=0.9, min_p=0.05, seed=6),
    ],
    ids=str,
)
def test_choices_follow_the_distribution_asked_for(sampling: Sampling) -> None:
    draws = 20_000
    row = logits(1, seed=9)
    chosen = Sampler(sampling).choose(mx.broadcast_to(row, (draws, VOCABULARY)), 0)
    observed = np.bincount(np.array(chosen), minlength=VOCABULARY)
    expected = np.array(Sampler(sampling).distributions(row, 0)[0]) * draws

    kept = expected > 0
    assert not observed[~kept].any()
    statistic = float(((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum())
    # The 0.9999 quantile of chi-square with 11 degrees of freedom; fewer have smaller ones.
    assert statistic < 37.4


FILTERS = [
    Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=1),
    Sampling(temperature=1.0, top_k=20, top_p=0.6, seed=2),
    Sampling(temperature=1.2, top_k=300, seed=3),
    Sampling(temperature=1.0, top_p=0.9, seed=4),
    Sampling(temperature=0.7, top_p=0.5, min_p=0.1, seed=5),
    Sampling(temperature=1.0, top_k=1000, top_p=0.999, seed=6),
    Sampling(temperature=0.9, top_k=5, top_p=0.9, xtc_probability=0.5, xtc_threshold=0.02, seed=7),
]


@pytest.mark.parametrize("sampling", FILTERS, ids=str)
@pytest.mark.parametrize("spread", [1.0, 4.0, 12.0])
def test_tokens_are_those_of_mlx_lms_filters_over_the_whole_vocabulary(
    sampling: Sampling, spread: float
) -> None:
    """Up to 12, a few tokens have nearly all the probability; at 1, thousands share it."""
    rows, vocabulary = 40, 3000
    raw = mx.random.normal((rows, vocabulary), key=mx.random.key(9)) * spread
    scores = raw - mx.logsumexp(raw, axis=-1, keepdims=True)
    if sampling.top_p < 1:
        scores = apply_top_p(scores, sampling.top_p)
    if sampling.min_p:
        scores = apply_min_p(scores, sampling.min_p)
    sampler = Sampler(sampling)
    if sampler.xtc is not None:
        scores = sampler.xtc.apply(scores, 7)
    if sampling.top_k:
        scores = apply_top_k(scores, sampling.top_k)
    scores = scores * (1 / sampling.temperature)
    keys = random_keys(sampling.seed or 0, range(7, 7 + rows))
    drawn = [
        mx.random.categorical(row, key=key).item() for row, key in zip(scores, keys, strict=True)
    ]
    assert sampler.choose(raw, 7).tolist() == drawn
    np.testing.assert_allclose(
        np.array(sampler.distributions(raw, 7)), np.array(mx.softmax(scores, axis=-1)), atol=1e-5
    )


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_rows_alone_and_together_keep_the_same_tokens_on_every_device(
    monkeypatch: pytest.MonkeyPatch, spread: float
) -> None:
    """With a spread of 0.1, more tokens are kept than a look at the likely ones finds."""
    scores = mx.random.normal((40, 3000), key=mx.random.key(2)) * spread
    nucleus = Sampler(Sampling(temperature=1.0, top_p=0.9, seed=1))
    chosen = []
    for device in (mx.cpu, mx.gpu):
        monkeypatch.setattr(mx, "default_device", partial(mx.Device, device))
        chosen.append(nucleus.choose(scores, 5).tolist())
        assert nucleus.blocks(rows=2)
        assert nucleus.blocks(rows=1) == (device == mx.cpu)
        alone = [nucleus.choose(row[None], 5 + place).item() for place, row in enumerate(scores)]
        assert chosen[-1] == alone
        nucleus.pipelined = False
        assert nucleus.blocks(rows=1)
        nucleus.pipelined = True
    assert chosen[0] == chosen[1]
    monkeypatch.undo()
    assert not Sampler(Sampling(top_p=0.9)).blocks(rows=2)


def test_streams_of_neighbouring_positions_are_unrelated() -> None:
    keys = np.array(random_keys(0, range(1000)))
    assert len(np.unique(keys, axis=0)) == 1000
    bits = np.unpackbits(keys.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.01


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 2.0),
        ("xtc_probability", 1.1),
        ("xtc_threshold", 0.6),
        ("repetition_penalty", 0.0),
        ("repetition_context_size", 0),
        ("presence_penalty", float("inf")),
        ("frequency_penalty", float("nan")),
        ("temperature", "warm"),
        ("top_k", 1.5),
        ("top_k", True),
        ("seed", "a"),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, float("nan")),)),
    ],
)
def test_impossible_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{field}` must be"):
        Sampling(**{field: value})  # type: ignore[arg-type]
