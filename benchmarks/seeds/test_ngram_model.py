"""The statistical models: their rows, and that tokens are drawn from exactly these rows."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akunu_py.errors import InvalidRequestError
from akunu_py.sampling.random import draw, uniform
from benchmarks.seeds.ngram_model import NGramModel, NGramModelDrafter
from tests.markov import chi_square_bound

VOCABULARY = 5
STREAM = [0, 1, 2, 0, 1, 3, 0, 1, 2, 4, 1, 2, 0, 1]
streams = st.lists(st.integers(0, VOCABULARY - 1), max_size=60)


@given(text=streams, previous=st.integers(0, VOCABULARY - 1))
def test_a_bigram_row_is_laplace_smoothed_counts(text: list[int], previous: int) -> None:
    row = NGramModel(2, VOCABULARY, [text]).distribution([previous])
    pairs = list(pairwise(text))
    evidence = sum(first == previous for first, _ in pairs)
    wanted = [
        (pairs.count((previous, token)) + 1) / (evidence + VOCABULARY)
        for token in range(VOCABULARY)
    ]
    assert row == pytest.approx(wanted)


def test_a_trigram_seen_too_rarely_falls_back_to_the_bigram() -> None:
    model = NGramModel(3, VOCABULARY, [STREAM])
    assert model.context_length([0, 1]) == 2
    assert model.context_length([4, 1]) == 1, "seen once, and twice are asked for"
    assert model.distribution([4, 1]) == pytest.approx(model.distribution([1]))


def test_without_a_previous_token_the_bigram_answers() -> None:
    model = NGramModel(3, VOCABULARY, [STREAM])
    assert model.distribution([1]) == pytest.approx(
        NGramModel(2, VOCABULARY, [STREAM]).distribution([1])
    )


def test_temperature_is_applied_after_the_row_is_chosen() -> None:
    model = NGramModel(3, VOCABULARY, [STREAM])
    plain, sharp = model.distribution([0, 1]), model.distribution([0, 1], temperature=0.5)
    assert sharp == pytest.approx(plain**2 / np.sum(plain**2))
    assert model.distribution([0, 1], temperature=1e-9).max() == pytest.approx(1.0)


def test_ids_outside_the_vocabulary_are_an_unknown_context_but_an_error_in_a_stream() -> None:
    model = NGramModel(3, VOCABULARY, [STREAM])
    assert model.distribution([99, 77]) == pytest.approx(np.full(VOCABULARY, 1 / VOCABULARY))
    with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
        NGramModel(3, VOCABULARY, [STREAM, [VOCABULARY]])


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize(("temperature", "noise"), [(1.0, 0.0), (0.7, 0.0), (1.3, 0.5)])
def test_tokens_are_drawn_from_exactly_the_drafts_rows(
    order: int, temperature: float, noise: float
) -> None:
    """Chi-square over 5,000 seeds, for each position of the draft in turn."""
    model = NGramModel(order, VOCABULARY, [STREAM])
    seen: dict[tuple[int, ...], np.ndarray] = {}
    rows: dict[tuple[int, ...], np.ndarray] = {}
    for seed in range(5_000):
        drafter = NGramModelDrafter(model, temperature=temperature, noise=noise, seed=seed)
        drafter.begin([0, 1])
        draft = drafter.propose(2)
        assert draft.probabilities is not None
        for position, token in enumerate(draft.tokens):
            before = draft.tokens[:position]
            seen.setdefault(before, np.zeros(VOCABULARY))[token] += 1
            row = draft.probabilities[position]
            assert np.array_equal(rows.setdefault(before, row), row)
    for before, counts in seen.items():
        expected = rows[before] * counts.sum()
        statistic = float(np.sum((counts - expected) ** 2 / expected))
        assert statistic < chi_square_bound(VOCABULARY - 1), before


def test_rows_are_the_distributions_of_the_rolling_context() -> None:
    model = NGramModel(3, VOCABULARY, [STREAM])
    drafter = NGramModelDrafter(model, seed=5)
    drafter.begin(STREAM)
    draft = drafter.propose(4)
    assert draft.probabilities is not None
    assert draft.probabilities.dtype == np.float32
    for position, row in enumerate(draft.probabilities):
        context = [*STREAM, *draft.tokens[:position]]
        assert row == pytest.approx(model.distribution(context), rel=1e-6)


def test_noise_mixes_in_the_uniform_distribution() -> None:
    model = NGramModel(2, VOCABULARY, [STREAM])
    drafter = NGramModelDrafter(model, noise=0.5)
    wanted = 0.5 * model.distribution([1]) + 0.5 / VOCABULARY
    assert drafter.row([1]) == pytest.approx(wanted, rel=1e-6)


@given(prompt=streams, limit=st.integers(1, 20))
@settings(deadline=None)
def test_a_seed_draws_the_same_whatever_the_drafts_length(
    prompt: Sequence[int], limit: int
) -> None:
    drafter = NGramModelDrafter(NGramModel(3, VOCABULARY, [STREAM]), seed=9)
    drafter.begin(prompt)
    assert drafter.propose(20).tokens[:limit] == drafter.propose(limit).tokens


def test_draws_never_land_on_an_impossible_token() -> None:
    row = np.array([0.0, 0.5, 0.0, 0.5, 0.0], np.float32)
    chances = [0.0, 0.4999, 0.5, 0.9999, 1 - 2**-53]
    assert [draw(row, chance) for chance in chances] == [1, 1, 3, 3, 3]


def test_uniforms_are_uniform_and_do_not_follow_seed_or_position() -> None:
    numbers = np.array([[uniform(seed, position) for position in range(100)] for seed in range(99)])
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    expected = numbers.size / 20
    assert float(np.sum((counts - expected) ** 2 / expected)) < chi_square_bound(19)
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [({"temperature": 0.0}, "temperature must exceed 0"), ({"noise": 1.5}, "between 0 and 1")],
)
def test_impossible_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        NGramModelDrafter(NGramModel(2, VOCABULARY, [STREAM]), **options)  # type: ignore[arg-type]


def test_large_vocabularies_can_be_drafted_from() -> None:
    text = Random(0).choices(range(100_000), k=5_000)
    drafter = NGramModelDrafter(NGramModel(3, 100_000, [text]))
    drafter.begin(text[:50])
    draft = drafter.propose(2)
    assert draft.probabilities is not None
    assert draft.probabilities.shape == (2, 100_000)
