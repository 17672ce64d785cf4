"""The automaton against a search through all earlier positions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.suffix_automaton import SuffixAutomaton, SuffixAutomatonDrafter


def longest_repeated_suffix(text: list[int]) -> int:
    return next(
        (
            length
            for length in range(len(text) - 1, 0, -1)
            if any(
                text[start : start + length] == text[len(text) - length :]
                for start in range(len(text) - length)
            )
        ),
        0,
    )


@given(st.lists(st.integers(0, 2), max_size=40))
@settings(deadline=None)
def test_finds_the_longest_match_at_every_step(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, start=1):
        automaton.append(token)
        match = automaton.longest_match()
        wanted = longest_repeated_suffix(text[:end])
        assert (match.length if match else 0) == wanted
        if match:
            assert match.follower < end
            assert text[match.follower - wanted : match.follower] == text[end - wanted : end]


def test_the_recent_follower_wins_at_first_and_the_frequent_one_holds() -> None:
    drafter = SuffixAutomatonDrafter()
    drafter.begin([1, 2, 50, 1, 2, 60, 1, 2])
    assert drafter.propose(1).tokens == (60,)
    drafter.extend([60, 1, 2, 60, 1, 2, 50, 1, 2])
    assert drafter.propose(1).tokens == (60,)


def test_drafts_grow_with_the_match() -> None:
    drafter = SuffixAutomatonDrafter()
    text = list(range(100))
    drafter.begin([*text, 0, 1])
    assert len(drafter.propose(32)) == 4
    drafter.extend(text[2:10])
    assert len(drafter.propose(32)) == 20
    assert drafter.propose(32).match_length == 10


def test_a_copy_that_overtakes_itself_repeats_its_period() -> None:
    drafter = SuffixAutomatonDrafter()
    drafter.begin([1, 2, 3] * 4)
    assert drafter.propose(7).tokens == (1, 2, 3, 1, 2, 3, 1)
