"""What holds for every request: errors, log lines, who may use the server, and projects."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

import akunu_py
from akunu_py.memory.projects import index_project
from akunu_py.memory.store import MemoryStore
from akunu_py.model.files import tokenizer_fingerprint
from akunu_py.model.loading import load_tokenizer
from akunu_py.options import Options
from akunu_py.package import CACHE_VARIABLE
from akunu_py.sequence import Sequence
from akunu_py.server.settings import Defaults, ServerSettings
from tests.server.live import FRIEND, KEY, LiveServer, serve


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/completion", 405), ("DELETE", "/health", 405)],
)
def test_unknown_paths_and_methods_get_json_errors(
    live: LiveServer, method: str, path: str, status: int
) -> None:
    response = live.client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == status
    assert path in response.json()["error"]["message"]


def test_the_log_says_why_a_request_was_refused(live: LiveServer) -> None:
    live.reset()
    live.post("/infill", {"prompt": "a secret"})
    line = live.log.wait_for("POST /infill 400")
    assert line.endswith("ms: `input_prefix` is missing.")
    assert "secret" not in line


def test_prompts_are_logged_only_on_request(
    live: LiveServer, tiny_model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "akunu_py")
    body = {"prompt": "a secret", "n_predict": 1}
    assert live.post("/completion", body).status_code == 200
    assert "a secret" not in caplog.text
    logs_prompts = ServerSettings(log_prompts=True)
    with serve(lambda: akunu_py.load(str(tiny_model_dir)), logs_prompts) as server:
        assert server.post("/completion", body).status_code == 200
    assert "prompt: 'a secret'" in caplog.text


def test_an_invalid_json_body_gets_a_json_error(live: LiveServer) -> None:
    response = live.client.post("/completion", content=b"{")
    assert response.status_code == 400
    assert "not valid JSON" in response.json()["error"]["message"]


def test_health_is_ok(live: LiveServer) -> None:
    assert live.get("/health").json() == {"status": "ok"}


def test_a_client_may_ask_again_on_the_same_connection(live: LiveServer) -> None:
    with httpx2.Client(base_url=live.url, timeout=60) as client:
        for _ in range(3):
            answer = client.post("/completion", json={"prompt": "a", "n_predict": 1})
            assert answer.status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1", "[::1]:80", "192.168.0.7", "a.localhost"]
)
def test_names_of_this_machine_and_addresses_are_hosts(live: LiveServer, host: str) -> None:
    assert live.get("/health", Host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil.example:8080", "", "[", "127.1.evil"],
)
def test_other_names_may_be_rebound_and_are_refused(live: LiveServer, host: str) -> None:
    response = live.get("/health", Host=host)
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"


def test_further_names_are_hosts_if_allowed(guarded: LiveServer) -> None:
    assert guarded.get("/health", Host="machine.example:80").status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "x"])
def test_foreign_pages_are_refused(live: LiveServer, origin: str) -> None:
    response = live.post("/completion", {"prompt": "a"}, Origin=origin)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


def test_pages_may_be_disabled(guarded: LiveServer) -> None:
    bearer = {"Authorization": f"Bearer {KEY}"}
    found = [guarded.get(path, **bearer).status_code for path in ("/", "/slots", "/metrics")]
    assert found == [200, 501, 501]


def test_the_servers_own_page_may_ask(live: LiveServer) -> None:
    assert live.get("/props", Origin=live.url).status_code == 200


def test_a_page_that_is_allowed_may_read(guarded: LiveServer) -> None:
    bearer = {"Authorization": f"Bearer {KEY}", "Origin": FRIEND}
    response = guarded.get("/props", **bearer)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == FRIEND
    asked = guarded.client.options(
        "/completion",
        headers={
            "Origin": FRIEND,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type",
        },
    )
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == FRIEND


def test_no_page_may_read_by_default(live: LiveServer) -> None:
    asked = live.client.options(
        "/completion", headers={"Origin": live.url, "Access-Control-Request-Method": "POST"}
    )
    assert not any(name.startswith("access-control-") for name in asked.headers)


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"X-Api-Key": "wrong"}],
)
def test_without_the_key_there_is_no_answer(guarded: LiveServer, headers: dict[str, str]) -> None:
    response = guarded.get("/props", **headers)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers", [{"Authorization": f"Bearer {KEY}"}, {"Authorization": f"bearer {KEY}"},
                {"X-Api-Key": KEY}]
)  # fmt: skip
def test_with_the_key_there_is_an_answer(guarded: LiveServer, headers: dict[str, str]) -> None:
    assert guarded.get("/props", **headers).status_code == 200


def test_health_needs_no_key(guarded: LiveServer) -> None:
    assert guarded.get("/health").status_code == 200


def test_a_body_beyond_the_limit_is_not_read(guarded: LiveServer) -> None:
    body = {"prompt": "a" * 1000}
    response = guarded.post("/completion", body, Authorization=f"Bearer {KEY}")
    assert response.status_code == 413
    assert "larger than 1000 bytes" in response.json()["error"]["message"]


def test_clients_see_the_aliases_of_the_model(guarded: LiveServer) -> None:
    bearer = {"Authorization": f"Bearer {KEY}"}
    (model,) = guarded.get("/v1/models", **bearer).json()["data"]
    assert (model["id"], model["aliases"]) == ("mine", ["mine", "yours"])
    assert guarded.get("/v1/models/yours", **bearer).json()["id"] == "mine"
    answer = guarded.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, **bearer).json()
    assert answer["model"] == "mine"
    assert guarded.get("/api/tags", **bearer).json()["models"][0]["name"] == "mine:latest"
    assert guarded.post("/api/pull", {"model": "yours"}, **bearer).status_code == 200


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True),
        ("http://127.0.0.1:3000", True),
        ("http://[::1]:3000", True),
        ("http://localhost.evil.com", False),
        ("http://notlocalhost", False),
    ],
)
def test_pages_of_this_machine_may_be_allowed(
    guarded: LiveServer, origin: str, allowed: bool
) -> None:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    answer = guarded.client.options("/v1/completions", headers=asked)
    assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
    assert (guarded.get("/health", Origin=origin).status_code == 200) is allowed


def test_the_servers_defaults_hold_in_every_contract(tiny_model_dir: Path) -> None:
    defaults = Defaults(max_tokens=1, xtc_probability=0.5, xtc_threshold=0.2, exact=True)
    asked: list[Options] = []

    def load() -> akunu_py.Engine:
        engine = akunu_py.load(str(tiny_model_dir))
        encode = engine.runner.encode

        def noting(sequence: Sequence) -> None:
            asked.append(sequence.options)
            encode(sequence)

        engine.runner.encode = noting  # type: ignore[method-assign]
        return engine

    with serve(load, ServerSettings(defaults=defaults)) as server:
        for path in ("/completion", "/v1/completions", "/api/generate"):
            assert server.post(path, {"prompt": "a", "stream": False}).status_code == 200
    assert len(asked) == 3
    for options in asked:
        sampling = options.sampling
        assert (sampling.xtc_probability, sampling.xtc_threshold) == (0.5, 0.2)
        assert options.exact


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = [tmp_path_factory.mktemp("projects") / name for name in ("shop", "other")]
    for folder in made:
        folder.mkdir()
        (folder / "main.py").write_text("def price(): return 1\n")
    return made


@pytest.fixture(scope="module")
def shop(tiny_model_dir: Path, folders: list[Path]) -> Iterator[LiveServer]:
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


PATHS = {
    "/completion": {"prompt": "def price", "n_predict": 8},
    "/infill": {"input_prefix": "def price", "input_suffix": "1", "n_predict": 8},
    "/v1/completions": {"prompt": "def price", "max_tokens": 8, "model": "m"},
    "/api/generate": {"prompt": "def price", "options": {"num_predict": 8}, "stream": False},
}


@pytest.mark.parametrize("path", PATHS)
def test_a_request_names_its_project(shop: LiveServer, folders: list[Path], path: str) -> None:
    plain = shop.post(path, PATHS[path] | {"project": ""})
    assert plain.status_code == 200
    for project in ("shop", str(folders[1]), f"{folders[0]}/"):
        assert shop.post(path, PATHS[path] | {"project": project}).status_code == 200
    for hidden in ("/etc", "third", str(folders[0].parent)):
        refused = shop.post(path, PATHS[path] | {"project": hidden})
        assert refused.status_code == 403
        assert "none of the folders" in refused.text
        assert hidden not in refused.text.replace("/etc/", "")


def test_a_file_of_a_project_stands_for_it(shop: LiveServer, folders: list[Path]) -> None:
    for name in (str(folders[0] / "main.py"), "main.py", "/elsewhere/x.py", ""):
        extra = [{"filename": name, "text": "x = 1\n"}]
        answer = shop.post("/infill", PATHS["/infill"] | {"input_extra": extra})
        assert answer.status_code == 200
