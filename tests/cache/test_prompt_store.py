"""Prompts on disk: what is read is what was written, or it is not read at all."""

import json
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache as GrowingCache

from akunu_py.cache import prompt_file, prompt_store
from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.cache.prompt_file import PromptContent, PromptHead, read_head, read_prompt
from akunu_py.cache.prompt_store import PromptStore
from akunu_py.cache.states import Checkpoint
from akunu_py.errors import InvalidRequestError
from akunu_py.options import KVQuantization
from akunu_py.package import UNFINISHED
from tests.cache.test_kv_cache import KINDS, FakeNetwork, feed

CAPACITY = 400
Kinds = tuple[Callable[[], Any], ...]
by_kind = pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)


@pytest.fixture(scope="module", autouse=True)
def _short_files() -> Iterator[None]:
    """A file has 20 tokens at most, so that short texts take several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_store, "_STRETCH", 20)
        patch.setattr(prompt_store, "_LEAST", 4)
        yield


def cache_of(kinds: Kinds, tokens: list[int], *, keep_every: int = 10) -> KVCache:
    """A cache that holds tokens, with checkpoints on the way and at the end."""
    cache = make_kv_cache(FakeNetwork(*kinds), CAPACITY)
    for start in range(0, len(tokens), keep_every):
        feed(cache, tokens[start : start + keep_every])
        cache.keep()
    return cache


def open_store(
    place: Path, kinds: Kinds = (GrowingCache,), model: str = "a", **options: Any
) -> PromptStore:
    return PromptStore(place, model, cache_of(kinds, [0]), **options)


def save(store: PromptStore, kinds: Kinds, tokens: list[int]) -> None:
    cache = cache_of(kinds, tokens)
    while store.save(tokens, cache):
        pass


def load(store: PromptStore, kinds: Kinds, prompt: list[int]) -> tuple[KVCache, int]:
    """What the store has of a prompt; 0 tokens if it has nothing."""
    while found := store.find(prompt, 0):
        cache = make_kv_cache(FakeNetwork(*kinds), CAPACITY)
        if store.load(found, cache):
            return cache, found[1]
    return make_kv_cache(FakeNetwork(*kinds), CAPACITY), 0


def sees(cache: KVCache) -> list[list[int]]:
    """What the layers show to the next two tokens; windows may show more than they need."""
    return [row[-6:] if len(row) > 1 else row for row in feed(cache, [7, 8])]


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@by_kind
@settings(max_examples=10)
@given(data=st.data())
def test_what_is_read_is_what_a_fresh_prefill_leaves(kinds: Kinds, data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        folder, texts, fresh = Path(name), [[0]], 1
        store = open_store(folder, kinds)
        for _ in range(data.draw(st.integers(1, 5))):
            before = data.draw(st.sampled_from(texts))
            kept = data.draw(st.integers(1, len(before)))
            length = data.draw(st.integers(1, 70))
            texts.append([*before[:kept], *range(fresh, fresh + length)])
            fresh += length
            save(store, kinds, texts[-1])
            if data.draw(st.booleans()):
                store = open_store(folder, kinds)
        for text in texts[1:]:
            prompt = [*text, 9_999]
            cache, length = load(store, kinds, prompt)
            assert cache.length == length
            if kinds == (GrowingCache,):
                assert length > len(text) - 4, "all but what is not worth a file"
            if length:
                assert sees(cache) == sees(cache_of(kinds, prompt[:length]))


@by_kind
def test_a_conversation_adds_its_new_tokens_only(kinds: Kinds, tmp_path: Path) -> None:
    store, sizes = open_store(tmp_path, kinds), []
    for turns in (1, 2, 3):
        save(store, kinds, list(range(15 * turns)))
        sizes.append(len(files_in(tmp_path)))
        assert load(open_store(tmp_path, kinds), kinds, list(range(100)))[1] == 15 * turns
    assert sizes == [1, 2, 3]
    save(store, kinds, [*range(40), *range(200, 215)])
    assert len(files_in(tmp_path)) == 4, "the shared beginning is not written again"


@pytest.mark.parametrize("noticed", [False, True])
def test_a_beginning_that_was_lost_is_written_again(tmp_path: Path, *, noticed: bool) -> None:
    store, text = open_store(tmp_path), list(range(50))
    save(store, (GrowingCache,), text)
    first = next(path for path in files_in(tmp_path) if not read_head(path).start)
    first.unlink()
    assert not noticed or load(store, (GrowingCache,), text)[1] == 0
    text = list(range(60))
    save(store, (GrowingCache,), text)
    assert load(store, (GrowingCache,), text)[1] == 59


@by_kind
def test_another_process_may_write_the_same_tokens_with_other_checkpoints(
    kinds: Kinds, tmp_path: Path
) -> None:
    text = list(range(18))
    store, other = (open_store(tmp_path / name, kinds) for name in ("own", "other"))
    for each, keep_every in ((store, 10), (other, 6)):
        each.save(text, cache_of(kinds, text, keep_every=keep_every))
    ((own,), (theirs,)) = (files_in(tmp_path / name) for name in ("own", "other"))
    assert own.name == theirs.name
    theirs.replace(own)
    cache, length = load(store, kinds, [*text[:13], 99, 98])
    assert length >= 12
    assert sees(cache) == sees(cache_of(kinds, text[:length]))


def test_nothing_is_read_for_a_few_tokens(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, (GrowingCache,), list(range(50)))
    prompt = list(range(60))
    assert store.find(prompt, 46) is not None
    assert store.find(prompt, 47) is None


@by_kind
@settings(max_examples=15)
@given(data=st.data())
def test_a_damaged_file_is_ignored_and_deleted_with_a_line(
    kinds: Kinds, data: st.DataObject
) -> None:
    text = list(range(30))
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder, said = Path(name), []
        patch.setattr(prompt_file.logger, "warning", lambda line, *rest: said.append(line % rest))
        opened_before = data.draw(st.booleans())
        save(open_store(folder, kinds), kinds, text)
        store = open_store(folder, kinds)
        path = data.draw(st.sampled_from(files_in(folder)))
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[at:]
        path.write_bytes(content)
        if not opened_before:
            store = open_store(folder, kinds)
        cache, length = load(store, kinds, [*text, 99])
        assert length < len(text)
        if length:
            assert sees(cache) == sees(cache_of(kinds, text[:length]))
        assert len(said) <= 1
        assert path.exists() == (not said)


def wrong(rows: Any) -> dict[str, tuple[Any, Any]]:
    """Rows of layers that are not those of the model."""
    (keys, values), (size, dtype) = rows[0], (rows[0][0].shape[-1] + 1, mx.float16)
    larger = mx.zeros((*keys.shape[:-1], size))
    return {
        "a layer less": rows[:-1],
        "a layer more": [*rows, rows[0]],
        "other heads": [(keys[:, :1], values[:, :1])],
        "another head size": [(larger, larger)],
        "another type": [(keys.astype(dtype), values.astype(dtype))],
        "fewer tokens": [(keys[..., 1:, :], values[..., 1:, :])],
        "quantized": [tuple(mx.zeros((1, 2, keys.shape[2], 4)) for _ in range(6))],
        "flat": [(keys[0], values[0])],
        "no arrays": 5,
    }


def rewrite(path: Path, rows: Any = None, **changes: Any) -> None:
    """Writes a file anew, with a right checksum."""
    head, own, checkpoints = read_prompt(path)
    kept = [replace(one, **changes) for one in checkpoints]
    content = PromptContent(head, own, kept)
    packed = json.loads(content._metadata["content"])
    packed["rows"] = prompt_file._pack(own if rows is None else rows, content._arrays)
    content._metadata["content"] = json.dumps(packed)
    content.write(path)


@pytest.mark.parametrize("name", wrong([(mx.zeros((1, 2, 3, 4)),) * 2]))
def test_a_file_that_does_not_fit_the_model_is_deleted(tmp_path: Path, name: str) -> None:
    text, kinds = list(range(18)), (GrowingCache,)
    save(open_store(tmp_path), kinds, text)
    (path,) = files_in(tmp_path)
    store = open_store(tmp_path)
    rewrite(path, wrong(read_prompt(path)[1])[name])
    assert load(store, kinds, [*text, 99])[1] == 0
    assert not files_in(tmp_path)
    save(store, kinds, text)
    assert load(store, kinds, [*text, 99])[1] == len(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": None},
        {"windows": ()},
        {"windows": ((mx.zeros((1, 2, 3, 4)),) * 2,)},
        {"states": ()},
        {"states": ({"cache": [mx.zeros(3), mx.array(1)]},)},
        {"states": ({"other": 1},)},
    ],
)
def test_checkpoints_that_do_not_fit_the_model_are_deleted(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    text, kinds = list(range(18)), KINDS["hybrid"]
    save(open_store(tmp_path, kinds), kinds, text)
    (path,) = files_in(tmp_path)
    rewrite(path, **changes)
    assert load(open_store(tmp_path, kinds), kinds, [*text, 99])[1] == 0
    assert not files_in(tmp_path)


@pytest.mark.parametrize("start", [0, 10])
def test_quantized_layers_fit_themselves(tmp_path: Path, start: int) -> None:
    quantization = KVQuantization(8, 32, start, "packed")
    rows = mx.random.normal((1, 2, 18, 32))

    def made(tokens: int) -> KVCache:
        cache = make_kv_cache(FakeNetwork(GrowingCache), 40, quantization)
        for first in range(tokens) if tokens else ():
            cache.layers[0].update_and_fetch(*(rows[..., first : first + 1, :],) * 2)
            cache.advance(1)
        return cache

    for length in (8, 18):
        store, text = PromptStore(tmp_path, "a", made(1)), list(range(length))
        assert not store.save(text, made(length))
        cache = made(0)
        found = store.find([*text, 99], 0)
        assert found is not None
        assert store.load(found, cache)
        assert cache.length == length


@pytest.mark.parametrize("kind", ["pipe", "link", "foreign", "open"])
def test_only_files_of_the_user_are_read(tmp_path: Path, kind: str) -> None:
    folder, text = tmp_path / "prompts", list(range(18))
    save(open_store(folder), (GrowingCache,), text)
    (path,) = files_in(folder)
    if kind == "open":
        path.chmod(0o666)
    elif kind == "foreign":
        if os.geteuid():
            pytest.skip("only root makes files of others")
        os.chown(path, 65_534, 65_534)
    else:
        path.rename(tmp_path / "elsewhere")
        os.mkfifo(path) if kind == "pipe" else path.symlink_to(tmp_path / "elsewhere")
    assert load(open_store(folder), (GrowingCache,), [*text, 99])[1] == 0
    assert not files_in(folder)


@pytest.mark.parametrize("kind", ["open", "foreign"])
@pytest.mark.parametrize("single", [False, True])
def test_a_place_that_others_can_write_to_is_refused(
    tmp_path: Path, kind: str, *, single: bool
) -> None:
    place = tmp_path / "prompts"
    save(open_store(place, single=single), (GrowingCache,), list(range(18)))
    if kind == "open":
        place.chmod(0o770)
    elif os.geteuid():
        pytest.skip("only root makes files of others")
    else:
        os.chown(place, 65_534, 65_534)
    said = "other users can write to it" if kind == "open" else "it belongs to another user"
    with pytest.raises(InvalidRequestError, match=rf"{said};.* choose another (file|folder)\.$"):
        open_store(place, single=single)
    assert place.exists()


def test_other_models_files_are_left_alone(tmp_path: Path) -> None:
    text = list(range(50))
    save(open_store(tmp_path, model="a"), (GrowingCache,), text)
    assert open_store(tmp_path, model="a").find(text, 0)
    assert not open_store(tmp_path, model="b").find(text, 0)
    assert not open_store(tmp_path, KINDS["window"], model="a").find(text, 0)
    assert open_store(tmp_path, model="a").find(text, 0)


def test_only_the_user_can_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    save(open_store(folder), (GrowingCache,), list(range(50)))
    save(open_store(tmp_path / "file", single=True), (GrowingCache,), list(range(50)))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in files_in(folder)} == {0o600}
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_the_files_used_longest_ago_go_first(tmp_path: Path) -> None:
    texts = [list(range(first, first + 18)) for first in range(0, 400, 100)]
    save(open_store(tmp_path), (GrowingCache,), texts[0])
    limit = int(3.5 * files_in(tmp_path)[0].stat().st_size)
    store = open_store(tmp_path, limit=limit)
    for text in texts[1:3]:
        save(store, (GrowingCache,), text)
    load(store, (GrowingCache,), [*texts[0], 1])
    other = open_store(tmp_path, model="b", limit=limit)
    save(other, (GrowingCache,), texts[3])
    assert sum(path.stat().st_size for path in files_in(tmp_path)) <= limit
    store = open_store(tmp_path, limit=limit)
    assert [bool(store.find([*text, 1], 0)) for text in texts] == [True, False, True, False]
    open_store(tmp_path, limit=0)
    assert not files_in(tmp_path)


def test_a_text_that_exceeds_the_limit_keeps_its_beginning(tmp_path: Path) -> None:
    save(open_store(tmp_path), (GrowingCache,), list(range(18)))
    store = open_store(tmp_path, limit=int(6 * files_in(tmp_path)[0].stat().st_size))
    text = list(range(200))
    save(store, (GrowingCache,), text)
    assert 0 < load(store, (GrowingCache,), text)[1] < 100


def test_a_limit_that_is_too_low_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, limit=100)
    for text in (range(100), range(50, 150)):
        save(store, (GrowingCache,), list(text))
    (record,) = caplog.records
    assert "--prompt-cache-bytes (100) is too small" in record.getMessage()


def test_a_full_disk_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").write_bytes(b"")  # no folder can be made there
    save(store, (GrowingCache,), list(range(50)))
    assert "could not be saved" in caplog.text
    assert len(caplog.records) == 1


class TestSingleFile:
    def test_it_holds_the_last_text(self, tmp_path: Path) -> None:
        place, kinds = tmp_path / "talk", KINDS["hybrid"]
        for text in (list(range(50)), list(range(90)), list(range(500, 560))):
            save(open_store(place, kinds, single=True), kinds, text)
            store = open_store(place, kinds, single=True)
            cache, length = load(store, kinds, [*text, 1])
            assert length == len(text)
            assert sees(cache) == sees(cache_of(kinds, text))
            assert files_in(tmp_path) == [place]

    def test_it_is_rewritten_rarely_before_the_end(self, tmp_path: Path) -> None:
        store, written = open_store(tmp_path / "talk", single=True), []
        for length in range(10, 300, 10):
            before = store.find(list(range(1000)), 0)
            save(store, (GrowingCache,), list(range(length)))
            if store.find(list(range(1000)), 0) != before:
                written.append(length)
        assert all(after >= 1.25 * before for before, after in pairwise(written))
        store.save(list(range(300)), cache_of((GrowingCache,), list(range(300))), closing=True)
        assert load(store, (GrowingCache,), list(range(1000)))[1] == 300

    def test_a_file_of_something_else_is_refused_and_stays(self, tmp_path: Path) -> None:
        place = tmp_path / "notes.txt"
        place.write_text("my notes")
        with pytest.raises(
            InvalidRequestError, match=r"is not a prompt cache of yours: .*; choose another"
        ):
            open_store(place, single=True)
        assert place.read_text() == "my notes"

    def test_another_models_file_is_replaced(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        place, text = tmp_path / "talk", list(range(50))
        save(open_store(place, model="a", single=True), (GrowingCache,), text)
        store = open_store(place, model="b", single=True)
        assert "belongs to another model" in caplog.text
        assert not store.find(text, 0)
        save(store, (GrowingCache,), text)
        assert open_store(place, model="b", single=True).find(text, 0)


@pytest.mark.parametrize("single", [False, True])
def test_a_place_that_cannot_be_used_is_a_sentence(tmp_path: Path, *, single: bool) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" if not single else tmp_path / "no folder" / "file"
    with pytest.raises(InvalidRequestError, match=r"Prompts cannot be kept in .*\.$"):
        open_store(place, single=single)


def test_every_tree_survives(tmp_path: Path) -> None:
    """Whatever an mlx-lm cache keeps in its attributes."""
    dtypes = (mx.bfloat16, mx.float16, mx.float32, mx.int32, mx.uint8, mx.bool_)
    state: dict[str, Any] = {
        "arrays": [mx.arange(6).reshape(2, 3).astype(dtype) for dtype in dtypes],
        "empty": mx.zeros((0, 4)),
        "scalars": (None, 1, 0.5, "x", True, [], {1: mx.array(3)}),
    }
    head = PromptHead("key", "", 0, array("I", [1, 2]), 0, (2,))
    PromptContent(head, [()], [Checkpoint(2, (state,), None)]).write(tmp_path / "file")
    read, rows, (checkpoint,) = read_prompt(tmp_path / "file")
    assert (read.tokens, read.checkpoints, rows) == (head.tokens, (2,), [()])
    (found,) = checkpoint.states
    assert found["scalars"][:-1] == state["scalars"][:-1]
    assert found["scalars"][-1][1].item() == 3
    assert found["empty"].shape == (0, 4)
    for own, other in zip(found["arrays"], state["arrays"], strict=True):
        assert own.dtype == other.dtype
        assert mx.array_equal(own, other)


@pytest.mark.parametrize("single", [False, True])
def test_what_a_crash_left_is_deleted_once_nobody_writes_it(
    tmp_path: Path, *, single: bool
) -> None:
    place, name = (tmp_path / "talk", "talk") if single else (tmp_path, "akunu-1.safetensors")
    old, new = (tmp_path / f".{name}.{kind}{UNFINISHED}" for kind in ("old", "new"))
    others = tmp_path / f".{name}.settings"
    for path in (old, new, others):
        path.touch()
    for path in (old, others):
        os.utime(path, (1e9, 1e9))
    open_store(place, single=single)
    assert files_in(tmp_path) == sorted([new, others])


def test_a_folder_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    folder, text = tmp_path / "prompts", list(range(1, 60))
    kinds = next(iter(KINDS.values()))
    store = open_store(folder, kinds)
    for path in files_in(folder):
        path.unlink()
    folder.rmdir()
    save(store, kinds, text)
    assert files_in(folder)
    assert load(store, kinds, [*text, 9_999])[1] == len(text)
