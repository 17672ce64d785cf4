"""What the memory keeps of projects, whatever happens to its folder."""

import logging
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from akunu_py.errors import InvalidRequestError
from akunu_py.memory.segment import END
from akunu_py.memory.store import KnownFile, MemoryStore

ONE, OTHER = Path("/projects/one"), Path("/projects/other")
KEY = bytes(32)
FILE = KnownFile(b"hash", 10, 20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    made = MemoryStore(tmp_path / "memory")
    yield made
    made.close()


def held(store: MemoryStore, project: Path = ONE, key: bytes = KEY) -> list[list[int]]:
    """The documents in a project's segments, sorted."""
    found = []
    for segment in store.open(project, key):
        document: list[int] = []
        for token in segment.tokens:
            if token == END:
                found.append(document)
                document = []
            else:
                document.append(token)
    return sorted(found)


def test_files_are_added_replaced_and_dropped(store: MemoryStore) -> None:
    assert store.update(ONE, KEY, {"a": (FILE, [1, 2]), "b": (FILE, [3])})
    assert held(store) == [[1, 2], [3]]
    assert store.update(ONE, KEY, {"a": (FILE, [4, 5])}, gone=["b"])
    assert held(store) == [[4, 5]]
    assert store.files(ONE, KEY) == {"a": FILE}


def test_a_small_change_does_not_write_everything(store: MemoryStore, tmp_path: Path) -> None:
    store.update(ONE, KEY, {"a": (FILE, range(1000)), "b": (FILE, [1])})
    (before,) = (tmp_path / "memory").glob("*.segment")
    store.update(ONE, KEY, {"b": (FILE, [2])})
    assert before.exists()
    assert [2] in held(store)
    for number in range(20):
        store.update(ONE, KEY, {f"c{number}": (FILE, [number] * 20)})
    assert len(store.open(ONE, KEY)) < 6


def test_another_tokenizer_and_another_project_see_nothing(store: MemoryStore) -> None:
    store.update(ONE, KEY, {"a": (FILE, [1, 2])})
    assert store.open(OTHER, KEY) == store.open(ONE, b"x" * 32) == []


def test_what_is_forgotten_leaves_no_file(store: MemoryStore, tmp_path: Path) -> None:
    store.update(ONE, KEY, {"secret-name.py": (FILE, [1, 2])})
    store.update(OTHER, KEY, {"b": (FILE, [3])})
    assert store.forget(ONE)
    assert not store.forget(ONE)
    assert [status.path for status in store.projects()] == [OTHER]
    folder = tmp_path / "memory"
    assert len(list(folder.glob("*.segment"))) == 1
    assert not any(b"secret-name" in path.read_bytes() for path in folder.iterdir())
    store.forget_all()
    assert not folder.exists()


def test_the_project_used_longest_ago_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akunu_py.memory.store.time", count(0, 7200).__next__)
    store = MemoryStore(tmp_path / "memory", limit=20_000)
    for name in ("one", "two", "three"):
        assert store.update(Path(name), KEY, {"a": (FILE, range(1000))})
        store.open(Path("one"), KEY)
    assert {str(status.path) for status in store.projects()} == {"one", "three"}
    assert not store.update(ONE, KEY, {"a": (FILE, range(5000))})
    assert sum(status.nbytes for status in store.projects()) <= 20_000
    store.close()


@pytest.mark.parametrize("damage", ["cut", "flip", "other", "gone"])
def test_a_damaged_segment_is_reported_and_its_files_are_new_again(
    store: MemoryStore, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.update(ONE, KEY, {"a": (FILE, range(1000))})
    store.update(ONE, KEY, {"b": (FILE, [7])})
    big = max((tmp_path / "memory").glob("*.segment"), key=lambda path: path.stat().st_size)
    content = bytearray(big.read_bytes())
    content[len(content) // 2] ^= 4
    damaged: dict[str, bytes] = {
        "cut": bytes(content[:1000]),
        "flip": bytes(content),
        "other": b"something else",
    }
    if damage == "gone":
        big.unlink()
    else:
        big.write_bytes(damaged[damage])
    with caplog.at_level(logging.WARNING):
        assert held(store) == [[7]]
    assert len(caplog.records) == 1
    assert set(store.files(ONE, KEY)) == {"b"}
    assert store.update(ONE, KEY, {"a": (FILE, [1])})
    assert held(store) == [[1], [7]]


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\x00" + b"\x11" * 5000])
def test_a_damaged_database_is_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "projects.sqlite").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        store = MemoryStore(folder)
    assert len(caplog.records) == 1
    assert store.update(ONE, KEY, {"a": (FILE, [1, 2])})
    assert held(store) == [[1, 2]]
    store.close()


def test_a_database_with_flipped_bits_never_raises_anything_else(tmp_path: Path) -> None:
    folder, draw = tmp_path / "memory", Random(3)
    for _ in range(20):
        store = MemoryStore(folder)
        store.update(ONE, KEY, {"a": (FILE, [1, 2, 3]), "b": (FILE, [4])})
        store.close()
        path = folder / "projects.sqlite"
        content = bytearray(path.read_bytes())
        for _ in range(8):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            store = MemoryStore(folder)
            held(store)
            store.close()
        except InvalidRequestError:
            path.unlink()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequestError, match="cannot be used"):
        MemoryStore(tmp_path / "file" / "memory")


WRITER = """
import sys
from pathlib import Path
from akunu_py.memory.store import KnownFile, MemoryStore
store, number = MemoryStore(Path(sys.argv[1])), int(sys.argv[2])
while True:
    content = [number] * (1 + number * 37 % 500)
    known = KnownFile(b"%d" % number, len(content), 0)
    store.update(Path("/projects/one"), bytes(32), {f"f{number % 7}": (known, content)})
    print(number, flush=True)
    number += 1
"""


def test_a_kill_loses_at_most_the_last_file(tmp_path: Path) -> None:
    """Writers are killed in the middle of appends and merges, two of them at once."""
    folder, draw = tmp_path / "memory", Random(5)
    said: list[list[int]] = [[], []]
    unsaid: set[int] = set()
    for turn in range(3):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(folder), str(700 * turn + 7000 * other)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for other in range(2)
        ]
        for writer, lines in zip(writers, said, strict=True):
            assert writer.stdout is not None
            lines += [int(writer.stdout.readline()) for _ in range(draw.randrange(7, 16))]
        for writer, lines in zip(writers, said, strict=True):
            writer.kill()
            lines.extend(map(int, writer.communicate()[0].split()))
            unsaid.add(lines[-1] + 1)
        store = MemoryStore(folder)
        documents, files = held(store), store.files(ONE, KEY)
        assert all(len(set(one)) == 1 and len(one) == 1 + one[0] * 37 % 500 for one in documents)
        assert len(files) == 7
        for name, known in files.items():
            slot, written = int(name[1:]), int(known.digest)
            last = {[one for one in lines if one % 7 == slot][-1] for lines in said}
            assert written in last | unsaid
            assert written in {one[0] for one in documents}
        store.close()


