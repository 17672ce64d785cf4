"""Projects over HTTP: which one a request drafts from, and what it may not see."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import akunu_py
from akunu_py.memory.projects import index_project
from akunu_py.memory.store import MemoryStore
from akunu_py.model.files import tokenizer_fingerprint
from akunu_py.model.loading import load_tokenizer
from akunu_py.package import CACHE_VARIABLE
from tests.server.live import LiveServer, serve


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = [tmp_path_factory.mktemp("projects") / name for name in ("shop", "other")]
    for folder in made:
        folder.mkdir()
        (folder / "main.py").write_text("def price(): return 1\n")
    return made


@pytest.fixture(scope="module")
def server(tiny_model_dir: Path, folders: list[Path]) -> Iterator[LiveServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folders[0].parent / "cache"))
        store = MemoryStore()
        encode = load_tokenizer(str(tiny_model_dir)).encode_plain
        for folder in folders:
            index_project(store, folder, tokenizer_fingerprint(tiny_model_dir), encode)
        store.close()
        projects = tuple(str(folder) for folder in folders)
        with serve(
            lambda: akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), projects=projects))
        ) as live:
            yield live


def post(server: LiveServer, path: str, body: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(f"{server.url}{path}", json=body, timeout=60)


PATHS = {
    "/completion": {"prompt": "def price", "n_predict": 8},
    "/infill": {"input_prefix": "def price", "input_suffix": "1", "n_predict": 8},
    "/v1/completions": {"prompt": "def price", "max_tokens": 8, "model": "m"},
    "/api/generate": {"prompt": "def price", "options": {"num_predict": 8}, "stream": False},
}


@pytest.mark.parametrize("path", PATHS)
def test_a_request_names_its_project(server: LiveServer, folders: list[Path], path: str) -> None:
    plain = post(server, path, PATHS[path] | {"project": ""})
    assert plain.status_code == 200
    for project in ("shop", str(folders[1]), f"{folders[0]}/"):
        assert post(server, path, PATHS[path] | {"project": project}).status_code == 200
    for hidden in ("/etc", "third", str(folders[0].parent)):
        refused = post(server, path, PATHS[path] | {"project": hidden})
        assert refused.status_code == 403
        assert "none of the folders" in refused.text
        assert hidden not in refused.text.replace("/etc/", "")


def test_a_file_of_a_project_stands_for_it(server: LiveServer, folders: list[Path]) -> None:
    for name in (str(folders[0] / "main.py"), "main.py", "/elsewhere/x.py", ""):
        extra = [{"filename": name, "text": "x = 1\n"}]
        answer = post(server, "/infill", PATHS["/infill"] | {"input_extra": extra})
        assert answer.status_code == 200
