"""What a drafter learns of a text and when, and where drafts are cut."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from akunu_py.decoding.draft_session import DraftSession, DraftTrimmer
from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.rounds import Round
from tests.fakes import EveryOther

texts = st.text("abc", max_size=9)


class Diary(Drafter):
    """A drafter that writes down its calls."""

    def __init__(self) -> None:
        self.entries: list[object] = []

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self.entries.append("begin")

    def extend(self, tokens: Sequence[int]) -> None:
        self.entries.append(list(tokens))

    def propose(self, limit: int) -> Draft:
        self.entries.append("propose")
        return NO_DRAFT


def test_skipped_tokens_reach_the_drafter_before_its_next_proposal() -> None:
    diary = Diary()
    steps = DraftSession(diary, EveryOther(), num_draft_tokens=4)
    steps.begin([1, 2])
    for token in (3, 4, 5, 6, 7):
        steps.learn(Round((token,), context=50, pipelined=True))
        steps.propose(9, 50, pipelined=True)
    assert diary.entries == ["begin", [3, 4], "propose", [5, 6], "propose"]
    steps.end()
    assert diary.entries[-1] == [7]


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
