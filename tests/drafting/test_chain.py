"""Guesses beside copies: which draft comes of both, what is learnt, and how many guesses pay."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from math import ceil
from operator import truediv
from time import sleep

import pytest

from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.drafting.chain import Chain, Guess, Guesser, chain_priors
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from akunu_py.planning.planner import DraftPlanner, FixedPlanner, Situation
from akunu_py.planning.theory import expected_tokens
from akunu_py.planning.trials import PROBE_AFTER, WORTH_TRYING
from akunu_py.rounds import Round
from akunu_py.tokens import Origin
from tests.planning.curves import FLAT, LINEAR, curve

COPY = Draft((1, 2, 3, 4), "copy", 9, accept_probs=(0.9, 0.6, 0.6, 0.6))
NOW = Situation(context=500, limit=8)
STEPS = CostCurve(
    (CostLevel(0, 0.01, tuple((rows, 0.01 * (1 + rows // 3)) for rows in range(1, 34))),)
)
"""Two rows cost as much as one, and then each three cost a step more."""


class Told(Guesser):
    """Guesses what it is told, each with a probability."""

    name = Origin.HEAD

    def __init__(self, *guesses: tuple[int, float]) -> None:
        self.guesses = guesses
        self._next = 0

    def begin(self, prompt: Sequence[int], head_cache: object = None) -> None:
        self._next = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._next = 0

    def first(self, limit: int) -> Guess | None:
        self._next = 0
        return self.after(0)

    def after(self, token: int) -> Guess | None:
        self._next += 1
        return Guess(*self.guesses[self._next - 1]) if self._next <= len(self.guesses) else None

    def stop(self) -> None:
        """Nothing is kept."""


def chain_of(*guesses: tuple[int, float]) -> Chain:
    return Chain(Told(*guesses), AcceptanceRates(chain_priors()))


def emit(planner: DraftPlanner, draft: Draft, accepted: int) -> None:
    """Lets it learn from many rounds of which so many tokens are accepted."""
    for _ in range(60):
        planner.choose(draft, NOW._replace(limit=MAX_PLANNED_TOKENS))
        planner.observe(Round((0,) * (1 + accepted), draft, accepted))


def guesses(planner: DraftPlanner, chain: Chain) -> bool:
    """Whether a guess is made where nothing is copied."""
    asked = planner.should_guess(NO_DRAFT, NOW, chain)
    if asked:
        guess = Draft((1,), chain.name, accept_probs=(0.1,))
        planner.best_of([guess], NOW._replace(guessing_s=chain.guess_s))
    return asked


def drafts(chain: Chain, copy: Draft, most: int) -> list[Draft]:
    return chain.drafts(copy, 8, lambda draft, *_: len(draft) < most)


def test_a_copy_that_the_network_agrees_with_goes_on_and_is_believed() -> None:
    (draft,) = drafts(chain_of((1, 0.95)), COPY, most=1)
    assert (draft.tokens, draft.origin) == (COPY.tokens, Origin.COPIES)
    assert draft.accept_probs[0] > 0.95
    assert draft.accept_probs[1:] == COPY.accept_probs[1:]


def test_where_both_differ_there_are_two_drafts_that_share_what_they_agree_on() -> None:
    copy = replace(COPY, tokens=(1, 5, 6, 7), accept_probs=(0.9, 0.3, 0.3, 0.3))
    guessed, copied = drafts(chain_of((1, 0.95), (7, 0.9)), copy, most=2)
    assert (guessed.tokens, guessed.origin) == ((1, 7), Origin.HEAD)
    assert copied.tokens == (1, 5, 6, 7)
    assert copied.accept_probs[0] == guessed.accept_probs[0]


def test_without_a_guess_the_copy_is_left_and_no_time_is_learnt() -> None:
    chain = chain_of()
    assert drafts(chain, COPY, most=3) == [COPY]
    assert chain.guess_s == 0.0
    assert drafts(chain, NO_DRAFT, most=3) == [NO_DRAFT]


def test_reading_the_prompt_is_not_what_a_guess_costs() -> None:
    class Slow(Told):
        def first(self, limit: int) -> Guess | None:
            if not self.has_read:
                sleep(0.2)
            self.has_read = True
            return super().first(limit)

        has_read = False

    chain = Chain(Slow((1, 0.9)), AcceptanceRates(chain_priors()))
    for _request in range(3):
        chain.begin([1])
        for _ in range(2):
            drafts(chain, NO_DRAFT, most=1)
            assert chain.guesses_s < 0.1
        assert chain.guess_s < 0.1
    assert chain.spent_s > 0.2, "but a round takes that long"


def test_rates_follow_what_was_emitted_whether_it_was_verified_or_not() -> None:
    chain = chain_of((1, 0.5), (2, 0.5), (3, 0.5))
    before = chain.rate(0)
    assert chain.rate(2) == pytest.approx(before), "nothing is known of later guesses"
    for _ in range(60):
        drafts(chain, NO_DRAFT, most=3)
        chain.learn((1, 9))
    assert chain.rate(0) > 0.9
    assert chain.rate(1) < 0.1
    assert chain.rate(2) == pytest.approx(chain.rate(1))


def test_later_guesses_are_believed_again_when_first_ones_are() -> None:
    """Otherwise a poor beginning would keep all drafts at one guess."""
    chain = chain_of((1, 0.5), (2, 0.5))
    for _ in range(4):
        drafts(chain, NO_DRAFT, most=2)
        chain.learn((1, 9))
    assert chain.rate(1) < 0.45
    for _ in range(60):
        drafts(chain, NO_DRAFT, most=1)
        chain.learn((1, 2))
    assert chain.rate(1) > 0.8


def test_later_guesses_that_were_once_wrong_are_tried_again_some_day() -> None:
    """Otherwise drafts would stay short after a text in which they were wrong."""
    chain = chain_of((1, 0.9), (2, 0.9))
    for _ in range(60):
        drafts(chain, NO_DRAFT, most=2)
        chain.learn((1, 9))
    wrong = chain.rate(1)
    for _ in range(600):
        chain.drafts(NO_DRAFT, 8, lambda *_: False)
        chain.learn((1, 2))
    assert wrong < 0.2
    assert chain.rate(1) > 0.7


@pytest.mark.parametrize("curve", [FLAT, LINEAR, STEPS])
@pytest.mark.parametrize("prob", [0.3, 0.7, 0.97])
def test_guesses_go_on_as_long_as_they_pay(curve: CostCurve, prob: float) -> None:
    """At least until no other number is faster in this round, and at most as long as a token is
    worth a step, because no text has shown a pace yet."""
    planner, chain = DraftPlanner(curve), chain_of()
    chain.guess_s = 0.001
    now = Situation(0, MAX_PLANNED_TOKENS)
    every = (Draft((0,) * length, accept_probs=(prob,) * length) for length in count(1))
    made = len(next(one for one in every if not planner.goes_on(one, one, prob, now, chain)))
    step, expected = curve.decode_s(0), expected_tokens([prob] * MAX_PLANNED_TOKENS)
    rounds = [
        (expected[length], curve.verify_s(1 + length, 0) + length * chain.guess_s)
        for length in range(1, MAX_PLANNED_TOKENS + 1)
    ]
    fastest, best = (
        1 + max(range(len(rounds)), key=[value(*one) for one in rounds].__getitem__)
        for value in (truediv, lambda tokens, seconds: tokens * step - seconds)
    )
    assert fastest <= made <= best


def test_a_guess_is_worth_less_where_tokens_come_fast() -> None:
    """Rounds with long copies would have emitted its token, too, and in less time."""
    planner, chain = DraftPlanner(FLAT), chain_of()
    doubted = replace(COPY, accept_probs=(0.5,) * 4)
    guessed = Draft((1,), accept_probs=(0.8,))
    long = Draft((0,) * 16, accept_probs=(0.95,) * 16)
    for draft, pays in ((long, False), (NO_DRAFT, True)):
        emit(planner, draft, len(draft))
        chain.guess_s = 0.25 * FLAT.decode_s(0)
        assert planner.goes_on(guessed, guessed, 0.8, NOW, chain) is pays
        chain.guess_s = 0.12 * FLAT.decode_s(0)
        assert planner.should_guess(doubted, NOW, chain) is pays


def test_guesses_that_do_not_pay_are_tried_now_and_then_without_a_step_in_flight() -> None:
    planner, chain = DraftPlanner(LINEAR), chain_of()
    chain.guess_s = 0.05
    pipelined = NOW._replace(pipelined=True)
    for _ in range(2):  # at the beginning, and later
        assert planner.should_guess(NO_DRAFT, pipelined, chain), "it stops the pipeline"
        assert [guesses(planner, chain) for _ in range(3)] == [True, True, False]
        declined = range(2 * PROBE_AFTER - 1)  # the next time goes without, because it did not pay
        assert not any(planner.should_guess(NO_DRAFT, pipelined, chain) for _ in declined)


def test_what_ends_the_pipeline_for_a_trial_guess_also_makes_it() -> None:
    planner, chain = DraftPlanner(LINEAR), chain_of()
    chain.guess_s = 0.05
    pipelined = NOW._replace(pipelined=True)
    for _request in range(4):
        for _ in range(3 * PROBE_AFTER):
            if planner.should_guess(NO_DRAFT, pipelined, chain):
                assert guesses(planner, chain)
                planner.choose(Draft((1,), chain.name, accept_probs=(0.1,)), NOW)
        planner.begin()


def test_a_network_that_still_reads_the_prompt_has_used_no_trial() -> None:
    planner, chain = DraftPlanner(LINEAR), chain_of()
    chain.guess_s = 0.05
    for _ in range(20):
        assert planner.should_guess(NO_DRAFT, NOW, chain)
        assert planner.best_of([NO_DRAFT], NOW) == NO_DRAFT


def test_a_prompt_is_read_once_guesses_would_have_saved_as_much() -> None:
    class Unread(Told):
        reading_s = 1.0

    for prob in (0.9, 0.1):  # the second one is only tried
        chain = Chain(Unread(), AcceptanceRates({(Origin.HEAD, 0): prob}))
        chain.guess_s = 0.001
        planner, emitted = DraftPlanner(FLAT), 0
        while not planner.should_guess(NO_DRAFT, NOW, chain):
            chain.learn((1,))
            emitted += 1
        saved_s = max(planner.saving, WORTH_TRYING) * FLAT.decode_s(NOW.context)
        assert emitted == ceil(1.0 / saved_s) > 1


def test_requests_try_guesses_again_but_not_beside_a_sure_copy() -> None:
    planner, chain = DraftPlanner(LINEAR), chain_of()
    chain.guess_s = 0.05
    assert not planner.should_guess(COPY, NOW, chain)
    while guesses(planner, chain):
        pass
    for tries in (False, True):
        planner.begin()
        assert planner.should_guess(NO_DRAFT, NOW, chain) is tries


def test_guesses_that_a_grammar_forbids_are_not_made_for_long() -> None:
    planner, chain = DraftPlanner(FLAT), chain_of()
    chain.guess_s = 0.003
    sure, asked = Draft((1,) * 8, Origin.HEAD, accept_probs=(0.95,) * 8), 0
    assert planner.should_guess(NO_DRAFT, NOW, chain)
    emit(planner, sure, 8)
    for _ in range(200):
        if planner.should_guess(NO_DRAFT, NOW, chain):
            asked += 1
            planner.best_of([sure], NOW._replace(guessing_s=0.024))
        planner.observe(Round((0,)))
    assert 0 < asked < 50


def test_what_one_network_brings_says_nothing_of_another() -> None:
    planner, head, model = DraftPlanner(FLAT), chain_of(), Chain(Told(), AcceptanceRates())
    model.name = Origin.MODEL
    head.guess_s, model.guess_s = 0.0001, 0.5
    while guesses(planner, model):
        pass
    assert all(guesses(planner, head) for _ in range(20))


def test_a_sure_copy_is_not_worth_a_guess_and_a_doubted_one_is() -> None:
    planner, chain = DraftPlanner(FLAT), chain_of()
    chain.guess_s = 0.003
    assert not planner.should_guess(replace(COPY, accept_probs=(0.99,) * 4), NOW, chain)
    assert planner.should_guess(replace(COPY, accept_probs=(0.2,) * 4), NOW, chain)


def test_a_network_that_is_seldom_right_is_not_asked_whether_a_copy_is() -> None:
    planner, chain = DraftPlanner(FLAT), chain_of((1, 0.5))
    chain.guess_s = 0.001
    copy = replace(COPY, accept_probs=(0.7,) * 4)
    for emitted, is_asked in ((1, True), (9, False)):
        for _ in range(60):
            drafts(chain, NO_DRAFT, most=1)
            chain.learn((emitted,))
        assert planner.should_guess(copy, NOW, chain) is is_asked


def test_further_guesses_count_what_a_rejection_replays() -> None:
    """As in a cache of recurrent layers that computes accepted tokens again."""
    chain, draft = chain_of(), Draft((1,) * 4, accept_probs=(0.95,) * 4)
    least = []
    for replayed in (0, 3):
        planner = DraftPlanner(curve(lambda rows: 10.0 + 2.0 * rows))
        planner.observe(Round((0,), replayed=replayed))
        probs = (percent / 100 for percent in range(100))
        least.append(next(one for one in probs if planner.goes_on(draft, draft, one, NOW, chain)))
    assert least[0] < least[1]


def test_a_fixed_number_makes_no_guess_that_it_would_drop() -> None:
    planner, chain = FixedPlanner(16), chain_of()
    sure, doubtful = (Draft((1,), accept_probs=(prob,)) for prob in (0.9, 0.05))
    assert planner.goes_on(sure, sure, 0.5, NOW, chain)
    assert not planner.goes_on(doubtful, doubtful, 0.5, NOW, chain)
    copied = replace(sure, tokens=(1, 2), accept_probs=(0.9, 0.6))
    assert not planner.goes_on(sure, copied, 0.5, NOW, chain), "the copy is likelier than a guess"


def test_guesses_go_on_with_the_copy_that_they_lead_to() -> None:
    chain = chain_of((7, 0.9), (8, 0.9))
    chain.copy_after = lambda _, limit: replace(COPY, tokens=(3, 4, 5, 6)[:limit])
    (draft,) = drafts(chain, NO_DRAFT, most=1)
    assert (draft.tokens, draft.origin) == ((7, 3, 4, 5, 6), Origin.HEAD)
    assert draft.accept_probs[1:] == COPY.accept_probs
    chain.copy_after = lambda tokens, _: NO_DRAFT if 8 in tokens else COPY
    guessed, copied = drafts(chain, COPY, most=2)
    assert (guessed.tokens, copied.tokens) == ((7, 8), COPY.tokens)


@pytest.mark.parametrize("curve", [FLAT, STEPS])
def test_no_guess_confirms_what_a_likely_copy_has_anyway(curve: CostCurve) -> None:
    planner, chain = DraftPlanner(curve), chain_of()
    chain.guess_s = 0.001
    guessed, now = Draft((1,), accept_probs=(0.95,)), Situation(0, MAX_PLANNED_TOKENS)
    assert planner.goes_on(guessed, guessed, 0.97, now, chain)
    copied = Draft((1,) * 20, accept_probs=(0.95,) * 20)
    emit(planner, copied, 12)
    assert not planner.goes_on(guessed, copied, 0.97, now, chain)
