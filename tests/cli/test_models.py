"""`pull`, `list`, `show`, `rm` and `ps`, on a hub of this machine and in a cache of its own."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import ollama
import pytest
from huggingface_hub import constants

import akunu_py
from akunu_py.__main__ import main
from akunu_py.errors import ModelLoadError
from akunu_py.model.files import find_model
from akunu_py.model.library import LocalModel, all_local_models, local_models
from akunu_py.server.pool import Pool
from akunu_py.server.settings import ServerSettings
from tests.hub import SHA, serve_hub
from tests.server.live import serve_pool
from tests.tiny_model import write_tiny_model

NAME = "somebody/tiny-llama"


@pytest.fixture
def hub(tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The empty cache of the hub's library, while a hub serves one model."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (gguf := tmp_path / "gguf").mkdir()
    (gguf / "config.json").write_text("{}")
    with serve_hub({NAME: tiny_model_dir, "somebody/gguf": gguf}) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        yield cache


def test_a_model_is_pulled_listed_shown_and_removed(
    hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", NAME]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{NAME}: 1.4 MB, 1.4 MB still to fetch; its weights fit")
    assert main(["pull", NAME]) == 0
    assert "0.0 MB still to fetch" in capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    found = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert list(found) == ["ember", NAME]
    assert found["ember"]["has_head"]
    assert (found["ember"]["bits"], found["ember"]["kind"]) == (8, "chat")
    assert (found[NAME]["parameters"], found[NAME]["fits"]) == (336_512, True)
    assert main(["list"]) == 0
    assert f"\n{NAME}  1.3 MB   337K     float32" in capsys.readouterr().out
    assert main(["show", "tiny-llama"]) == 0
    assert "context       1024" in capsys.readouterr().out
    assert main(["rm", "tiny-llama"]) == 2, "nobody can answer whether it may be deleted"
    assert main(["rm", "tiny-llama", "--yes"]) == 0
    assert not list(hub.glob("models--*"))


def test_what_a_user_did_not_pull_is_not_removed(
    hub: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--models-dir", str(tiny_model_dir.parent))
    for words in (("ember",), ("tiny", *folder), ("nothing",)):
        assert main(["rm", "--yes", *words]) == 2
    said = capsys.readouterr().err
    assert "comes with the program" in said
    assert "a folder of yours" in said
    assert "nothing is not here" in said
    assert (tiny_model_dir / "config.json").exists()
    assert hub.exists()


@pytest.fixture
def mirrors(hub: Path) -> list[str]:
    """The names of models in the cache that have one commit, as renamed ones do."""
    names = [f"somebody/{number}" for number in range(6)]
    for name in names:
        place = hub / f"models--{name.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(SHA)
        write_tiny_model(place / "snapshots" / SHA)
    return names


def test_rm_deletes_the_model_that_it_names(mirrors: list[str]) -> None:
    for name in ("somebody/3", "somebody/0", "somebody/5"):
        assert main(["rm", name, "--yes"]) == 0
        mirrors.remove(name)
        assert [model.name for model in local_models() if model.place == "hub"] == mirrors


def test_rm_says_if_it_could_not_delete(
    mirrors: list[str], hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (hub / "models--somebody--0" / "snapshots" / "note.txt").write_text("")  # no scan takes it
    assert main(["rm", mirrors[0], "--yes"]) != 0
    assert "could not be deleted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("somebody/missing", "neither a folder nor a model on the hub"),
        ("somebody/gguf", "GGUF"),
        ("tiny", "not a name on the hub"),
    ],
)
def test_what_cannot_be_pulled_is_refused(
    hub: Path, name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", name]) == 2
    assert why in capsys.readouterr().err
    assert not list(hub.glob("models--*/snapshots"))


@pytest.mark.usefixtures("hub")
def test_a_model_that_is_here_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", NAME]) == 0
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asks"))
    assert find_model(NAME) == find_model(NAME, weights=False)
    assert main(["pull", NAME]) == 2
    assert "could not be fetched" in capsys.readouterr().err


@pytest.mark.usefixtures("hub")
def test_an_incomplete_model_is_listed_and_not_offered(tmp_path: Path) -> None:
    main(["pull", NAME])
    weights = find_model(NAME) / "model.safetensors"
    assert NAME in [model.name for model in local_models()]
    weights.unlink()
    assert NAME not in [model.name for model in local_models()]
    strange = write_tiny_model(tmp_path / "strange" / "one")
    config = json.loads((strange / "config.json").read_text()) | {"model_type": "unheard-of"}
    (strange / "config.json").write_text(json.dumps(config))
    assert "no architecture unheard-of" in str(LocalModel("one", strange).why_not)
    assert "one" not in [model.name for model in local_models([strange.parent])]
    with pytest.raises(ModelLoadError):
        akunu_py.load(str(strange))


def test_a_folder_may_have_folders_of_owners(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_model(tmp_path / "owner" / "one")
    write_tiny_model(tmp_path / "two" / "part")
    write_tiny_model(tmp_path / "two")
    names = [model.name for model in all_local_models([tmp_path])]
    assert names[-2:] == ["two", "owner/one"]
    folders = ["--models-dir", str(tmp_path)]
    assert main(["show", "One:latest", *folders]) == 0
    assert main(["show", "owner/onee", *folders]) == 2
    assert "did you mean owner/one?" in capsys.readouterr().err
    assert main(["list", "--models-dir", str(tmp_path / "none")]) == 2
    assert "There is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "modules.json"])
def test_a_list_of_models_waits_for_no_pipe(tmp_path: Path, name: str) -> None:
    folder = write_tiny_model(tmp_path / "one")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    (one,) = (model for model in all_local_models([tmp_path]) if model.name == "one")
    assert one.parameters >= 0
    assert one.precision
    assert (one.why_not is None) == (name == "modules.json")


def test_ollamas_library_pulls_lists_runs_and_deletes(
    hub: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = LocalModel("first", tiny_model_dir)
    pool = Pool(
        lambda model, _: akunu_py.load(model.asked), ServerSettings(), [first], others=local_models
    )
    with serve_pool(pool) as server, ollama.Client(server.url) as client:
        told = list(client.pull(NAME, stream=True))
        assert (told[0].status, told[-1].status) == ("pulling manifest", "success")
        assert told[-2].completed == told[-2].total > 1_000_000
        assert f"{NAME}:latest" in [model.model for model in client.list().models]
        answer = client.generate("tiny-llama", "hello", options={"num_predict": 3})
        assert (answer.model, answer.eval_count) == (f"{NAME}:latest", 3)
        assert [model.model for model in client.ps().models] == ["first:latest", f"{NAME}:latest"]
        assert main(["ps", "--url", server.url]) == 0
        assert f"\n{NAME}  3." in capsys.readouterr().out
        for name in ("default", "somebody/missing"):
            with pytest.raises(ollama.ResponseError) as refused:
                client.pull(name)
            assert refused.value.status_code == 404
        client.delete(NAME)
        assert [model.model for model in client.ps().models] == ["first:latest"]
        assert not list(hub.glob("models--*"))
        with pytest.raises(ollama.ResponseError, match="not found"):
            client.generate(NAME, "hello")
        with pytest.raises(ollama.ResponseError, match="comes with the program"):
            client.delete("ember")
    assert main(["ps", "--url", server.url]) == 2


def test_a_name_stays_on_its_line(
    hub: Path, tmp_path: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hub.is_dir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "two\nnames\tand\rmore").symlink_to(tiny_model_dir)
    write_tiny_model(tmp_path / "models" / "one\nname\t\r")
    assert main(["list", "--names", "--models-dir", str(tmp_path / "models")]) == 0
    assert capsys.readouterr().out.split("\n") == ["ember", "one␊name␉␍", "tiny", ""]
    assert main(["list", "--models-dir", str(tmp_path / "models")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["show", "one\nname\t\r", "--models-dir", str(tmp_path / "models")]) == 0
    assert "one␊name␉␍\n" in capsys.readouterr().out
