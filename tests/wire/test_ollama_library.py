"""The `ollama` library for Python, in every mode it has."""

from collections.abc import Iterator

import ollama
import pytest

from tests.server.live import LiveServer

GREEDY = {"num_predict": 8, "temperature": 0}


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[ollama.Client]:
    with ollama.Client(host=live.url) as client:
        yield client


def test_it_generates(client: ollama.Client) -> None:
    whole = client.generate("ember", "def mean(values):", options=GREEDY)
    parts = client.generate("ember", "def mean(values):", options=GREEDY, stream=True)
    assert "".join(part.response or "" for part in parts) == whole.response
    assert whole.eval_count == 8
    assert whole.context


def test_it_fills_a_gap(client: ollama.Client) -> None:
    filled = client.generate("ember", "def a(x):\n", suffix="\n\ndef b(x):\n", options=GREEDY)
    assert filled.done


def test_it_chats(client: ollama.Client) -> None:
    messages = [{"role": "user", "content": "hello"}]
    whole = client.chat("ember", messages, options=GREEDY)
    parts = client.chat("ember", messages, options=GREEDY, stream=True)
    assert "".join(part.message.content or "" for part in parts) == whole.message.content


def test_it_asks_for_json(client: ollama.Client) -> None:
    answer = client.generate("ember", "{", format="json", options=GREEDY)
    assert (answer.response or "").lstrip().startswith("{")


def test_it_asks_about_models(client: ollama.Client) -> None:
    (model,) = client.list().models
    assert model.model == "ember:latest"
    assert client.show(model.model).capabilities == ["completion", "insert"]
    (running,) = client.ps().models
    assert running.context_length == 2048


def test_it_raises_what_is_refused(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="context") as error:
        client.generate("ember", "words " * 4096)
    assert error.value.status_code == 400
