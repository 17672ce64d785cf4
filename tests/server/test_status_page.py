"""The status page and its figures: over HTTP, and in a browser, if there is a Chromium."""

import json
from threading import Event
from typing import Any

import pytest

from akunu_py.engine import Engine
from tests.server.chromium import Tab
from tests.server.live import KEY, PATIENCE_S, LiveServer, serve

ASK = {"prompt": "abab" * 20, "n_predict": 12, "temperature": 0}


def test_the_figures_describe_the_model_the_machine_and_the_work(live: LiveServer) -> None:
    before = live.get("/status.json").json()
    answer = live.post("/completion", ASK).json()
    live.settle()
    after = live.get("/status.json").json()
    assert after["state"] == "ready"
    assert after["model"]["name"] == "tiny"
    assert after["model"]["context"] == 1024
    assert after["device"]["chip"]
    assert after["queue"] == {"processing": 0, "waiting": 0, "limit": 512, "parallel": 4}
    assert after["sequences"] == []
    assert after["why_in_turns"] is None
    assert after["answers"] == before["answers"] + 1
    assert any(cache["tokens"] >= 80 for cache in after["caches"])
    for sum_, figure in (
        ("generated_tokens", "predicted_n"),
        ("drafted", "draft_n"),
        ("accepted", "draft_n_accepted"),
        ("target_forwards", "forward_n"),
    ):
        assert after["sums"][sum_] - before["sums"][sum_] == answer["timings"].get(figure, 0)
    assert sum(after["sums"]["accepted_by_position"]) == after["sums"]["accepted"]


def test_costs_are_reported_once_they_are_known(live: LiveServer) -> None:
    live.post("/completion", ASK)
    level = live.get("/status.json").json()["costs"][0]
    assert level["step_ms"] > 0
    sizes = [size for size, _ in level["rounds_ms"]]
    assert sizes == sorted(sizes)
    assert sizes[0] == 1


def test_the_figures_are_available_while_the_model_loads(shared_engine: Engine) -> None:
    release = Event()

    def load() -> Engine:
        release.wait(PATIENCE_S)
        return shared_engine

    with serve(load, wait_until_loaded=False) as server:
        found = server.get("/status.json").json()
        release.set()
    assert found["state"] == "loading"
    assert found["sums"]["generated_tokens"] == 0
    assert "model" not in found


def test_polling_leaves_no_line_in_the_log(live: LiveServer) -> None:
    live.log.clear()
    live.get("/status.json")
    live.get("/nowhere")
    lines = [live.log.wait_for("GET")]
    while not lines[-1].startswith("GET (unknown)"):  # those of earlier tests may come late
        lines.append(live.log.wait_for("GET"))
    assert not any("status" in line for line in lines)


def text_of(tab: Tab, element: str) -> str:
    return str(tab.run(f"document.getElementById({json.dumps(element)}).textContent"))


def fill_in(tab: Tab, element: str, value: str) -> None:
    tab.run(f"document.getElementById({json.dumps(element)}).value = {json.dumps(value)}")


def open_page(tab: Tab, live: LiveServer) -> None:
    tab.complaints.clear()
    tab.open(f"{live.url}/status")
    tab.wait_for("!document.getElementById('board').hidden")


def test_it_shows_what_is_served_and_violates_no_policy(tab: Tab, live: LiveServer) -> None:
    open_page(tab, live)
    assert text_of(tab, "model") == "tiny"
    assert "context 1,024" in text_of(tab, "device")
    assert tab.complaints == []


def test_it_shows_the_costs_and_the_caches(tab: Tab, live: LiveServer) -> None:
    live.post("/completion", ASK)
    open_page(tab, live)
    assert tab.run("document.querySelectorAll('#caches tr').length") > 0
    tab.wait_for("document.querySelectorAll('#costs .dot').length > 0")
    assert tab.complaints == []


@pytest.mark.parametrize("width", [320, 390, 800, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_window(tab: Tab, live: LiveServer, width: int, *, dark: bool) -> None:
    tab.show_in(width=width, dark=dark)
    open_page(tab, live)
    full: dict[str, Any] = {
        "sequences": [
            {"id": 123, "kind": "completion", "phase": "waiting for memory", "prompt_tokens": 99999,
             "cached_tokens": 10000, "computed_tokens": 1000, "generated_tokens": 0,
             "max_tokens": None, "drafted": 12345, "accepted": 12345},
        ],
        "models": [
            {"name": "mlx-community/Qwen3.5-35B-A3B-Instruct-4bit-DWQ", "bytes": 2e10,
             "state": "loading", "requests": 123},
            {"name": "ember", "bytes": 2e7, "state": "ready", "requests": 0},
        ],
        "caches": [{"id": 15, "tokens": 99999, "capacity": 99999, "bytes": 1e9, "busy": True}],
    }  # fmt: skip
    now = json.dumps(live.get("/status.json").json() | full)
    tab.run(f"window.fetch = async () => new Response({json.dumps(now)})")
    tab.wait_for("document.getElementById('sequences').innerText.includes('memory')")
    assert tab.run("document.documentElement.scrollWidth") == width
    assert "19.1 MiB" in text_of(tab, "models")


def test_it_asks_for_the_key_and_keeps_it(tab: Tab, guarded: LiveServer) -> None:
    tab.open(f"{guarded.url}/status")
    for key, error in (("wrong", ""), (KEY, "That is not the key.")):
        tab.wait_for("document.getElementById('ask-key').open")
        assert text_of(tab, "key-error") == error
        fill_in(tab, "key", key)
        tab.run("document.querySelector('#ask-key form').requestSubmit()")
    tab.wait_for("!document.getElementById('board').hidden")
    assert not tab.run("document.getElementById('ask-key').open")
    open_page(tab, guarded)
