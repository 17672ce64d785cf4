"""What holds for every drafter: it never raises, never exceeds its limit, never invents a token."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akunu_py.drafting import MAKERS, make_drafter
from akunu_py.drafting.base import Draft, Drafter
from akunu_py.errors import InvalidRequestError

VOCABULARY = 8
SENTENCE, OTHER = list(range(100, 180)), list(range(300, 380))
COPIERS = sorted(set(MAKERS) - {"none"})

LOOKUPS = [pytest.param(make, id=name) for name, make in MAKERS.items()]
streams = st.lists(st.integers(0, VOCABULARY - 1), max_size=60)


def check(draft: Draft, seen: set[int], limit: int) -> None:
    assert len(draft) <= max(limit, 0)
    assert set(draft.tokens) <= seen
    assert all(isinstance(token, int) for token in draft.tokens)
    assert len(draft.accept_probs) in (0, len(draft))
    assert all(0 <= prob <= 1 for prob in draft.accept_probs)
    if draft.probabilities is not None:
        assert draft.probabilities.shape == (len(draft), VOCABULARY)


@pytest.mark.parametrize("make", LOOKUPS)
@given(prompt=streams, references=st.lists(streams, max_size=3), text=streams, data=st.data())
@settings(max_examples=50)
def test_lookups_draft_only_seen_tokens_within_the_limit(
    make: Callable[[], Drafter],
    prompt: list[int],
    references: list[list[int]],
    text: list[int],
    data: st.DataObject,
) -> None:
    decode(make(), prompt, references, text, data)


def decode(
    drafter: Drafter,
    prompt: list[int],
    references: list[list[int]],
    text: list[int],
    data: st.DataObject,
) -> None:
    """Decodes `text` in rounds of any limit, some drafts cut, and checks every draft."""
    drafter.begin(prompt, references)
    seen = {token for document in (prompt, *references) for token in document}
    while text:
        limit = data.draw(st.integers(0, 12))
        draft = drafter.propose(limit)
        check(draft, seen, limit)
        draft = draft.cut(data.draw(st.integers(0, len(draft))))
        accepted = agreement(draft.tokens, text)
        drafter.feedback(draft, accepted)
        drafter.extend(text[: accepted + 1])
        seen |= set(text[: accepted + 1])
        text = text[accepted + 1 :]


def agreement(drafted: Sequence[int], text: Sequence[int]) -> int:
    accepted = 0
    while accepted < min(len(drafted), len(text)) and drafted[accepted] == text[accepted]:
        accepted += 1
    return accepted


@pytest.mark.parametrize("make", LOOKUPS)
@given(prompt=streams, text=streams, cuts=st.lists(st.integers(0, 60), max_size=4))
@settings(max_examples=50)
def test_extending_in_pieces_makes_no_difference(
    make: Callable[[], Drafter], prompt: list[int], text: list[int], cuts: list[int]
) -> None:
    whole, pieces = make(), make()
    for drafter in (whole, pieces):
        drafter.begin(prompt)
    whole.extend(text)
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in pairwise(borders):
        pieces.extend(text[start:end])
    ours, theirs = whole.propose(8), pieces.propose(8)
    assert (ours.tokens, ours.accept_probs) == (theirs.tokens, theirs.accept_probs)


@pytest.mark.parametrize("name", COPIERS)
def test_drafters_forget_the_text_of_earlier_requests(name: str) -> None:
    drafter = MAKERS[name]()
    told = Random(3).sample(range(1_000), 300)
    drafter.begin([*told, *told])
    drafter.extend(told)
    drafter.begin(told[:200])
    assert not drafter.propose(8)


@pytest.mark.parametrize("make", LOOKUPS)
@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param([], id="empty"),
        pytest.param([5], id="one"),
        pytest.param([7] * 3_000, id="all equal"),
        pytest.param([3, 4] * 1_500, id="periodic"),
        pytest.param(Random(1).choices(range(150_000), k=100_000), id="100,000 random"),
        pytest.param(Random(2).choices(range(3), k=20_000), id="three tokens"),
    ],
)
def test_drafters_survive_extreme_inputs(make: Callable[[], Drafter], tokens: list[int]) -> None:
    drafter = make()
    drafter.begin(tokens)
    for limit in (32, 0, 1):
        draft = drafter.propose(limit)
        check(draft, set(tokens), limit)
    drafter.extend(tokens[:50])
    check(drafter.propose(32), set(tokens), 32)


@pytest.mark.parametrize("name", COPIERS)
@pytest.mark.parametrize(
    ("before", "references"),
    [(SENTENCE, []), ([1, 2], [OTHER, SENTENCE, OTHER[::-1]])],
    ids=["a repetition", "only a reference has it"],
)
def test_continues_what_was_there(
    name: str, before: list[int], references: list[list[int]]
) -> None:
    drafter = MAKERS[name]()
    drafter.begin([*before, *SENTENCE[:40]], references)
    draft = drafter.propose(4)
    assert draft.tokens
    assert draft.tokens == tuple(SENTENCE[40 : 40 + len(draft)])


@pytest.mark.parametrize("name", COPIERS)
@pytest.mark.parametrize("left", [0, 2])
def test_ends_where_a_reference_does(name: str, left: int) -> None:
    drafter = MAKERS[name]()
    end = len(SENTENCE) - left
    drafter.begin([1, 2, *SENTENCE[:40]], [SENTENCE, OTHER])
    drafter.extend(SENTENCE[40:end])
    for limit in (1, 8, 64):
        drafted = drafter.propose(limit).tokens
        assert not set(drafted) & set(OTHER)
        assert max(drafted, default=0) < 400


@pytest.mark.parametrize("name", COPIERS)
def test_a_match_does_not_reach_into_the_reference_before(name: str) -> None:
    drafter = MAKERS[name]()
    first, second = OTHER, SENTENCE[30:]
    drafter.begin([*first, *SENTENCE[:40]], [first, second])
    draft = drafter.propose(4)
    alone = MAKERS[name]()
    alone.begin([*first, *SENTENCE[:40]], [second])
    assert draft.tokens in (alone.propose(4).tokens, ())


@pytest.mark.parametrize("make", LOOKUPS)
def test_a_new_request_forgets_the_references_of_the_last(make: Callable[[], Drafter]) -> None:
    drafter = make()
    drafter.begin([1, 2], [SENTENCE])
    drafter.begin([1, *SENTENCE[:40]])
    assert not drafter.propose(4)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="no drafter 'oracle'; choose one of auto"):
        make_drafter("oracle")


def test_a_cut_draft_keeps_the_probabilities_of_its_tokens() -> None:
    draft = Draft((1, 2, 3), "here", 2, accept_probs=(0.9, 0.8, 0.7))
    assert draft.cut(2) == Draft((1, 2), "here", 2, accept_probs=(0.9, 0.8))
    assert draft.cut(3) is draft
