"""OpenAI's errors and models: which field is wrong, and what does not exist."""

from typing import Any

import pytest

from tests.server.live import LiveServer

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
TEXT = {"prompt": "hello", "max_tokens": 2}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[0]"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": ["a"] * 9, "n": 2}, "prompt"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": "x"}, "frequency_penalty"),
        ({"logprobs": 101}, "logprobs"),
        ({"echo": True, "logprobs": 1, "suffix": "b"}, "logprobs"),
        ({"n": 0}, "n"),
        ({"best_of": 4}, "best_of"),
        ({"suffix": 1}, "suffix"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 1}, "stream_options"),
        ({"logit_bias": {"": 1}}, "logit_bias"),
        ({"prediction": {"type": "guess"}}, "prediction.type"),
    ],
)
def test_completions_name_the_field_at_fault(
    live: LiveServer, fields: dict[str, Any], param: str
) -> None:
    response = live.post("/v1/completions", TEXT | fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"suffix": 1}, "suffix"),
        ({"random_seed": "x"}, "random_seed"),
        ({"min_tokens": 3, "max_tokens": "x"}, "max_tokens"),
    ],
)
def test_gaps_name_the_field_at_fault(live: LiveServer, fields: dict[str, Any], param: str) -> None:
    response = live.post("/v1/fim/completions", TEXT | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
    ],
)
def test_chats_name_the_field_at_fault(
    live: LiveServer, fields: dict[str, Any], param: str
) -> None:
    response = live.post("/v1/chat/completions", CHAT | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_prompt_that_does_not_fit_has_openais_code(live: LiveServer) -> None:
    for streams in (False, True):
        body = {"prompt": "x" * 2000, "stream": streams}
        response = live.post("/v1/completions", body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nowhere", 404), ("GET", "/v1/completions", 405), ("POST", "/v1/models", 405)],
)
def test_unknown_paths_below_v1_have_openais_errors(
    live: LiveServer, method: str, path: str, status: int
) -> None:
    response = live.client.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_there_is_one_openai_model(live: LiveServer) -> None:
    for path in ("/v1/models", "/models"):
        (entry,) = live.get(path).json()["data"]
        assert (entry["id"], entry["object"]) == ("tiny", "model")
        assert entry["meta"]["n_ctx"] == 1024
    assert live.get("/v1/models/tiny").json() == entry
    assert live.get("/v1/models/owner/other").status_code == 404
