"""The bodies of editors that speak to an Ollama server, what each reads, and the `ollama` library.

Bodies as of Continue 1.2 (`core/llm/llms/Ollama.ts`), Zed 0.2xx (`crates/ollama` and its edit
predictions) and Twinny 3 (`fim-dialects.ts`).
"""

from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from tests.server.live import LiveServer

PREFIX = "def mean(values):\n    total = "
SUFFIX = "\n    return total / len(values)\n"


FILL = f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"
HELLO = {"role": "user", "content": "hello"}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Continue fills a gap": ("/api/generate", {
        "model": "ember", "prompt": PREFIX, "suffix": SUFFIX, "keep_alive": 1800, "stream": True,
        "options": {
            "temperature": 0.01, "num_predict": 16, "num_ctx": 2048,
            "stop": ["\n\n", "/src/", "#- coding: utf-8", "```", "\ndef", "\nclass",
                     "\r\n\r\n"],
        },
    }),
    "Continue chats": ("/api/chat", {
        "model": "ember", "messages": [{"role": "system", "content": "You are brief."}, HELLO],
        "options": {"num_predict": 8, "num_ctx": 2048}, "keep_alive": 1800, "stream": True,
    }),
    "Zed predicts an edit": ("/api/generate", {
        "model": "ember", "prompt": FILL, "raw": True, "stream": False,
        "options": {"num_predict": 16, "temperature": 0.2,
                    "stop": ["<|endoftext|>", "<|file_sep|>"]},
    }),
    "Zed asks the agent": ("/api/chat", {
        "model": "ember:latest", "messages": [HELLO], "stream": True, "keep_alive": -1,
        "options": {"num_ctx": 2048, "num_predict": 8, "stop": [], "temperature": 1.0},
        "tools": [], "think": None,
    }),
    "Twinny fills a gap": ("/api/generate", {
        "model": "ember", "prompt": FILL, "stream": True, "keep_alive": "5m",
        "options": {
            "temperature": 0.2, "num_predict": 16,
            "stop": ["<|endoftext|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        },
    }),
}  # fmt: skip


@pytest.mark.parametrize("client", BODIES)
def test_every_line_has_what_clients_read(live: LiveServer, client: str) -> None:
    path, body = BODIES[client]
    *parts, last = live.lines(path, body)
    assert [part["done"] for part in parts] == [False] * len(parts)
    assert (last["done"], last["prompt_eval_count"] > 0, last["eval_count"] > 0) == (True,) * 3
    for line in (*parts, last):
        assert isinstance(line["created_at"], str)
        text = line["message"]["content"] if path == "/api/chat" else line["response"]
        assert isinstance(text, str)
        assert path == "/api/generate" or line["message"]["role"] == "assistant"


def test_twinnys_own_layout_of_a_gap_is_not_put_into_a_template(live: LiveServer) -> None:
    path, body = BODIES["Twinny fills a gap"]
    raw = live.lines(path, body | {"raw": True, "stream": False})[0]
    assert live.lines(path, body)[-1]["prompt_eval_count"] == raw["prompt_eval_count"]


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[ollama.Client]:
    with ollama.Client(host=live.url) as client:
        yield client


def test_it_asks_about_models(client: ollama.Client) -> None:
    model, *_ = client.list().models  # the others are its aliases
    assert model.model == "ember:latest"
    assert client.show(model.model).capabilities == ["completion", "insert"]
    (running,) = client.ps().models
    assert running.context_length == 2048


def test_a_refused_request_raises(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="context") as error:
        client.generate("ember", "words " * 4096)
    assert error.value.status_code == 400
