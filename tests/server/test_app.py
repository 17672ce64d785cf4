"""What holds for every request, whatever it asks."""

from pathlib import Path

import httpx2
import pytest

import akunu_py
from akunu_py.server.settings import ServerSettings
from tests.server.live import LiveServer, serve


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/completion", 405), ("DELETE", "/health", 405)],
)
def test_paths_and_methods_that_are_nobodys_are_told_in_json(
    live: LiveServer, method: str, path: str, status: int
) -> None:
    response = live.client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == status
    assert path in response.json()["error"]["message"]


def test_the_log_says_why_a_request_was_refused(live: LiveServer) -> None:
    live.post("/infill", {"prompt": "a secret"})
    line = live.log.wait_for("POST /infill 400")
    assert line.endswith("ms: `input_prefix` is missing.")
    assert "secret" not in line


def test_prompts_are_logged_for_those_who_ask_for_it(
    live: LiveServer, tiny_model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "akunu_py")
    body = {"prompt": "a secret", "n_predict": 1}
    assert live.post("/completion", body).status_code == 200
    assert "a secret" not in caplog.text
    told = ServerSettings(log_prompts=True)
    with serve(lambda: akunu_py.load(str(tiny_model_dir)), told) as telling:
        assert telling.post("/completion", body).status_code == 200
    assert "prompt: 'a secret'" in caplog.text


def test_a_body_that_is_no_json_is_told_in_json(live: LiveServer) -> None:
    response = live.client.post("/completion", content=b"{")
    assert response.status_code == 400
    assert "not valid JSON" in response.json()["error"]["message"]


def test_answers_without_an_engine_behind_them(live: LiveServer) -> None:
    assert live.get("/health").json() == {"status": "ok"}


def test_a_client_may_ask_again_on_the_same_connection(live: LiveServer) -> None:
    with httpx2.Client(base_url=live.url, timeout=60) as client:
        for _ in range(3):
            answer = client.post("/completion", json={"prompt": "a", "n_predict": 1})
            assert answer.status_code == 200
