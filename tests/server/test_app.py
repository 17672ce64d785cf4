"""What holds for every request: errors, log lines, who may use the server, and projects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import akunu_py
from akunu_py.errors import InvalidRequestError
from akunu_py.memory.projects import index_project
from akunu_py.memory.store import MemoryStore
from akunu_py.model.files import tokenizer_fingerprint
from akunu_py.model.loading import load_tokenizer
from akunu_py.options import Options
from akunu_py.package import CACHE_VARIABLE
from akunu_py.sequence import Sequence
from akunu_py.server.settings import KEY_VARIABLE, Defaults, ServerSettings
from tests.server.live import FRIEND, KEY, LiveServer, serve

BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.mark.parametrize(
    ("method", "path", "status", "fields"),
    [
        ("GET", "/nowhere", 404, {"code", "message", "type"}),
        ("GET", "/completion", 405, {"code", "message", "type"}),
        ("DELETE", "/health", 405, {"code", "message", "type"}),
        ("GET", "/v1/nowhere", 404, {"code", "message", "type", "param"}),
        ("GET", "/v1/completions", 405, {"code", "message", "type", "param"}),
        ("POST", "/v1/models", 405, {"code", "message", "type", "param"}),
        ("POST", "/v1/messages/batches", 404, {"message", "type"}),
        ("POST", "/api/sing", 404, None),
        ("GET", "/api/chat", 405, None),
    ],
)
def test_unknown_paths_and_methods_get_errors_of_their_contracts(
    live: LiveServer, method: str, path: str, status: int, fields: set[str] | None
) -> None:
    response = live.client.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert path in (error["message"] if fields else error)
    assert fields is None or set(error) == fields


def test_the_log_says_why_a_request_was_refused(live: LiveServer) -> None:
    live.reset()
    live.post("/infill", {"prompt": "a secret"})
    line = live.log.wait_for("POST /infill 400")
    assert line.endswith(f" ms, {live.service.model.name}: `input_prefix` is missing.")
    assert "secret" not in line


SECRETIVE = [
    ("GET", "/v1/responses/resp_secret", {}, "GET /v1/responses/{id:path} 404"),
    ("DELETE", "/v1/responses/resp_secret", {}, "DELETE /v1/responses/{id:path} 404"),
    ("POST", "/v1/responses/resp_secret/cancel", {}, "POST /v1/responses/{id:path} 405"),
    ("GET", "/v1/models/secret", {}, "GET /v1/models/{model:path} 404"),
    ("GET", "/v1/secret", {}, "GET (unknown) 404"),
    ("POST", "/v1/responses", {"previous_response_id": "resp_secret"}, "POST /v1/responses 400"),
    ("POST", "/api/show", {"model": "secret"}, "POST /api/show 404"),
    ("POST", "/completion", {"prompt": "a", "grammar": "secret"}, "POST /completion 400"),
]  # fmt: skip


@pytest.mark.parametrize("asked", SECRETIVE, ids=lambda asked: asked[3])
def test_the_log_quotes_no_request(
    live: LiveServer, guarded: LiveServer, asked: tuple[str, str, Any, str]
) -> None:
    method, path, body, logged = asked
    for server in (live, guarded):  # also without the key
        server.reset()
        server.client.request(method, path, json=body)
        line = server.log.wait_for(logged.rpartition(" ")[0])
        assert "secret" not in line
        assert server is guarded or logged in line


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


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "127.0.0.1", "[::1]:80", "192.168.0.7", "a.localhost",
     "172.17.0.1:8080", "host.docker.internal:8080", "host.containers.internal", "mac.local",
     "LOCALHOST:1", "localhost.:8080", "0.0.0.0:8080"],
)  # fmt: skip
def test_names_of_this_machine_and_addresses_are_hosts(live: LiveServer, host: str) -> None:
    assert live.get("/health", Host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil.example:8080", "", "[",
     "evil.example@127.0.0.1", "127.1.evil", "internal", "docker.internal.evil.example", "local",
     "mac.local.evil.example", "127.0.0.1.evil.example", "."],
)  # fmt: skip
def test_other_names_may_be_rebound_and_are_refused(
    live: LiveServer, guarded: LiveServer, host: str
) -> None:
    response = live.get("/health", Host=host)
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"
    assert guarded.get("/health", Host="machine.example:80").status_code == 200, "it is allowed"


@pytest.mark.parametrize(
    "origin",
    ["app://x", "file://", "tauri://localhost", "vscode-webview://1", "http://localhost",
     "http://localhost:3000", "https://127.0.0.1:8443", "http://[::1]:5173", "http://0.0.0.0:80"],
)  # fmt: skip
def test_desktop_applications_and_pages_of_this_machine_may_ask_and_read(
    live: LiveServer, origin: str
) -> None:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    preflight = live.client.options("/v1/chat/completions", headers=asked)
    answer = live.post("/completion", {"prompt": "a", "n_predict": 1}, Origin=origin)
    for each in (preflight, answer):
        assert (each.status_code, each.headers["access-control-allow-origin"]) == (200, origin)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost.evil.example",
     "http://127.0.0.1.evil.example:80", "http://evil.example#http://localhost",
     "http://mac.local", "x", "http://app://x", "chrome-extension://a"],
)  # fmt: skip
def test_foreign_pages_are_refused(live: LiveServer, origin: str) -> None:
    response = live.post("/completion", {"prompt": "a"}, Origin=origin)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    assert live.client.options("/completion", headers=asked).status_code == 400
    assert "origin" in live.log.wait_for("OPTIONS of a page 400")


def test_a_page_that_hides_its_origin_may_only_look(live: LiveServer) -> None:
    hidden = {"Sec-Fetch-Site": "cross-site"}
    assert live.post("/completion", {"prompt": "a"}, **hidden).status_code == 403
    assert live.get("/health", **hidden).status_code == 200
    assert live.get("/props?model=tiny", **hidden).status_code == 403, "it may load a model"
    assert (
        live.post("/completion", {"prompt": "a"}, **{"Sec-Fetch-Site": "none"}).status_code == 200
    )


def test_two_hosts_are_none(live: LiveServer) -> None:
    with live.connect() as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 403 " in client.recv(4096).splitlines()[0]


def test_no_browser_guesses_types_or_embeds_answers(live: LiveServer) -> None:
    for answer in (live.get("/health"), live.get("/"), live.post("/completion", {"prompt": ""})):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_the_key_may_be_in_a_file_or_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ServerSettings().key is None
    monkeypatch.setenv(KEY_VARIABLE, "of the environment")
    assert ServerSettings().key == "of the environment"
    assert ServerSettings(api_key="given").key == "given"
    file = tmp_path / "key"
    file.write_text("of the file\n")
    settings = ServerSettings(api_key_file=str(file))
    assert settings.key == "of the file"
    file.chmod(0o666)
    with pytest.raises(InvalidRequestError, match="other users can write to it"):
        _ = ServerSettings(api_key_file=str(file)).key
    file.unlink()
    assert settings.key == "of the file", "it is read once: it may be a pipe"
    (lines := tmp_path / "lines").write_text("one\ntwo\n")
    file.write_text("\n")
    for wrong in (file, lines, tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidRequestError, match=r"must be one line|cannot be read"):
            _ = ServerSettings(api_key_file=str(wrong)).key
    with pytest.raises(InvalidRequestError, match="not both"):
        ServerSettings(api_key="a", api_key_file="b")


def test_pages_may_be_disabled(guarded: LiveServer) -> None:
    found = [
        guarded.get(path, **BEARER).status_code for path in ("/status.json", "/slots", "/metrics")
    ]
    assert found == [200, 501, 501]


def test_the_servers_own_page_may_ask(live: LiveServer) -> None:
    assert live.get("/props", Origin=live.url).status_code == 200


def test_no_page_of_others_may_read_by_default(live: LiveServer) -> None:
    asked = live.client.options(
        "/completion", headers={"Origin": FRIEND, "Access-Control-Request-Method": "POST"}
    )
    assert "access-control-allow-origin" not in asked.headers


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (FRIEND, True),
        ("http://localhost", True),
        ("http://127.0.0.1:3000", True),
        ("http://[::1]:3000", True),
        ("http://localhost.evil.com", False),
        ("http://notlocalhost", False),
    ],
)
def test_pages_that_are_allowed_may_ask_and_read(
    guarded: LiveServer, origin: str, allowed: bool
) -> None:
    sent = "authorization,content-type,user-agent,x-stainless-arch,x-stainless-retry-count"
    for method in ("POST", "DELETE"):  # as openai's library asks in a browser
        asked = {"Origin": origin, "Access-Control-Request-Method": method}
        answer = guarded.client.options(
            "/v1/completions", headers=asked | {"Access-Control-Request-Headers": sent}
        )
        assert (answer.status_code == 200) is allowed
        assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
        assert not allowed or (
            answer.headers["access-control-allow-headers"].replace(" ", "") == sent
        )
    answer = guarded.get("/props", Origin=origin, **BEARER)
    assert (answer.status_code == 200) is allowed
    assert (answer.headers.get("access-control-allow-origin") == origin) is allowed


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"X-Api-Key": "wrong"}],
)
def test_without_the_key_there_is_no_answer(guarded: LiveServer, headers: dict[str, str]) -> None:
    for path in ("/props", "/status.json"):
        response = guarded.get(path, **headers)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/props", BEARER), ("/props", {"Authorization": f"bearer {KEY}"}),
     ("/props", {"X-Api-Key": KEY}), ("/health", {}), ("/", {})],
)  # fmt: skip
def test_with_the_key_or_where_it_is_not_needed_there_is_an_answer(
    guarded: LiveServer, path: str, headers: dict[str, str]
) -> None:
    assert guarded.get(path, **headers).status_code == 200


def test_a_body_beyond_the_limit_is_not_read(guarded: LiveServer) -> None:
    body = {"prompt": "a" * 1000}
    response = guarded.post("/completion", body, **BEARER)
    assert response.status_code == 413
    assert "larger than 1000 bytes" in response.json()["error"]["message"]


def test_clients_see_the_aliases_of_the_model(guarded: LiveServer) -> None:
    models = guarded.get("/v1/models", **BEARER).json()["data"]
    assert [model["id"] for model in models] == models[0]["aliases"] == ["mine", "yours"]
    assert guarded.get("/v1/models/yours", **BEARER).json()["id"] == "yours"
    answer = guarded.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, **BEARER).json()
    assert answer["model"] == "mine"
    assert guarded.get("/api/tags", **BEARER).json()["models"][0]["name"] == "mine:latest"
    assert guarded.post("/api/pull", {"model": "yours"}, **BEARER).status_code == 200
    unknown = guarded.post("/v1/completions", {"prompt": "a", "model": "gpt-4"}, **BEARER)
    assert unknown.status_code == 404


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
        assert (options.xtc_probability, options.xtc_threshold) == (0.5, 0.2)
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
    "/v1/completions": {"prompt": "def price", "max_tokens": 8},
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
