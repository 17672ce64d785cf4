"""`launch`: what each client is started with, by a client that prints it, and when it is not."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import akunu_py
from akunu_py.__main__ import main
from akunu_py.cli.launch import CLIENTS, Served
from akunu_py.model.library import LocalModel
from akunu_py.server.pool import Pool
from akunu_py.server.settings import KEY_VARIABLE, ServerSettings
from tests.qwen import POOL, add_modules, write_qwen
from tests.server.live import KEY, serve_pool
from tests.tiny_model import write_tiny_model

FAKE = """#!{python}
import json, os, sys
print(json.dumps({{"words": sys.argv[1:], "variables": dict(os.environ)}}))
sys.exit(7)
"""
LONG = 131_072

pytestmark = pytest.mark.usefixtures("clients")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with a key and three models, the first for embeddings, the next with
    a long context."""
    place = tmp_path_factory.mktemp("models")
    found = [LocalModel(name, place / name) for name in ("vectors", "long", "short")]
    add_modules(write_qwen(found[0].folder, max_position_embeddings=LONG), POOL)
    write_tiny_model(found[1].folder, max_position_embeddings=LONG)
    write_tiny_model(found[2].folder)
    settings = ServerSettings(api_key=KEY)
    load = lambda model, _: akunu_py.load(str(model.folder))  # noqa: E731
    with serve_pool(Pool(load, settings, found), wait_until_loaded=False) as live:
        yield live.url


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which all clients are that print what they are started with."""
    for name in CLIENTS:
        (tmp_path / name).write_text(FAKE.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    return tmp_path


def at(server: str) -> list[str]:
    host, _, port = server.removeprefix("http://").rpartition(":")
    return ["--host", host, "--port", port]


def started(client: str, server: str, *words: str) -> tuple[list[str], dict[str, str]]:
    """The arguments and the variables of a client."""
    command = [sys.executable, "-m", "akunu_py", "launch", client, *at(server), "--", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 7, done.stderr  # the client's
    said = json.loads(done.stdout)
    return said["words"], said["variables"]


def test_codex_gets_a_provider(server: str) -> None:
    words, variables = started("codex", server, "exec", "-c", "a=1", "-c", "a=1", "--", "x")
    *settings, last = [words[at] for at in range(1, 9, 2)]
    assert words[0:8:2] == ["-c"] * 4
    assert settings[:2] == ['model="long"', 'model_provider="akunu_py"']
    assert f'base_url = "{server}/v1"' in settings[2]
    assert 'wire_api = "responses"' in settings[2]
    assert f'env_key = "{KEY_VARIABLE}"' in settings[2]
    assert last == f"model_context_window={LONG}"
    assert words[8:] == ["exec", "-c", "a=1", "-c", "a=1", "--", "x"]
    assert variables[KEY_VARIABLE] == KEY
    assert KEY not in " ".join(words)  # which other users see


def test_codex_can_read_every_name() -> None:
    name = "a \"b\" 'é' 🙂\\x"
    _, words = CLIENTS["codex"].setup(Served("http://a", KEY, name, LONG, 1))
    assert tomllib.loads("\n".join(words[1::2]))["model"] == name


def test_claude_gets_one_model_for_all_its_roles(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "of the user's account")
    words, variables = started("claude", server, "-p", "Hello")
    assert words == ["-p", "Hello"]
    models = {name: value for name, value in variables.items() if name.endswith("_MODEL")}
    assert set(models.values()) == {"long"}
    assert {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"} < set(models)
    assert variables["ANTHROPIC_BASE_URL"] == server
    assert variables["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert variables["ANTHROPIC_API_KEY"] == ""
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(LONG)
    assert int(variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) < LONG // 4


def test_opencode_gets_a_configuration(server: str) -> None:
    words, variables = started("opencode", server)
    assert words == []
    config: dict[str, Any] = json.loads(variables["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == config["small_model"] == "akunu_py/long"
    provider = config["provider"]["akunu_py"]
    assert provider["options"] == {"baseURL": f"{server}/v1", "apiKey": "{env:AKUNU_API_KEY}"}
    assert provider["models"]["long"]["limit"]["context"] == LONG


def test_aider_gets_an_address(server: str) -> None:
    words, variables = started("aider", server, "a.py")
    assert words == ["--model", "openai/long", "--no-show-model-warnings", "a.py"]
    assert (variables["OPENAI_API_BASE"], variables["OPENAI_API_KEY"]) == (f"{server}/v1", KEY)


def test_the_command_can_be_printed_without_the_key(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "claude", *at(server), "--print", "--", "-p", "Hi there"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("claude -p 'Hi there'\n")
    assert f"ANTHROPIC_AUTH_TOKEN=${KEY_VARIABLE} " in said
    assert KEY not in said


def test_the_page_says_what_each_client_needs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
    for name, client in CLIENTS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert row.endswith(f"| {client.tokens:,} |")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["codex", "--model", "short"],
         "Codex needs a context of 20,000 tokens, but that of short has 1,024; give --model long."),
        (["claude", "--model", "missing"],
         "The server has no model missing that generates text; it has long, short."),
        (["claude", "--model", "sh"],
         "The server has no model sh that generates text; did you mean short?"),
        (["claude", "--model", "vectors"],
         "The server has no model vectors that generates text; it has long, short."),
        (["aider", "--host", "a b"], "There is no server at http://a b:"),
        (["aider", "--host", "[::1]"], "There is no server at http://[[::1]]:"),
        (["cursor"], "'cursor' is not one of codex, claude, opencode, aider"),
        (["codex", "--port", "1"], "There is no server at http://127.0.0.1:1/v1/models (.*); "
         "start one with `akunu-py serve --model NAME`"),
        (["codex", "--api-key-file", "/dev/null"], "The server's key must be one line"),
        (["codex", "exec"], "launch does not take the argument exec"),
    ],
)  # fmt: skip
def test_it_says_why_it_starts_nothing(
    server: str, words: list[str], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    client, *rest = words
    assert main(["launch", client, *at(server), *rest]) == 2
    said = capfd.readouterr().err
    first, _, last = why.partition("(.*)")
    assert said.count("\n") == 1
    assert first in said
    assert last in said


def test_a_wrong_key_and_a_missing_client_are_told(
    clients: Path, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (clients / "aider").unlink()
    assert main(["launch", "aider", *at(server)]) == 2
    assert "aider is not installed; run `python -m pip install" in capsys.readouterr().err
    monkeypatch.setenv(KEY_VARIABLE, "wrong")
    assert main(["launch", "codex", *at(server)]) == 2
    assert f"answered with status 401; see {KEY_VARIABLE}" in capsys.readouterr().err


def test_a_proxy_is_not_asked_for_this_machine(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "friend.example")
    _, variables = started("aider", server)
    assert variables["no_proxy"] == "friend.example,127.0.0.1"
    assert variables["NO_PROXY"] == "127.0.0.1"


@pytest.mark.parametrize(
    "answer",
    [
        [],
        None,
        {"a": 1},
        [5],
        [{"id": "a"}],
        [{"id": "a", "meta": {"n_ctx": "x"}, "capabilities": ["completion"]}],
    ],
)
def test_the_answer_of_another_program_is_told(
    answer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("akunu_py.cli.launch.ask_server", lambda *_: answer)
    assert main(["launch", "codex"]) == 2
    assert "offers no model that generates text" in capsys.readouterr().err
