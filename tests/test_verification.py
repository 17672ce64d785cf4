from hypothesis import given
from hypothesis import strategies as st

from akunu_py.verification import match_choices

tokens = st.lists(st.integers(0, 3), max_size=12)


@given(choices=st.lists(st.integers(0, 3), min_size=1, max_size=12), data=st.data())
def test_emits_what_choosing_one_at_a_time_would(choices: list[int], data: st.DataObject) -> None:
    drafts = data.draw(
        st.lists(st.integers(0, 3), min_size=len(choices) - 1, max_size=len(choices) - 1)
    )
    verdict = match_choices(choices, drafts)

    assert drafts[: verdict.accepted] == choices[: verdict.accepted]
    assert verdict.next_token == choices[verdict.accepted]
    assert verdict.is_bonus == (verdict.accepted == len(drafts))
    if not verdict.is_bonus:
        assert drafts[verdict.accepted] != choices[verdict.accepted]


def test_no_draft_yields_the_targets_token() -> None:
    verdict = match_choices([5], [])
    assert (verdict.accepted, verdict.next_token, verdict.is_bonus) == (0, 5, True)
