"""Sampled decoding is exact: what the shipped loop emits has the target's distribution.

Matched drafts of every drafter leave plain decoding's own draws. Drafts that are accepted by their
probabilities are held against the distribution over 10,000 draws, with lookups and with a drafter
that samples. The same check rejects wrong verifiers at half of the draws.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from akunu_py.decoding import target
from akunu_py.decoding.loop import Limits, Rows, Uniforms, Verdict
from akunu_py.drafting import MAKERS, make_drafter
from akunu_py.drafting.base import Draft, Drafter
from akunu_py.drafting.guessing import DraftModel, DraftModelGuesser
from akunu_py.options import Sampling
from akunu_py.rounds import Round
from akunu_py.sampling.random import draw
from akunu_py.sampling.sampler import Sampler
from tests.fakes import BigramDrafter, GuessingDrafter, rounds_of
from tests.markov import (
    VOCABULARY,
    Table,
    assert_drawn_from,
    copied_text,
    free_text,
    markov_model,
)

DRAWS = 10_000
FEWER_DRAWS = DRAWS // 2
PROMPT = [*range(VOCABULARY), 0]
SAMPLING = Sampling(temperature=1.0, seed=17)
XTC = Sampling(temperature=1.0, xtc_probability=0.6, xtc_threshold=0.15, seed=8)
FILTERED = Sampling(temperature=0.8, top_k=6, top_p=0.97, min_p=0.01, seed=4, logit_bias=((2, 1),))


class Told:
    """Hands on a drafter's guesses with other probabilities, and so to another verifier."""

    def __init__(self, drafter: Drafter, *, one_hot: bool) -> None:
        self._drafter = drafter
        self._one_hot = one_hot
        self.begin = drafter.begin
        self.extend = drafter.extend
        self.feedback = drafter.feedback

    def propose(self, limit: int) -> Draft:
        draft = self._drafter.propose(limit)
        if not (self._one_hot and draft):
            return replace(draft, probabilities=None)
        rows = np.zeros((len(draft), VOCABULARY), np.float32)
        rows[np.arange(len(draft)), draft.tokens] = 1
        return replace(draft, probabilities=rows)


def decode(
    table: Table, sampling: Sampling, drafter: Drafter, *, num_draft_tokens: int, draws: int = DRAWS
) -> list[Round]:
    """A long answer from the shipped loop."""
    model = markov_model(table)
    cache = model.make_cache(draws + len(PROMPT))
    model.prefill(PROMPT[:-1], cache)
    drafter.begin(PROMPT)
    limits, sampler = Limits(draws, frozenset()), Sampler(sampling, PROMPT)
    rounds = rounds_of(
        model,
        cache,
        sampler,
        PROMPT[-1],
        limits,
        drafter=drafter,
        num_draft_tokens=num_draft_tokens,
    )
    return list(rounds)


def text_of(rounds: Sequence[Round]) -> list[int]:
    return [PROMPT[-1], *(token for one in rounds for token in one.tokens)]


def distributions(table: Table, sampling: Sampling) -> Table:
    if 0 < (excluding := sampling.xtc_probability) < 1:
        ever, never = (distributions(table, replace(sampling, xtc_probability=p)) for p in (1, 0))
        mixed: Table = excluding * ever + (1 - excluding) * never
        return mixed
    sampler = Sampler(sampling)
    logits = mx.array(table.astype(np.float32))
    edited = sampler.process_logits(logits, 1, mx.arange(VOCABULARY))
    rows = np.array(sampler.distributions(edited, 1), np.float64)
    normalised: Table = rows / rows.sum(axis=1, keepdims=True)
    return normalised


def some_text(table: Table) -> list[int]:
    """What the statistical models count."""
    rows, draws = distributions(table, SAMPLING), np.random.default_rng(3)
    text = [0]
    for _ in range(400):
        text.append(int(draws.choice(VOCABULARY, p=rows[text[-1]])))
    return text


Make = Callable[[Table, Sampling], Drafter]


def with_bigram(table: Table, _: Sampling) -> Drafter:
    return BigramDrafter(some_text(table), VOCABULARY, temperature=0.7, seed=17)


def with_draft_model(table: Table, sampling: Sampling) -> Drafter:
    near = table + np.random.default_rng(6).normal(size=(VOCABULARY, VOCABULARY))
    source = DraftModel(markov_model(near), markov_model(table))
    return GuessingDrafter(DraftModelGuesser(source, Sampler(sampling)))


def with_lookup(_: Table, __: Sampling) -> Drafter:
    return Told(make_drafter("ngram"), one_hot=True)


