"""The sorted places of tokens on disk: what is found, and what is refused."""

import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.drafting.recall import DEPTH
from akunu_py.memory.segment import (
    END,
    DamagedSegmentError,
    Segment,
    joined_documents,
    write_segment,
)

FINGERPRINT = bytes(range(32))
documents = st.lists(st.lists(st.integers(0, 3), max_size=40), max_size=4)


def segment_of(folder: Path, *held: Sequence[int]) -> Segment:
    path = folder / "one.segment"
    write_segment(path, FINGERPRINT, joined_documents(held))
    return Segment(path)


def agreement(tokens: Sequence[int], place: int, context: Sequence[int]) -> int:
    length = 0
    while length < min(place, len(context), DEPTH):
        if tokens[place - 1 - length] != context[-1 - length]:
            break
        length += 1
    return length


@given(held=documents, context=st.lists(st.integers(0, 3), max_size=30))
def test_the_nearest_places_are_those_with_the_longest_matches(
    tmp_path_factory: pytest.TempPathFactory, held: list[list[int]], context: list[int]
) -> None:
    segment = segment_of(tmp_path_factory.mktemp("segment"), *held)
    tokens = list(segment.tokens)
    all_lengths = (agreement(tokens, place, context) for place in range(1, len(tokens)))
    expected = sorted((length for length in all_lengths if length), reverse=True)
    found = segment.nearest(context, 5)
    assert [length for length, _ in found] == expected[:5]
    assert all(agreement(tokens, place, context) == length for length, place in found)
    assert len({place for _, place in found}) == len(found)


def test_documents_are_kept_apart_and_whole(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, [1, 2], [], [3])
    assert list(segment.tokens) == [1, 2, END, END, 3, END]
    assert (segment.fingerprint, segment.largest) == (FINGERPRINT, 3)


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    segment_of(tmp_path, [1])
    assert stat.S_IMODE((tmp_path / "one.segment").stat().st_mode) == 0o600


def test_an_empty_segment_knows_nothing(tmp_path: Path) -> None:
    assert segment_of(tmp_path).nearest([1, 2], 5) == []


@given(data=st.data())
def test_any_damage_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("segment")
    segment_of(folder, [1, 2, 3, 1, 2, 4])
    path = folder / "one.segment"
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    path.write_bytes(content)
    with pytest.raises(DamagedSegmentError):
        Segment(path)
