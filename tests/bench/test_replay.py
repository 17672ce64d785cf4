from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.bench.replay import (
    ReplayCase,
    ReplayResult,
    repeated_share,
    replay_rounds,
)
from akunu_py.drafting.base import Draft, Drafter, NoDrafter
from akunu_py.planning.planner import FixedPlanner, Planner
from tests.fakes import MoodyPlanner, OracleDrafter
from tests.planning.curves import FLAT, STEPPED

tokens = st.lists(st.integers(0, 5), max_size=40)


def replayed(drafter: Drafter, case: ReplayCase, planner: Planner, limit: int = 32) -> ReplayResult:
    return ReplayResult.of(replay_rounds(drafter, case, planner, limit=limit))


class Fixed(NoDrafter):
    """Always guesses the same."""

    def __init__(self, *guess: int) -> None:
        self._guess = guess
        self.seen: list[int] = []

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self.seen = list(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self.seen += tokens

    def propose(self, limit: int) -> Draft:
        return Draft(self._guess[:limit])


def test_counts_forwards_drafts_and_accepted_tokens() -> None:
    case = ReplayCase([0], [2, 3, 2, 2, 4])
    result = replayed(Fixed(2, 9), case, FixedPlanner(2))
    # [2] 3 with one stood, [2] 2 with one, and 4 alone.
    assert (result.forwards, result.emitted, result.drafted, result.accepted) == (3, 5, 6, 2)
    assert result.tokens_per_forward == 5 / 3
    assert result.acceptance == 2 / 6


def test_a_draft_that_runs_past_the_reference_counts_in_full() -> None:
    result = replayed(Fixed(2, 2, 2), ReplayCase([0], [2]), FixedPlanner(3))
    assert (result.forwards, result.emitted, result.drafted, result.accepted) == (1, 1, 3, 1)


def test_a_draft_is_cut_after_an_end_token() -> None:
    case = ReplayCase([0], [2], frozenset([2]))
    result = replayed(Fixed(2, 2, 2), case, FixedPlanner(3))
    assert result.drafted == 1


def test_an_empty_reference_takes_no_forward() -> None:
    result = replayed(NoDrafter(), ReplayCase([1], []), FixedPlanner(4))
    assert result == ReplayResult()
    assert result.tokens_per_forward == result.predicted_speedup(FLAT) == 1.0


def test_a_draft_waits_for_the_step_in_flight() -> None:
    """As in decoding: without a draft, the next step is pipelined, and is read before the draft."""

    class Late(Fixed):
        def propose(self, limit: int) -> Draft:
            return Draft(self._guess[:limit]) if len(self.seen) >= 3 else Draft()

    rounds = list(replay_rounds(Late(7), ReplayCase([1], [7] * 6), FixedPlanner(1)))
    assert [(done.drafted, len(done.tokens)) for done in rounds] == [
        (0, 1), (0, 1), (0, 1), (1, 2), (1, 1),
    ]  # fmt: skip


@given(prompt=tokens, reference=tokens, limit=st.integers(1, 8), seed=st.integers(0, 99))
def test_the_drafter_sees_all_of_the_text_and_every_token_is_emitted(
    prompt: list[int], reference: list[int], limit: int, seed: int
) -> None:
    drafter, planner = Fixed(1, 2, 3), MoodyPlanner(seed)
    result = replayed(drafter, ReplayCase(prompt, reference), planner, limit=limit)
    assert drafter.seen == prompt + reference
    assert result.emitted == len(reference)
    # The last round has no token of its own to add when its whole rest was drafted.
    assert result.emitted <= result.forwards + result.accepted <= result.emitted + 1
    assert len(planner.rounds) == result.forwards


@given(reference=st.lists(st.integers(0, 5), min_size=2, max_size=40), limit=st.integers(1, 8))
def test_an_oracle_emits_a_whole_draft_and_one_token_per_forward(
    reference: list[int], limit: int
) -> None:
    case = ReplayCase([1, 2, 3], reference)
    result = replayed(OracleDrafter(3, reference), case, FixedPlanner(limit), limit=limit)
    assert result.accepted == result.drafted
    assert result.forwards <= result.emitted


def test_the_predicted_speedup_is_the_time_of_single_steps_over_that_of_the_rounds() -> None:
    # A step takes 9 ms, a round of up to 5 tokens 10 ms, of 6 to 10 tokens 18 ms.
    case = ReplayCase([0, 1, 2], list(range(12)))
    for drafts, spent in ((4, 10 + 10 + 10), (5, 18 + 18)):
        oracle = OracleDrafter(3, case.reference)
        result = replayed(oracle, case, FixedPlanner(drafts), limit=drafts)
        assert result.predicted_speedup(STEPPED) == pytest.approx(12 * 9 / spent)


def test_the_repeated_share_of_a_text() -> None:
    assert repeated_share(ReplayCase([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])) == 2 / 5
    assert repeated_share(ReplayCase([], [1, 2, 3, 4, 5])) == 0
    assert repeated_share(ReplayCase([1], [])) == 0
