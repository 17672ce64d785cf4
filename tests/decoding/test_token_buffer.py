import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.decoding.target import TokenBuffer
from akunu_py.errors import InvalidRequestError

token = st.integers(min_value=0, max_value=2**31 - 1)


@given(
    num_draft_tokens=st.integers(0, 64),
    cache_room=st.integers(0, 200),
    tokens_wanted=st.integers(0, 200),
)
def test_the_guard_allows_as_many_tokens_as_fit(
    num_draft_tokens: int, cache_room: int, tokens_wanted: int
) -> None:
    buffer = TokenBuffer(num_draft_tokens)
    limit = buffer.draft_limit(cache_room=cache_room, tokens_wanted=tokens_wanted)

    assert limit >= 0
    if limit:
        assert 1 + limit <= cache_room, "the forward writes the known token and every draft token"
        assert limit + 1 <= tokens_wanted, "every draft token and the bonus may still be emitted"
        assert buffer.load(0, [0] * limit).size == 1 + limit
    one_more = limit + 1
    assert one_more > num_draft_tokens or 1 + one_more > cache_room or one_more + 1 > tokens_wanted


@given(known=token, draft=st.lists(token, max_size=8))
def test_the_input_is_the_known_token_and_the_draft(known: int, draft: list[int]) -> None:
    assert TokenBuffer(8).load(known, draft).tolist() == [known, *draft]


def test_the_buffer_is_allocated_once() -> None:
    buffer = TokenBuffer(4)
    first = buffer.load(1, [2, 3])
    assert buffer.load(7, [8]).base is first.base


def test_a_draft_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    buffer = TokenBuffer(2)
    view = buffer.load(1, [2, 3])
    with pytest.raises(InvalidRequestError, match="does not fit a buffer made for 2"):
        buffer.load(9, [9, 9, 9])
    assert view.tolist() == [1, 2, 3]


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="0 or more, not -1"):
        TokenBuffer(-1)
