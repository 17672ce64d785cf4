"""llama.vim itself, in a headless Neovim: what it shows and what it puts into the text.

Skipped unless `LLAMA_VIM` names a checkout of the plugin and there is a Neovim of 0.10 or newer:

    LLAMA_VIM=~/llama.vim python -m pytest tests/wire/test_llama_vim_plugin.py
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import akunu_py
from akunu_py.server.settings import Defaults, ServerSettings
from tests.server.live import LiveServer, serve

OLDEST = 0, 10
PLUGIN = os.environ.get("LLAMA_VIM")
PATIENCE_S = 120.0
CODE = """import math


def area(width, height):
    return width * height


def volume(width, height, depth):


def circumference(radius):
    return 2 * math.pi * radius
"""
SELECTED = 4, 5
GAP = 9
TYPED = "    return area(width, height) * depth"


def find_neovim() -> str | None:
    """The editor; None if there is none, or one too old for the plugin."""
    path = shutil.which("nvim")
    if path is None or PLUGIN is None:
        return None
    reported = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=True
    ).stdout
    version = re.match(r"NVIM v(\d+)\.(\d+)", reported)
    return path if version and tuple(map(int, version.groups())) >= OLDEST else None


NVIM = find_neovim()
pytestmark = pytest.mark.skipif(
    NVIM is None, reason="there is no newer Neovim, or LLAMA_VIM names no plugin"
)


@dataclass(frozen=True)
class Neovim:
    """An editor that is driven from outside.

    Attributes:
        address: of its socket.
    """

    address: Path

    def keys(self, keys: str) -> None:
        """Types them, as they are spelled in mappings."""
        self._ask("--remote-send", keys)

    def value(self, expression: str) -> Any:
        """The value of a Vimscript expression."""
        return json.loads(self._ask("--remote-expr", f"json_encode({expression})"))

    def wait_for(self, expression: str) -> Any:
        """The first value of it that is true."""
        patience = time.monotonic() + PATIENCE_S
        while not (value := self.value(expression)):
            assert time.monotonic() < patience, expression
        return value

    def lines(self) -> list[str]:
        """The text that is edited."""
        return list(self.value("getline(1, '$')"))

    def _ask(self, how: str, what: str) -> str:
        assert NVIM is not None
        command = [NVIM, "--server", str(self.address), how, what]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def shown(namespace: str, kind: str) -> str:
    """The expression for the virtual text that the plugin shows."""
    marks = (
        f"nvim_buf_get_extmarks(0, nvim_create_namespace('{namespace}'), 0, -1, {{'details': 1}})"
    )
    return f"flatten(map({marks}, {{_, mark -> get(mark[3], '{kind}', [])}}), 1)"


@pytest.fixture(scope="module")
def brief() -> Iterator[LiveServer]:
    """A server whose answers to instructions are short."""
    with serve(akunu_py.load, ServerSettings(defaults=Defaults(max_tokens=16))) as server:
        yield server


@pytest.fixture
def editor(brief: LiveServer, tmp_path: Path) -> Iterator[Neovim]:
    """An editor with some code in it."""
    file, address = tmp_path / "shapes.py", tmp_path / "nvim.sock"
    file.write_text(CODE)
    config = {
        "endpoint_fim": f"{brief.url}/infill",
        "endpoint_inst": f"{brief.url}/v1/chat/completions",
    }
    command = [
        *(str(NVIM), "--headless", "-u", "NONE", "-n", "--listen", str(address)),
        *("--cmd", f"set rtp^={PLUGIN}", "--cmd", f"let g:llama_config = {json.dumps(config)}"),
        *("-c", "runtime plugin/llama.vim", str(file)),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not address.exists():
            assert process.poll() is None
        yield Neovim(address)
        process.kill()


def test_suggestions_are_shown_while_typing_and_can_be_accepted(
    editor: Neovim, brief: LiveServer
) -> None:
    editor.keys(f"{GAP}GO")
    line = suggestion = ""
    while not suggestion.strip():
        line = TYPED[: len(line) + 1]
        editor.keys(line[-1].replace(" ", "<Space>"))
        editor.wait_for(f"getline('.') ==# {json.dumps(line)}")
        editor.wait_for("llama#is_fim_hint_shown()")
        suggestion = editor.value(shown("vt_fim", "virt_text"))[0][0]
        assert line != TYPED or suggestion.strip()
    assert " 200 " in brief.log.wait_for("POST /infill")
    editor.keys("<S-Tab>")
    editor.wait_for(f"getline({GAP}) !=# {json.dumps(line)}")
    assert editor.lines()[GAP - 1] == line + suggestion


def test_the_result_of_an_instruction_replaces_the_selection(editor: Neovim) -> None:
    first, last = SELECTED
    editor.keys(f"{first}GV{last}G:LlamaInstruct<CR>Rename width to w<CR>")
    ready = f"{shown('vt_inst', 'virt_lines')}->map({{_, line -> line[0]}})"
    reported = editor.wait_for(f"filter({ready}, {{_, part -> part[1] =~# 'ready'}})")
    answer = [text for text, _ in reported[1:-1]]
    before = editor.lines()
    editor.keys("<Tab>")
    editor.wait_for(f"empty({shown('vt_inst', 'virt_lines')})")
    assert answer
    assert editor.lines() == [*before[: first - 1], *answer, *before[last:]]
