"""The status page and its figures: over HTTP, and in a browser, if there is a Chromium."""

import json
import re
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from akunu_py.engine import Engine
from tests.server.chromium import Tab, find_chromium, open_tab
from tests.server.live import KEY, PATIENCE_S, LiveServer, serve

ASK = {"prompt": "abab" * 20, "raw": True, "stream": False, "options": {"num_predict": 12}}


def test_the_page_needs_nothing_from_elsewhere(live: LiveServer) -> None:
    response = live.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"(src|href)=[\"'](?!data:)", response.text)
    assert not re.search(r"\son\w+=|\sstyle=", response.text)
    assert len(response.content) < 32_768
    head = live.client.request("HEAD", "/")
    assert (head.status_code, head.text) == (200, "")


def test_the_page_may_run_its_own_script_alone(live: LiveServer) -> None:
    policy = live.get("/").headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert rules["script-src"].startswith("'sha256-")
    assert "unsafe" not in policy
    assert "*" not in policy


def test_the_figures_describe_the_model_the_machine_and_the_work(live: LiveServer) -> None:
    before = live.get("/status").json()
    answer = live.post("/api/generate", ASK | {"show_drafts": True}).json()
    live.settle()
    after = live.get("/status").json()
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
        ("generated_tokens", "eval_count"),
        ("drafted", "draft_count"),
        ("accepted", "draft_accepted_count"),
        ("target_calls", "forward_count"),
    ):
        assert after["sums"][sum_] - before["sums"][sum_] == answer[figure]
    assert sum(after["sums"]["accepted_by_position"]) == after["sums"]["accepted"]


def test_costs_are_reported_once_they_are_known(live: LiveServer) -> None:
    live.post("/api/generate", ASK)
    level = live.get("/status").json()["costs"][0]
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
        found = server.get("/status").json()
        release.set()
    assert found["state"] == "loading"
    assert found["sums"]["generated_tokens"] == 0
    assert "model" not in found


def test_polling_leaves_no_line_in_the_log(live: LiveServer) -> None:
    live.get("/status")
    live.get("/nowhere-after-status")
    assert live.log.wait_for("status").startswith("GET /nowhere-after-status")


chromium = find_chromium()
in_chromium = pytest.mark.skipif(chromium is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    assert chromium is not None
    with open_tab(chromium) as tab:
        yield tab


def text_of(tab: Tab, element: str) -> str:
    return str(tab.run(f"document.getElementById({json.dumps(element)}).textContent"))


def click(tab: Tab, element: str) -> None:
    tab.run(f"document.getElementById({json.dumps(element)}).click()")


def fill_in(tab: Tab, element: str, value: str) -> None:
    tab.run(f"document.getElementById({json.dumps(element)}).value = {json.dumps(value)}")


def open_page(tab: Tab, live: LiveServer) -> None:
    tab.complaints.clear()
    tab.open(f"{live.url}/")
    tab.wait_for("!document.getElementById('board').hidden")


@in_chromium
def test_it_shows_what_is_served_and_violates_no_policy(tab: Tab, live: LiveServer) -> None:
    open_page(tab, live)
    assert text_of(tab, "model") == "tiny"
    assert "context 1,024" in text_of(tab, "device")
    assert tab.complaints == []


@in_chromium
def test_a_completion_has_its_draft_tokens_coloured(tab: Tab, live: LiveServer) -> None:
    prompt = "abab" * 20
    body = {"prompt": prompt, "raw": True, "stream": False, "show_drafts": True}
    body["options"] = {"num_predict": 24, "temperature": 0}
    answer = live.post("/api/generate", body).json()
    open_page(tab, live)
    fill_in(tab, "prompt", prompt)
    fill_in(tab, "tokens", "24")
    click(tab, "run")
    tab.wait_for("document.getElementById('result').textContent.includes('24 tokens')")
    assert text_of(tab, "output") == answer["response"]
    marked = tab.run("[...document.querySelectorAll('#output mark')].map((m) => m.textContent)")
    assert all(isinstance(piece, str) for piece in marked)
    assert tab.run("document.querySelectorAll('#caches tr').length") > 0
    tab.wait_for("document.querySelectorAll('#costs .dot').length > 0")
    assert tab.complaints == []


@in_chromium
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
        "queue": {"parallel": 4},
        "model": {"context": 99999},
        "caches": [{"id": 15, "tokens": 99999, "capacity": 99999, "bytes": 1e9, "busy": True}],
    }  # fmt: skip
    tab.run(f"now = {json.dumps(full)}; showSequences(now); showCaches(now.caches)")
    assert tab.run("document.documentElement.scrollWidth") == width


@in_chromium
def test_a_gap_can_be_filled(tab: Tab, live: LiveServer) -> None:
    open_page(tab, live)
    tab.run(
        "document.getElementById('how').value = 'fill';"
        "document.getElementById('how').dispatchEvent(new Event('change'))"
    )
    assert tab.run("document.getElementById('fill').hidden") is False
    fill_in(tab, "prompt", "ab")
    fill_in(tab, "suffix", "cd")
    fill_in(tab, "tokens", "4")
    click(tab, "run")
    tab.wait_for("document.getElementById('result').textContent.includes(' 7 prompt tokens')")


@in_chromium
def test_it_shows_why_a_request_was_refused(tab: Tab, live: LiveServer) -> None:
    open_page(tab, live)
    fill_in(tab, "prompt", "a" * 2000)
    click(tab, "run")
    tab.wait_for("document.getElementById('result').textContent.includes('context')")


@in_chromium
def test_it_asks_for_the_key_and_keeps_it(tab: Tab, guarded: LiveServer) -> None:
    tab.open(f"{guarded.url}/")
    tab.wait_for("!document.getElementById('ask-key').hidden")
    fill_in(tab, "key", "wrong")
    tab.run("document.getElementById('ask-key').requestSubmit()")
    tab.wait_for("document.getElementById('key-error').textContent !== ''")
    fill_in(tab, "key", KEY)
    tab.run("document.getElementById('ask-key').requestSubmit()")
    tab.wait_for("!document.getElementById('board').hidden")
    assert tab.run("document.getElementById('ask-key').hidden")
    open_page(tab, guarded)
