from hypothesis import given
from hypothesis import strategies as st

from akunu_py.drafting.base import Draft
from akunu_py.rounds import Finish, Round, Stats


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    drafted = draw(st.integers(0, 6))
    accepted = draw(st.integers(0, drafted))
    done = Round(tuple(range(accepted + 1)), Draft((0,) * drafted), accepted)
    if draw(st.booleans()):
        done.cut(draw(st.integers(0, accepted + 1)), Finish.STOP)
    return done


@given(st.lists(rounds(), max_size=30))
def test_every_generated_token_is_counted_under_one_name(done: list[Round]) -> None:
    stats = Stats()
    for one in done:
        stats.add(one)

    assert stats.generated_tokens == sum(len(one.tokens) for one in done)
    assert stats.generated_tokens == stats.accepted + stats.bonus + stats.corrected + stats.plain
    assert stats.target_forwards == len(done)
    assert stats.target_tokens == len(done) + stats.drafted
    assert sum(stats.accepted_by_position) == stats.accepted <= stats.drafted
    assert stats.accepted_by_position == sorted(stats.accepted_by_position, reverse=True)


def test_a_cut_round_counts_only_what_is_kept() -> None:
    done = Round((1, 2, 3, 4), Draft((1, 2, 3)), accepted=3)
    assert done.has_bonus
    done.cut(2, Finish.STOP)
    stats = Stats()
    stats.add(done)
    assert (stats.generated_tokens, stats.accepted, stats.bonus, stats.corrected) == (2, 2, 0, 0)


def test_rates_of_nothing_are_zero() -> None:
    assert (Stats().acceptance_rate, Stats().tokens_per_forward, Stats().tokens_per_s) == (0, 0, 0)
