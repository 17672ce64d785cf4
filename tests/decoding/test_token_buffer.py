import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.decoding.token_buffer import TokenBuffer
from akunu_py.errors import InvalidRequestError

token = st.integers(min_value=0, max_value=2**31 - 1)


@given(
    max_drafts=st.integers(0, 64),
    cache_room=st.integers(0, 200),
    tokens_wanted=st.integers(0, 200),
)
def test_the_guard_lets_through_what_fits_everywhere_and_no_less(
    max_drafts: int, cache_room: int, tokens_wanted: int
) -> None:
    buffer = TokenBuffer(max_drafts)
    limit = buffer.draft_limit(cache_room=cache_room, tokens_wanted=tokens_wanted)

    assert limit >= 0
    if limit:
        assert 1 + limit <= cache_room, "the forward writes the known token and every draft"
        assert limit + 1 <= tokens_wanted, "every draft and the bonus may still be emitted"
        assert 1 + limit < buffer.slots, "the output needs one slot more than the input"
    one_more = limit + 1
    assert one_more > max_drafts or 1 + one_more > cache_room or one_more + 1 > tokens_wanted


@given(known=token, drafts=st.lists(token, max_size=8), verified=st.lists(token, max_size=9))
def test_verified_tokens_stand_one_slot_further_on(
    known: int, drafts: list[int], verified: list[int]
) -> None:
    buffer = TokenBuffer(8)
    assert buffer.load(known, drafts).tolist() == [known, *drafts]
    buffer.store(verified)
    assert buffer.emitted(len(verified)) == verified


def test_the_buffer_is_allocated_once() -> None:
    buffer = TokenBuffer(4)
    first = buffer.load(1, [2, 3])
    assert buffer.load(7, [8]).base is first.base


def test_akunus_shape_is_the_default() -> None:
    buffer = TokenBuffer()
    assert buffer.max_drafts == 4
    assert buffer.slots == 6


def test_too_much_is_refused_and_changes_nothing() -> None:
    buffer = TokenBuffer(2)
    view = buffer.load(1, [2, 3])
    with pytest.raises(InvalidRequestError, match="does not fit a buffer made for 2"):
        buffer.load(9, [9, 9, 9])
    with pytest.raises(InvalidRequestError, match="do not fit a buffer of 4 slots"):
        buffer.store([9, 9, 9, 9])
    assert view.tolist() == [1, 2, 3]


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="0 or more, not -1"):
        TokenBuffer(-1)
