"""How far a draft model's drafts are drawn: the shipped loop on known answers, with a clock of its
own that forwards and draws move on."""

from collections.abc import Sequence
from random import Random

import pytest

from akunu_py.bench.replay import KnownAnswer, ReplayCase
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Limits, decode
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter, Prospects
from akunu_py.drafting.combined import CombinedDrafter, continued
from akunu_py.drafting.confidence import DrawnAcceptance
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.planner import DraftPlanner, FixedPlanner, Planner
from akunu_py.stats import Round
from tests.planning.curves import FLAT, STEPPED

WRONG = 10**6
PROMPT = list(range(2000, 2400))
STEP_S = STEPPED.decode_s(0)


class Clock:
    """Time that passes only where something takes it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Coins:
    """Draws the answer's next tokens, each right with one probability, and says which it doubts.

    Args:
        answer: what the target will emit.
        acceptance: how often it is right.
        token_s: seconds of drawing a token.
        clock: is moved on.
        read_s: seconds of reading a token.
    """

    def __init__(
        self,
        answer: Sequence[int],
        acceptance: float,
        token_s: float,
        clock: Clock,
        read_s: float = 0.0,
    ) -> None:
        coins, doubts = Random(1), Random(2)
        self._answer = [*answer, *[WRONG] * 64]
        self._right = [coins.random() < acceptance for _ in self._answer]
        # A right token is doubted a fifth of the time, and a wrong one is not doubted as often.
        self._doubted = [(doubts.random() < 0.2) == right for right in self._right]
        self._acceptance = DrawnAcceptance()
        self._token_s, self._read_s, self._clock = token_s, read_s, clock
        self.drawn = self.read = 0

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._position, self._unread, self._first = 0, len(prompt), 0
        self._confidence: dict[int, float] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        for position in range(self._position, self._position + len(tokens)):
            if position not in self._confidence:
                break
            right = self._right[position]
            self._acceptance.learn(position - self._first, self._confidence[position], right)
            if not right:
                break
        self._position += len(tokens)
        self._unread += len(tokens)

    def propose(self, limit: int) -> Draft:
        raise AssertionError

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass

    def copy(self, draft: Draft, limit: int) -> Draft:
        return draft

    def prospects(self, draft: Draft, limit: int) -> Prospects:
        drawn = len(self._confidence) if draft else 0
        return Prospects(self._acceptance.ahead(drawn, limit), self._unread + len(draft))

    def draw(self, draft: Draft, count: int, min_reach: float = 0.0) -> Draft:
        begin = self._position + len(draft)
        if not (draft and self._confidence):
            self._first, self._confidence = begin, {}
        places = range(begin, begin + count)
        self._clock.now += self._token_s * count + self._read_s * self._unread
        self.drawn, self.read = self.drawn + count, self.read + self._unread
        self._unread = 0
        for place in places:
            self._confidence[place] = 0.4 if self._doubted[place] else 0.9
        return continued(
            draft,
            [self._answer[place] if self._right[place] else WRONG for place in places],
            [self._acceptance.of(self._confidence[place]) for place in places],
            "coins",
        )


class TimedAnswer(KnownAnswer):
    """Its forwards move the clock on, and its rounds take the time of what was drawn before."""

    def __init__(self, case: ReplayCase, curve: CostCurve, clock: Clock) -> None:
        super().__init__(case, curve, 32)
        self._clock, self._last = clock, clock.now

    def read(self, pending: object) -> Round:
        outcome = super().read(pending)  # type: ignore[arg-type]
        assert outcome.seconds is not None
        self._clock.now += outcome.seconds
        outcome.seconds, self._last = self._clock.now - self._last, self._clock.now
        return outcome


def novel(tokens: int = 3000) -> list[int]:
    return list(range(tokens))


def edited(source: Sequence[int]) -> list[int]:
    """The source with three new tokens in the place of every 24th and 25th."""
    new = iter(range(10_000, 20_000))
    answer: list[int] = []
    for start in range(0, len(source), 24):
        answer += [*source[start : start + 22], next(new), next(new), next(new)]
    return answer


def seconds_for(
    answer: Sequence[int],
    drafter: Drafter,
    clock: Clock,
    curve: CostCurve = STEPPED,
    *,
    planner: Planner | None = None,
    prompt: Sequence[int] = PROMPT,
) -> float:
    """How long the shipped loop takes for an answer, on the clock."""
    session = DraftSession(
        drafter, planner or DraftPlanner(curve), num_draft_tokens=32, clock=clock
    )
    session.begin(prompt)
    target = TimedAnswer(ReplayCase(prompt, answer), curve, clock)
    begun = clock.now
    rounds = list(decode(target, session, prompt[-1], Limits(len(answer), frozenset())))
    assert [token for one in rounds for token in one.tokens][: len(answer)] == list(answer)
    return clock.now - begun


def plain_s(answer: Sequence[int], curve: CostCurve = STEPPED) -> float:
    return len(answer) * curve.decode_s(0)


@pytest.mark.parametrize("acceptance", [0.0, 0.5])
@pytest.mark.parametrize("steps", [0.5, 1.0, 2.0])
def test_a_draft_model_that_does_not_pay_costs_nearly_nothing(
    acceptance: float, steps: float
) -> None:
    """However slow it is, and whatever it would have to read."""
    clock, answer = Clock(), novel()
    model = Coins(answer, acceptance, steps * STEP_S, clock, steps * STEP_S / 50)
    assert seconds_for(answer, model, clock) < plain_s(answer) / 0.98
    assert model.drawn < len(answer) / 20


@pytest.mark.parametrize("curve", [FLAT, STEPPED], ids=["flat", "stepped"])
@pytest.mark.parametrize("acceptance", [0.6, 0.8, 0.95])
@pytest.mark.parametrize("steps", [0.02, 0.1, 0.25])
def test_a_draft_model_that_pays_is_as_fast_as_with_the_best_fixed_length(
    steps: float, acceptance: float, curve: CostCurve
) -> None:
    clock, answer = Clock(), novel()

    def model() -> Coins:
        return Coins(answer, acceptance, steps * STEP_S, clock, steps * STEP_S / 50)

    fixed = [
        seconds_for(answer, model(), clock, curve, planner=FixedPlanner(k))
        for k in (1, 2, 3, 4, 6, 9, 16)
    ]
    best = min(*fixed, plain_s(answer, curve))
    assert seconds_for(answer, model(), clock, curve) < best / 0.95


@pytest.mark.parametrize("curve", [FLAT, STEPPED], ids=["flat", "stepped"])
@pytest.mark.parametrize(
    ("acceptance", "steps", "gain"), [(0.85, 0.1, 1.15), (0.5, 0.3, 0.98), (0.0, 1.0, 0.98)]
)
def test_the_combination_is_faster_than_both_or_as_fast_as_the_faster(
    acceptance: float, steps: float, gain: float, curve: CostCurve
) -> None:
    """Once costs are known, which takes a request."""
    prompt = novel(3000)
    clock, answer = Clock(), edited(prompt)

    def model() -> Coins:
        return Coins(answer, acceptance, steps * STEP_S, clock, steps * STEP_S / 50)

    def second_s(drafter: Drafter) -> float:
        planner = DraftPlanner(curve)
        seconds_for(answer, drafter, clock, curve, planner=planner, prompt=prompt)
        return seconds_for(answer, drafter, clock, curve, planner=planner, prompt=prompt)

    copied, drawn = second_s(AutoDrafter()), second_s(model())
    assert second_s(CombinedDrafter(AutoDrafter(), model())) < min(copied, drawn) / gain


def test_a_long_prompt_is_read_once_that_pays() -> None:
    clock, answer = Clock(), novel()
    prompt = list(range(2000, 12_000))
    read_s = STEP_S / 20
    model = Coins(answer[:30], 0.9, STEP_S / 10, clock, read_s)
    seconds_for(answer[:30], model, clock, prompt=prompt)
    assert model.drawn == 0
    model = Coins(answer, 0.9, STEP_S / 10, clock, read_s)
    took = seconds_for(answer, model, clock, prompt=prompt)
    assert took < plain_s(answer) < took + 10 * len(prompt) * read_s


def test_what_earlier_requests_saved_does_not_pay_for_reading_a_long_prompt() -> None:
    clock, answer, planner = Clock(), novel(4000), DraftPlanner(STEPPED)
    model = Coins(answer, 0.95, STEP_S / 10, clock, STEP_S / 20)
    seconds_for(answer, model, clock, planner=planner)
    assert model.drawn > 100, "it pays"
    short = answer[:20]
    model = Coins(short, 0.95, STEP_S / 10, clock, STEP_S / 20)
    seconds_for(short, model, clock, planner=planner, prompt=list(range(2000, 52_000)))
    assert model.drawn == 0


def test_a_model_that_becomes_good_is_found_again() -> None:
    clock, answer = Clock(), novel(6000)
    model = Coins(answer, 0.0, STEP_S / 10, clock, STEP_S / 500)
    good = Coins(answer, 0.95, STEP_S / 10, clock)
    model._right[3000:] = good._right[3000:]
    took = seconds_for(answer, model, clock)
    assert took < plain_s(answer[:3000]) / 0.98 + 0.6 * plain_s(answer[3000:])


def test_nothing_is_drawn_while_a_step_is_in_flight() -> None:
    """What is drafted then is a forecast: it would be drawn again behind the step's token."""
    clock, answer = Clock(), novel(10)
    model = Coins(answer, 1.0, STEP_S / 100, clock)
    session = DraftSession(model, DraftPlanner(FLAT), num_draft_tokens=32, clock=clock)
    session.begin([7])
    assert len(session.propose(9, 1, pipelined=True)) > 0
    assert model.drawn == 0
    assert session.propose(9, 1) != NO_DRAFT
    assert model.drawn > 0
