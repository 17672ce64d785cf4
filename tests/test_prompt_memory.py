"""Chunks of a prompt: as short as others can wait for, where that costs little."""

from collections.abc import Callable

import pytest

from akunu_py.prompt_memory import ChunkSize


def chunks_of(seconds: Callable[[int, int], float], tokens: int, most: int) -> list[int]:
    """The chunks of a prompt; `seconds` tells what so many tokens take after so many."""
    size, found = ChunkSize(most), list[int]()
    while sum(found) < tokens:
        before = sum(found)
        found.append(size.tokens)
        size.learn(seconds(found[-1], before))
    return found


@pytest.mark.parametrize("most", [128, 1024])
def test_chunks_of_a_long_context_are_as_short_as_those_of_a_short_one(most: int) -> None:
    def seconds(tokens: int, before: int) -> float:
        return tokens * (0.08 / most) * (1 + before / 12_000)

    found = chunks_of(seconds, 32_000, most)
    times = [seconds(one, sum(found[:at])) for at, one in enumerate(found)]
    assert found[0] == most
    assert found == sorted(found, reverse=True), "a longer context needs no longer chunks"
    assert max(times) < 0.11
    assert min(times[:-1]) > 0.04, "none is shorter than it has to be"


def test_chunks_stay_long_where_shorter_ones_take_as_long() -> None:
    found = chunks_of(lambda tokens, _: 0.2 + tokens / 1000, 10_000, 128)
    assert found.count(64) == 1, "they are tried once"
    assert set(found) == {64, 128}


def test_no_chunk_is_shorter_than_a_quarter() -> None:
    assert min(chunks_of(lambda tokens, _: tokens / 10, 10_000, 128)) == 32
    assert min(chunks_of(lambda tokens, _: tokens / 10, 10, 1)) == 1


def test_shorter_chunks_are_tried_again_after_twice_the_time() -> None:
    def seconds(tokens: int, before: int) -> float:
        return 0.1 + tokens * before / 1e6

    found = chunks_of(seconds, 10_000, 128)
    at = found.index(64)
    assert found[at + 1] == 128
    assert found[-1] < 128