@pytest.mark.parametrize("name", ["ngram", "auto"])
def test_lookups_leave_the_distribution_alone(name: str) -> None:
    table = copied_text()
    drafter = Told(make_drafter(name), one_hot=True)
    rounds = decode(table, SAMPLING, drafter, num_draft_tokens=16)
    assert_drawn_from(distributions(table, SAMPLING), text_of(rounds))
    assert DRAWS / 20 < sum(one.accepted for one in rounds) < DRAWS


def lookup(name: str) -> Make:
    return lambda _, __: make_drafter(name)


EVERY_DRAFTER = [
    *(pytest.param(lookup(name), id=name) for name in MAKERS if name != "none"),
    *(pytest.param(make, id=make.__name__) for make in (with_bigram, with_draft_model)),
]


@pytest.fixture(scope="module")
def plain_text() -> list[int]:
    table, draws = copied_text(), FEWER_DRAWS // 2
    nothing = make_drafter("none")
    return text_of(decode(table, SAMPLING, nothing, num_draft_tokens=0, draws=draws))


@pytest.mark.parametrize("make", EVERY_DRAFTER)
def test_matched_drafts_leave_every_draw_alone(make: Make, plain_text: list[int]) -> None:
    table, draws = copied_text(), len(plain_text) - 1
    drafter = Told(make(table, SAMPLING), one_hot=False)
    rounds = decode(table, SAMPLING, drafter, num_draft_tokens=8, draws=draws)
    assert text_of(rounds) == plain_text
    assert draws / 20 < sum(one.accepted for one in rounds) < draws


def test_matched_drafts_leave_every_draw_of_xtc_alone() -> None:
    table, sampling = copied_text(), replace(XTC, xtc_probability=0.1)
    plain, *all_drafted = (
        decode(table, sampling, make(table, sampling), num_draft_tokens=number, draws=500)
        for make, number in ((lookup("none"), 0), (lookup("ngram"), 8), (with_draft_model, 4))
    )
    for drafted in all_drafted:
        assert text_of(drafted) == text_of(plain)
        assert sum(one.accepted for one in drafted) > 50


def test_drafts_with_probabilities_leave_the_distribution_alone() -> None:
    table = free_text()
    rounds = decode(table, FILTERED, with_bigram(table, FILTERED), num_draft_tokens=4)
    assert_drawn_from(distributions(table, FILTERED), text_of(rounds))
    assert sum(one.accepted for one in rounds) > DRAWS / 20


@pytest.mark.parametrize("make", [with_bigram, with_lookup])
def test_xtc_excludes_as_often_with_drafts(make: Make) -> None:
    table = free_text()
    drafter = make(table, XTC)
    rounds = decode(table, XTC, drafter, num_draft_tokens=4, draws=FEWER_DRAWS)
    assert_drawn_from(distributions(table, XTC), text_of(rounds))
    assert sum(one.accepted for one in rounds) > 0


def redraw_after_a_mismatch(
    target: Rows, drafts: Sequence[int], _: Rows | None, uniforms: Uniforms
) -> Verdict:
    """Romsto's loop: the target's own draw decides, and after a mismatch it draws once more."""
    for index, token in enumerate(drafts):
        first, second = uniforms(index)
        if draw(target[index], first) != token:
            return Verdict(index, draw(target[index], second))
    return Verdict(len(drafts), draw(target[-1], uniforms(len(drafts))[1]))


def correct_from_the_whole_target(
    target: Rows, drafts: Sequence[int], proposal: Rows | None, uniforms: Uniforms
) -> Verdict:
    """Accepts as it should, but corrects from p instead of the positive part of p - q."""
    assert proposal is not None
    for index, token in enumerate(drafts):
        to_accept, to_correct = uniforms(index)
        if to_accept * proposal[index, token] >= target[index, token]:
            return Verdict(index, draw(target[index], to_correct))
    return Verdict(len(drafts), draw(target[-1], uniforms(len(drafts))[1]))


@pytest.mark.parametrize("wrong", [redraw_after_a_mismatch, correct_from_the_whole_target])
@pytest.mark.parametrize("make", [with_bigram, with_lookup])
def test_the_same_check_rejects_wrong_verifiers(
    monkeypatch: pytest.MonkeyPatch, make: Make, wrong: object
) -> None:
    monkeypatch.setattr(target, "accept_or_resample", wrong)
    table = free_text()
    drafter = make(table, SAMPLING)
    rounds = decode(table, SAMPLING, drafter, num_draft_tokens=4, draws=FEWER_DRAWS)
    with pytest.raises(AssertionError):
        assert_drawn_from(distributions(table, SAMPLING), text_of(rounds))
