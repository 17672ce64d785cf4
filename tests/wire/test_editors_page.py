"""docs/editors.md against a live server: its scripts run, and every address in it answers."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.server.live import LiveServer

PAGE = (Path(__file__).parents[2] / "docs" / "editors.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"
BASES = ("", "/", "/v1")
"""Addresses that clients add a path of their own to."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_settings_parse() -> None:
    assert len([json.loads(block) for block in blocks("json")]) == 2
    assert len([tomllib.loads(block) for block in blocks("toml")]) == 1


def test_every_address_answers(live: LiveServer) -> None:
    paths = set(re.findall(rf"{ADDRESS}(/[\w/]*)?", PAGE)) - set(BASES)
    paths |= set(re.findall(r"`(/[\w/-]+)`", PAGE))
    assert len(paths) >= 18
    for path in paths:
        answered = {live.get(path).status_code, live.post(path, {"prompt": 1}).status_code}
        assert answered & {200, 400}, path


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_curl_lines_answer(live: LiveServer) -> None:
    lines = re.findall(r"^\$ (curl .*)$", PAGE, re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        command = line.replace(ADDRESS, live.url).replace("curl -s", "curl --fail -s", 1)
        ran = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
        assert ran.returncode == 0, line
        assert ran.stdout, line


def test_the_script_runs(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = blocks("python")
    exec(compile(script.replace(ADDRESS, live.url), "editors.md", "exec"), {})
    assert "accepted_prediction_tokens=" in capsys.readouterr().out
