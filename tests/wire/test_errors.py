"""Errors and small endpoints by which clients find out what a server can do."""

from typing import Any

import pytest

from tests.server.live import LiveServer

LONG = "word " * 20_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": LONG}),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/responses", {"input": LONG}),
    ],
)
def test_litellm_recognises_a_context_overflow(
    live: LiveServer, path: str, body: dict[str, Any]
) -> None:
    error = live.post(path, body).json()["error"]
    assert "exceeds the available context size" in error["message"]
    assert "This model's maximum context length is" in error["message"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] > 0


@pytest.mark.parametrize(
    "path",
    ["/embedding", "/embeddings", "/v1/embeddings", "/api/embed", "/api/embeddings", "/rerank",
     "/reranking", "/v1/rerank"],
)  # fmt: skip
def test_embeddings_are_not_implemented(live: LiveServer, path: str) -> None:
    answer = live.post(path, {"input": "a"})
    assert answer.status_code == 501
    assert "llama-server --embedding" in answer.text


def test_continues_other_providers_find_their_endpoints(live: LiveServer) -> None:
    gap = {"prompt": "def a():\n", "suffix": "\n", "max_tokens": 2, "stream": False}
    filled = live.post("/fim/completions", gap).json()
    assert isinstance(filled["choices"][0]["message"]["content"], str)
    beta = live.post("/v1/beta/completions", gap | {"model": "deepseek-chat"}).json()
    assert isinstance(beta["choices"][0]["text"], str)
    assert beta["system_fingerprint"]


def test_the_length_of_a_prompt_can_be_asked_for(live: LiveServer) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    counted = live.post("/v1/chat/completions/input_tokens", body).json()
    usage = live.post("/v1/chat/completions", body).json()["usage"]
    assert counted["input_tokens"] == usage["prompt_tokens"]


def test_there_are_no_adapters_to_choose_from(live: LiveServer) -> None:
    assert live.get("/lora-adapters").json() == []
