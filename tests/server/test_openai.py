"""OpenAI's errors and models: which field is wrong, and what does not exist."""

from typing import Any

import pytest

from tests.server.live import LiveServer

TEXT: dict[str, Any] = {"prompt": "hello", "max_tokens": 2}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
USUAL = {
    "text": ("/v1/completions", TEXT),
    "fim": ("/v1/fim/completions", TEXT),
    "chat": ("/v1/chat/completions", CHAT),
}


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        ("text", {"prompt": None}, "prompt"),
        ("text", {"prompt": 3}, "prompt"),
        ("text", {"prompt": [1, "a"]}, "prompt[0]"),
        ("text", {"prompt": ["a"] * 17}, "prompt"),
        ("text", {"prompt": ["a"] * 9, "n": 2}, "prompt"),
        ("text", {"max_tokens": "many"}, "max_tokens"),
        ("text", {"temperature": -1}, "temperature"),
        ("text", {"top_p": 2}, "top_p"),
        ("text", {"presence_penalty": 2.5}, "presence_penalty"),
        ("text", {"frequency_penalty": "x"}, "frequency_penalty"),
        ("text", {"logprobs": 101}, "logprobs"),
        ("text", {"echo": True, "logprobs": 1, "suffix": "b"}, "logprobs"),
        ("text", {"n": 0}, "n"),
        ("text", {"best_of": 4}, "best_of"),
        ("text", {"suffix": 1}, "suffix"),
        ("text", {"stop": [1]}, "stop[0]"),
        ("text", {"stop": ["x"] * 65}, "stop"),
        ("text", {"stream": "yes"}, "stream"),
        ("text", {"stream_options": 1}, "stream_options"),
        ("text", {"logit_bias": {"": 1}}, "logit_bias"),
        ("text", {"prediction": {"type": "guess"}}, "prediction.type"),
        ("fim", {"prompt": None}, "prompt"),
        ("fim", {"prompt": ["a"]}, "prompt"),
        ("fim", {"suffix": 1}, "suffix"),
        ("fim", {"random_seed": "x"}, "random_seed"),
        ("fim", {"min_tokens": 3, "max_tokens": "x"}, "max_tokens"),
        ("chat", {"messages": []}, "messages"),
        ("chat", {"messages": None}, "messages"),
        ("chat", {"messages": [{"content": "a"}]}, "messages[0].role"),
        ("chat", {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ("chat", {"top_logprobs": 2}, "top_logprobs"),
        ("chat", {"tool_choice": "required"}, "tool_choice"),
        ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat", {"response_format": {"type": "xml"}}, "response_format.type"),
        (
            "chat",
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
        ),
        (
            "chat",
            {"chat_template_kwargs": {"enable_thinking": 1}},
            "chat_template_kwargs.enable_thinking",
        ),
    ],
)  # fmt: skip
def test_the_field_at_fault_is_named(
    live: LiveServer, endpoint: str, fields: dict[str, Any], param: str
) -> None:
    path, usual = USUAL[endpoint]
    response = live.post(path, usual | fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param in error["message"]


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
