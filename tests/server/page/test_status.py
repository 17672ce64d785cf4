"""The status page and its figures, as HTTP sees them."""

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

import akunu_py
from akunu_py.engine import Engine
from akunu_py.server.settings import ServerSettings
from tests.server.live import PATIENCE_S, LiveServer, serve

ASK = {"prompt": "abab" * 20, "raw": True, "stream": False, "options": {"num_predict": 12}}


@pytest.fixture(scope="module")
def locked(tiny_model_dir: Path) -> Iterator[LiveServer]:
    settings = ServerSettings(api_key="secret")
    with serve(lambda: akunu_py.load(str(tiny_model_dir)), settings) as server:
        yield server


def test_the_page_needs_nothing_from_elsewhere(live: LiveServer) -> None:
    response = live.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"(src|href)=[\"'](?!data:)", response.text)
    assert not re.search(r"\son\w+=|\sstyle=", response.text)
    assert len(response.content) < 32_768


def test_the_page_may_run_its_own_script_alone(live: LiveServer) -> None:
    policy = live.get("/").headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert rules["script-src"].startswith("'sha256-")
    assert "unsafe" not in policy
    assert "*" not in policy


def test_somebody_is_there_for_clients_that_knock(live: LiveServer) -> None:
    response = live.client.request("HEAD", "/")
    assert (response.status_code, response.text) == (200, "")


def test_the_page_needs_no_key_but_its_figures_do(locked: LiveServer) -> None:
    assert locked.get("/").status_code == 200
    assert locked.get("/status").status_code == 401
    assert locked.get("/status", Authorization="Bearer secret").status_code == 200


def test_figures_are_of_the_model_the_machine_and_the_work(live: LiveServer) -> None:
    before = live.get("/status").json()
    answer = live.post("/api/generate", ASK | {"show_drafts": True}).json()
    live.settle()
    after = live.get("/status").json()
    assert after["state"] == "ready"
    assert after["model"]["name"] == "tiny"
    assert after["model"]["context"] == 1024
    assert after["device"]["chip"]
    assert after["queue"] == {"processing": 0, "waiting": 0, "limit": 32}
    assert after["answers"] == before["answers"] + 1
    assert any(cache["tokens"] >= 80 for cache in after["caches"])
    for sum_, figure in (
        ("generated_tokens", "eval_count"),
        ("drafted", "draft_count"),
        ("accepted", "draft_accepted_count"),
        ("target_forwards", "forward_count"),
    ):
        assert after["sums"][sum_] - before["sums"][sum_] == answer[figure]
    assert sum(after["sums"]["accepted_by_position"]) == after["sums"]["accepted"]


def test_costs_are_told_once_they_are_known(live: LiveServer) -> None:
    live.post("/api/generate", ASK)
    level = live.get("/status").json()["costs"][0]
    assert level["step_ms"] > 0
    sizes = [size for size, _ in level["rounds_ms"]]
    assert sizes == sorted(sizes)
    assert sizes[0] == 1


def test_figures_are_there_while_the_model_loads(shared_engine: Engine) -> None:
    release = Event()

    def load() -> Engine:
        release.wait(PATIENCE_S)
        return shared_engine

    with serve(load, waits=False) as server:
        found = server.get("/status").json()
        release.set()
    assert found["state"] == "loading"
    assert found["sums"]["generated_tokens"] == 0
    assert "model" not in found


def test_polling_leaves_no_line_in_the_log(live: LiveServer) -> None:
    live.get("/status")
    live.get("/nowhere-after-status")
    assert live.log.wait_for("status").startswith("GET /nowhere-after-status")
