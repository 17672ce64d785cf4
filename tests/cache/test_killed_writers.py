"""Kills processes while they write computed prompts to disk, and examines what they leave.

A process replaces one file, or adds files to a folder, as fast as it can, and says which text it
has written. It is killed (SIGKILL) at a random moment. Afterwards the file must hold the last text
or the one after it, and every text that was said to be in the folder must be there, each with the
right content; leftovers of the kill must not be taken for prompts.
"""

import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from time import sleep
from typing import Final

import mlx.core as mx
import pytest

from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.layers import LayerCache, WindowLayerCache
from akunu_py.cache.prompt_store import PromptStore

_TOKENS: Final = 1200
_WINDOW: Final = 128
_LONGEST_WAIT_S: Final = 0.03
_LIMIT: Final = 100_000_000


def make_cache() -> KVCache:
    """An empty cache of a full layer and a window."""
    return KVCache(lambda n: [LayerCache(n), WindowLayerCache(n, _WINDOW)], 2 * _TOKENS)


def sample() -> KVCache:
    """A cache that holds a token."""
    cache = make_cache()
    fill(cache, [0])
    return cache


def text_of(number: int) -> list[int]:
    """The tokens of a text; two texts share nothing."""
    return [number, *range(_TOKENS - 1)]


def fill(cache: KVCache, tokens: list[int]) -> None:
    """Appends keys and values that tell the tokens."""
    keys = mx.broadcast_to(mx.array(tokens)[None, None, :, None], (1, 2, len(tokens), 64))
    for layer in cache.layers:
        layer.update_and_fetch(keys.astype(mx.float32), -keys.astype(mx.float32))
    cache.advance(len(tokens))


def holds(store: PromptStore, number: int) -> bool:
    """Whether a text can be read, with its own content.

    Raises:
        AssertionError: if it can be read and is wrong.
    """
    tokens, cache = text_of(number), make_cache()
    found = store.find([*tokens, 0], 0)
    if found is None or not store.load(found, cache):
        return False
    assert cache.length == len(tokens)
    fill(cache, [0])
    for layer, seen in zip(cache.layers, (len(tokens), _WINDOW - 1), strict=True):
        keys, values = layer.keys_and_values()
        assert keys[0, 0, :, 0].tolist() == (-values)[0, 1, :, 63].tolist() == [*tokens[-seen:], 0]
    return True


def write(place: Path, *, single: bool) -> Iterator[int]:
    """Writes one text after the other; yields the number of each that has been written."""
    store = PromptStore(place, "kills", sample(), limit=_LIMIT, single=single)
    for number in count(1):
        cache = make_cache()
        fill(cache, text_of(number))
        cache.keep()
        while store.save(text_of(number), cache, closing=True):
            pass
        yield number


def kill_once(place: Path, *, single: bool, wait_s: float) -> None:
    """Starts a writer, kills it, and examines what it left.

    Raises:
        AssertionError: if a text is lost or wrong.
    """
    command = [sys.executable, "-m", "tests.cache.test_killed_writers", str(place)]
    with subprocess.Popen(
        [*command, *(["single"] if single else [])], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        said = [int(writer.stdout.readline())]
        sleep(wait_s)
        writer.kill()
        said += [int(line) for line in writer.stdout.read().split() if line]
    store = PromptStore(place, "kills", sample(), limit=_LIMIT, single=single)
    last = said[-1]
    if single:
        assert [holds(store, last), holds(store, last + 1)].count(True) == 1
        return
    recent = said[-10:]  # those before may have been deleted, because the folder is bounded
    assert all(holds(store, number) for number in recent), recent
    total = sum(path.stat().st_size for path in place.glob("akunu-*"))
    assert total <= _LIMIT, total


@pytest.mark.parametrize("single", [True, False], ids=["a single file", "a folder"])
def test_killed_writers_leave_the_old_text_or_the_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, single: bool
) -> None:
    kill_once(tmp_path / "prompts", single=single, wait_s=Random().uniform(0, _LONGEST_WAIT_S))
    assert not caplog.records


if __name__ == "__main__":
    place, *single = sys.argv[1:]
    for number in write(Path(place), single=bool(single)):
        print(number, flush=True)