def test_what_a_killed_process_wrote_stays_until_something_is_written_over_it(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit may come back where no other follows; then its segment has to be there."""
    store.update(ONE, KEY, {"a": (FILE, [1])})
    stray = store.folder / "0123456789abcdef.segment"
    stray.write_bytes(b"named by a commit that nobody can see yet")
    store.open(ONE, KEY)
    store.files(ONE, KEY)
    store.forget(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("akunu_py.memory.store.MAX_TOKENS", 0)
        assert not store.update(ONE, KEY, {"b": (FILE, [2])})
    assert stray.exists()
    store.update(ONE, KEY, {"b": (FILE, [2])})
    assert not stray.exists()


@pytest.mark.parametrize("existed", [False, True])
def test_only_the_user_may_read_anything(tmp_path: Path, existed: bool) -> None:
    folder = tmp_path / "memory"
    if existed:
        folder.mkdir()
        folder.chmod(0o755)
        (folder / "projects.sqlite").touch(0o644)
    store = MemoryStore(folder)
    store.update(ONE, KEY, {"a": (FILE, [1, 2])})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    store.close()


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory").chmod(0o777)
    with pytest.raises(InvalidRequestError, match="other users can write to it; delete it, or"):
        MemoryStore(tmp_path / "memory")


def test_a_segment_of_another_tokenizer_is_not_used(store: MemoryStore, tmp_path: Path) -> None:
    store.update(ONE, KEY, {"a": (FILE, [1, 2])})
    (foreign,) = (tmp_path / "memory").glob("*.segment")
    store.update(ONE, b"x" * 32, {"a": (FILE, [7])})
    (own,) = {*(tmp_path / "memory").glob("*.segment")} - {foreign}
    shutil.copy(foreign, own)
    assert store.open(ONE, b"x" * 32) == []
    assert held(store) == [[1, 2]]


@pytest.mark.parametrize("place", [b"first-file", b"\x07project"])
def test_bits_that_flip_in_names_lose_no_more_than_these(tmp_path: Path, place: bytes) -> None:
    folder = tmp_path / "memory"
    store = MemoryStore(folder)
    store.update(ONE, KEY, {"first-file": (FILE, [1, 2]), "b": (FILE, [3])})
    store.close()
    content = (folder / "projects.sqlite").read_bytes()
    (folder / "projects.sqlite").write_bytes(content.replace(place, place[:-1] + b"\xff"))
    again = MemoryStore(folder)
    again.update(ONE, KEY, {"first-file": (FILE, [1, 2])})
    assert [1, 2] in held(again)
    assert "first-file" in again.files(ONE, KEY)
    again.close()


def test_a_database_that_turns_out_to_be_damaged_starts_anew(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    store = MemoryStore(folder)
    store.update(ONE, KEY, {"a": (FILE, [1])})
    other = sqlite3.connect(folder / "projects.sqlite", isolation_level=None)
    other.execute("PRAGMA writable_schema = ON")
    other.execute("UPDATE sqlite_master SET sql = 'CREATE nothing' WHERE name = 'files'")
    other.execute("PRAGMA schema_version = 99")
    other.close()
    with pytest.raises(InvalidRequestError, match="index your projects"):
        held(store)
    store.close()
    again = MemoryStore(folder)
    assert again.update(ONE, KEY, {"a": (FILE, [2])})
    assert held(again) == [[2]]
    again.close()
