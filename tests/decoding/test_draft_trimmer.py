from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from akunu_py.decoding.draft_trimmer import DraftTrimmer
from akunu_py.drafting.base import NO_DRAFT, Draft

texts = st.text("abc", max_size=9)


def spell(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def codes(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def test_the_first_end_token_is_the_last_to_be_verified() -> None:
    trimmer = DraftTrimmer(frozenset({8, 9}))
    assert trimmer.trim(Draft((1, 9, 2, 8))).tokens == (1, 9)
    assert trimmer.trim(Draft((1, 2))).tokens == (1, 2)
    assert trimmer.trim(NO_DRAFT) == NO_DRAFT


@given(
    emitted=st.lists(texts, max_size=4), drafted=texts, stop=st.text("abc", min_size=1, max_size=4)
)
def test_a_draft_ends_with_the_stop_string_that_it_completes(
    emitted: list[str], drafted: str, stop: str
) -> None:
    trimmer = DraftTrimmer(frozenset(), (stop,), spell)
    for piece in emitted:
        trimmer.extend(codes(piece))
    before = "".join(emitted)[-len(stop) :]
    kept = spell(trimmer.trim(Draft(codes(drafted))).tokens)

    assert drafted.startswith(kept)
    if kept != drafted:
        assert stop in before + kept
    assert stop not in before + kept[:-1] or len(kept) <= 1
