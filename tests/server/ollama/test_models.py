"""What Ollama's clients ask about models."""

from datetime import UTC, datetime

import pytest

from tests.server.live import LiveServer


def test_there_is_one_model(live: LiveServer) -> None:
    (model,) = live.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == "tiny:latest"
    assert len(model["digest"]) == 64
    assert model["size"] > 0
    assert datetime.fromisoformat(model["modified_at"]) <= datetime.now(UTC)
    assert model["details"]["parameter_size"] == "337K"
    (running,) = live.get("/api/ps").json()["models"]
    assert running["digest"] == model["digest"]
    assert datetime.fromisoformat(running["expires_at"]) > datetime.now(UTC)
    assert running["context_length"] == 1024


def test_the_model_is_shown_under_any_name(live: LiveServer) -> None:
    for body in ({"model": "tiny:latest"}, {"name": "qwen2.5-coder:7b", "verbose": True}, {}):
        shown = live.post("/api/show", body).json()
        assert shown["model_info"]["general.architecture"] == "llama"
        assert shown["model_info"]["llama.context_length"] == 1024
        assert shown["model_info"]["general.parameter_count"] == 336_512
        assert shown["capabilities"] == ["completion", "insert"]
        assert ".Suffix" in shown["template"]


def test_the_version_is_one_that_clients_take(live: LiveServer) -> None:
    version = live.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_clients_see_that_somebody_is_there(live: LiveServer, method: str) -> None:
    assert live.client.request(method, "/api/tags").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/api/pull", 404), ("GET", "/api/chat", 405)]
)
def test_what_is_not_there_is_told_as_ollama_tells(
    live: LiveServer, method: str, path: str, status: int
) -> None:
    response = live.client.request(method, path)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
