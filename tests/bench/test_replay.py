from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from akunu_py.bench.replay import ReplayCase, ReplayResult, replay, replay_case
from akunu_py.drafting.base import Draft, NoDrafter
from akunu_py.drafting.ngram import NGramDrafter
from tests.fakes import OracleDrafter

tokens = st.lists(st.integers(0, 5), max_size=40)


class Fixed(NoDrafter):
    """Always guesses the same."""

    def __init__(self, *guess: int) -> None:
        self._guess = guess
        self.seen: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self.seen = list(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self.seen += tokens

    def propose(self, limit: int) -> Draft:
        return Draft(self._guess[:limit])


def test_counts_forwards_drafts_and_what_stood() -> None:
    result = replay_case(Fixed(2, 9), ReplayCase([0], [1, 2, 3, 2, 2, 4]), limit=2)
    # The prefill emits 1; then [2] 3 with one stood, [2] 2 with one, and 4 alone.
    assert result == ReplayResult(forwards=3, emitted=5, drafted=6, accepted=2)
    assert result.tokens_per_forward == 5 / 3
    assert result.acceptance == 2 / 6


def test_a_draft_that_runs_past_the_reference_counts_in_full() -> None:
    result = replay_case(Fixed(2, 2, 2), ReplayCase([0], [1, 2]), limit=3)
    assert result == ReplayResult(forwards=1, emitted=1, drafted=3, accepted=1)


def test_a_draft_is_cut_after_an_end_token() -> None:
    case = ReplayCase([0], [1, 2])
    result = replay_case(Fixed(2, 2, 2), case, limit=3, end_tokens=frozenset([2]))
    assert result.drafted == 1


def test_an_empty_reference_takes_no_forward() -> None:
    assert replay_case(NoDrafter(), ReplayCase([1], []), 4) == ReplayResult()
    assert ReplayResult().tokens_per_forward == 1.0


def test_without_drafts_a_forward_emits_one_token() -> None:
    result = replay(NoDrafter, [ReplayCase([1], [2, 3, 4])] * 3, limit=4)
    assert result == ReplayResult(forwards=6, emitted=6)


@given(prompt=tokens, reference=tokens, limit=st.integers(0, 8))
def test_the_drafter_sees_all_of_the_text_and_every_token_is_emitted(
    prompt: list[int], reference: list[int], limit: int
) -> None:
    drafter = Fixed(1, 2, 3)
    result = replay_case(drafter, ReplayCase(prompt, reference), limit)
    assert drafter.seen == prompt + reference
    assert result.emitted == max(0, len(reference) - 1)
    # The last round has no token of its own to add when its whole rest was drafted.
    assert result.emitted <= result.forwards + result.accepted <= result.emitted + 1


@given(reference=st.lists(st.integers(0, 5), min_size=2, max_size=40), limit=st.integers(1, 8))
def test_an_oracle_emits_a_whole_draft_and_one_token_a_forward(
    reference: list[int], limit: int
) -> None:
    result = replay_case(OracleDrafter(3, reference), ReplayCase([1, 2, 3], reference), limit)
    assert result.accepted == result.drafted
    assert result.forwards <= result.emitted


def test_each_request_has_a_drafter_of_its_own() -> None:
    text = [1, 2, 3, 4, 5]
    once = replay(NGramDrafter, [ReplayCase([9], text)], limit=4)
    twice = replay(NGramDrafter, [ReplayCase([9], text)] * 2, limit=4)
    assert twice == once + once
