"""Folders that the engine makes, and files that it reads: of the user alone."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from akunu_py.calibration.cost_store import CostStore
from akunu_py.cli import terminal
from akunu_py.machine import backend
from akunu_py.memory.store import MemoryStore
from akunu_py.package import make_private, open_file
from tests.cache.test_prompt_store import open_store
from tests.calibration.test_cost_store import KEY
from tests.planning.curves import FLAT


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def open_history(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "user_data_path", lambda *_, **__: folder)
        terminal.open_history()


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize(
    "make",
    [
        make_private,
        open_store,
        open_history,
        backend._is_private,
        lambda folder: CostStore(folder).save(KEY, FLAT),
        lambda folder: MemoryStore(folder).close(),
    ],
)
def test_folders_are_the_users_own_whatever_the_umask(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    folder = tmp_path / "made" / "for" / "this"
    make(folder)
    made = [folder, folder.parent, folder.parent.parent]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 3


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "open"])
def test_only_the_users_own_files_are_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        (tmp_path / "other").touch(0o600)
        path.symlink_to(tmp_path / "other")
    else:
        path.touch()
        path.chmod(0o666)
    with pytest.raises(OSError, match=r"not a regular file|symbolic links|other users can write"):
        open_file(path)


def test_costs_are_not_read_from_a_pipe(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    os.mkfifo(store.path(KEY))
    assert store.load(KEY) is None
    assert store.curves_of(KEY.model) == []
