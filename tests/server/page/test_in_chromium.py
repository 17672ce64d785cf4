"""The status page in a browser: what a person sees and does. Skipped where there is no Chromium."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import akunu_py
from akunu_py.server.settings import ServerSettings
from benchmarks.chromium import Tab, find_chromium, open_tab
from tests.server.live import LiveServer, serve

chromium = find_chromium()
pytestmark = pytest.mark.skipif(chromium is None, reason="there is no Chromium here")


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


def test_it_tells_what_is_served_and_breaks_no_rule(tab: Tab, live: LiveServer) -> None:
    open_page(tab, live)
    assert text_of(tab, "model") == "tiny"
    assert "context 1,024" in text_of(tab, "device")
    assert tab.complaints == []


def test_a_completion_comes_with_its_drafts_coloured(tab: Tab, live: LiveServer) -> None:
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


@pytest.mark.parametrize("width", [320, 390, 800, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_window(tab: Tab, live: LiveServer, width: int, *, dark: bool) -> None:
    tab.show_in(width=width, dark=dark)
    open_page(tab, live)
    assert tab.run("document.documentElement.scrollWidth") == width


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


def test_what_is_refused_is_told(tab: Tab, live: LiveServer) -> None:
    open_page(tab, live)
    fill_in(tab, "prompt", "a" * 2000)
    click(tab, "run")
    tab.wait_for("document.getElementById('result').textContent.includes('context')")


def test_it_asks_for_the_key_and_keeps_it(tab: Tab, tiny_model_dir: Path) -> None:
    settings = ServerSettings(api_key="secret")
    with serve(lambda: akunu_py.load(str(tiny_model_dir)), settings) as locked:
        tab.open(f"{locked.url}/")
        tab.wait_for("!document.getElementById('ask-key').hidden")
        fill_in(tab, "key", "wrong")
        tab.run("document.getElementById('ask-key').requestSubmit()")
        tab.wait_for("document.getElementById('key-error').textContent !== ''")
        fill_in(tab, "key", "secret")
        tab.run("document.getElementById('ask-key').requestSubmit()")
        tab.wait_for("!document.getElementById('board').hidden")
        assert tab.run("document.getElementById('ask-key').hidden")
        open_page(tab, locked)
