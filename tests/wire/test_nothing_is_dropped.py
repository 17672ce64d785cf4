"""Fields that change what an answer means are honoured, or refused by name, on every endpoint; and
the small endpoints by which clients find out what a server can do."""

import json
import re
from typing import Any

import pytest

from tests.server.live import LiveServer

USER = [{"role": "user", "content": "Name a color."}]
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": "a", "n_predict": 40},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 40},
    "/v1/completions": {"prompt": "a", "max_tokens": 40},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 40},
}


def text_of(answer: Any) -> str:
    (choice,) = answer["choices"] if "choices" in answer else [{"text": answer.get("content")}]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": {"enum": ["red"]}},
        {"guided_json": {"enum": ["red"]}},
        {"grammar": 'root ::= "\\"red\\""'},
        {"regex": '"red"'},
        {"guided_regex": '"red"'},
        {"structured_outputs": {"regex": '"red"'}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_grammars_of_every_name(live: LiveServer, path: str, fields: dict[str, Any]) -> None:
    answer = live.post(path, ENDPOINTS[path] | fields)
    assert answer.status_code == 200, answer.text
    assert json.loads(text_of(answer.json())) == "red"


@pytest.mark.parametrize("path", [*ENDPOINTS, "/api/generate"])
@pytest.mark.parametrize(
    "field",
    [{"mirostat": 2}, {"dry_multiplier": 0.8}, {"typical_p": 0.9}, {"dynatemp_range": 0.5},
     {"top_n_sigma": 1.5}],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_samplers_that_are_not_served_are_refused_by_name(
    live: LiveServer, path: str, field: dict[str, Any]
) -> None:
    body = ENDPOINTS.get(path, {}) | field
    if path == "/api/generate":
        body = {"prompt": "a", "options": field}
    answer = live.post(path, body)
    assert answer.status_code == 400
    assert f"{next(iter(field))}` is not supported" in answer.text


def test_samplers_that_are_turned_off_are_accepted(live: LiveServer) -> None:
    """As SillyTavern and llama-server's own page send them."""
    off = {"mirostat": 0, "dry_multiplier": 0.0, "typical_p": 1.0, "dynatemp_range": 0,
           "top_n_sigma": -1, "dry_base": 1.75, "cache_prompt": True}  # fmt: skip
    assert live.post("/completion", {"prompt": "a", "n_predict": 1} | off).status_code == 200


def test_ollamas_logprobs(live: LiveServer) -> None:
    body = {"prompt": "a", "raw": True, "logprobs": True, "top_logprobs": 2,
            "options": {"num_predict": 3, "temperature": 0}}  # fmt: skip
    whole = live.post("/api/generate", body | {"stream": False}).json()
    assert "".join(each["token"] for each in whole["logprobs"]) == whole["response"]
    for each in whole["logprobs"]:
        assert each["top_logprobs"][0]["token"] == each["token"]
    lines = live.lines("/api/generate", body)
    streamed = [each["token"] for line in lines for each in line.get("logprobs", [])]
    assert streamed == [each["token"] for each in whole["logprobs"]]


def test_a_bias_by_text(live: LiveServer) -> None:
    body = {"prompt": "x", "n_predict": 1, "temperature": 0}
    (token,) = live.post("/tokenize", {"content": "q"}).json()["tokens"]
    for name in ("q", token):
        answer = live.post("/completion", body | {"logit_bias": [[name, 1000]]}).json()
        assert answer["content"] == "q"


def test_a_prompt_may_be_an_object(live: LiveServer) -> None:
    body = {"n_predict": 4, "temperature": 0}
    plain = live.post("/completion", body | {"prompt": "import os"}).json()["content"]
    for prompt in ({"prompt_string": "import os"}, [{"prompt_string": "import os"}]):
        assert live.post("/completion", body | {"prompt": prompt}).json()["content"] == plain
    image = {"prompt_string": "a", "multimodal_data": ["aGk="]}
    assert live.post("/completion", body | {"prompt": image}).status_code == 400


def test_progress_is_reported_while_the_prompt_is_read(live: LiveServer) -> None:
    asked = {"stream": True, "return_progress": True, "n_predict": 3, "temperature": 0}
    asked |= {"timings_per_token": True}
    turns = {"messages": [{"role": "user", "content": "Hi, it is progress"}]}
    for path, prompt in (("/completion", {"prompt": "progress"}), ("/v1/chat/completions", turns)):
        parts = live.events(path, asked | prompt)
        reports = [part for part in parts if "prompt_progress" in part]
        assert reports == parts[: len(reports)]
        told = [report["prompt_progress"] for report in reports]
        assert told[0]["processed"] == told[0]["cache"] < told[-1]["processed"]
        assert told[-1]["processed"] == told[-1]["total"]
        assert {each["total"] for each in told} == {told[0]["total"]}
        begun, *_, done = (report["timings"] for report in reports)
        assert (begun["prompt_n"], begun["prompt_ms"], begun["predicted_n"]) == (0, 0, 0)
        assert done["prompt_n"] == told[0]["total"] - told[0]["cache"]


def test_probabilities_may_be_those_that_tokens_are_drawn_with(live: LiveServer) -> None:
    body = {"prompt": "hello", "n_predict": 4, "n_probs": 5, "seed": 1, "post_sampling_probs": True}
    drawn = live.post("/completion", body | {"temperature": 1, "samplers": ["top_k", "temperature"],
                                             "top_k": 3}).json()  # fmt: skip
    for entry in drawn["completion_probabilities"]:
        assert sum(other["prob"] for other in entry["top_probs"]) == pytest.approx(1)
        assert len(entry["top_probs"]) == 3
        assert entry["prob"] in [other["prob"] for other in entry["top_probs"]]
    greedy = live.post("/completion", body | {"temperature": 0}).json()
    for entry in greedy["completion_probabilities"]:
        assert [other["prob"] for other in entry["top_probs"]] == [entry["prob"]] == [1]
    chat = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "temperature": 0}
    told = live.post("/v1/chat/completions", chat | {"post_sampling_probs": True, "max_tokens": 2})
    assert {entry["logprob"] for entry in told.json()["choices"][0]["logprobs"]["content"]} == {0}


def test_samplers_are_named_on_every_endpoint(live: LiveServer) -> None:
    body = {"prompt": "hello", "max_tokens": 8, "samplers": ["top_k"], "top_k": 1, "temperature": 9}
    greedy = live.post("/v1/completions", {"prompt": "hello", "max_tokens": 8, "temperature": 0})
    told = live.post("/v1/completions", body).json()["choices"][0]["text"]
    assert told == greedy.json()["choices"][0]["text"]


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "fields", [{"guided_choice": ['red "x"', "rot"]}, {"structured_outputs": {"choice": ["rot"]}}]
)
def test_one_of_some_texts(live: LiveServer, path: str, fields: dict[str, Any]) -> None:
    assert text_of(live.post(path, ENDPOINTS[path] | fields).json()) in ('red "x"', "rot")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", {"include_stop_str_in_output": True}),
        ("/v1/chat/completions", {"truncate_prompt_tokens": 5}),
        ("/v1/chat/completions", {"modalities": ["text", "audio"]}),
        ("/v1/chat/completions", {"web_search_options": {}}),
        ("/v1/chat/completions", {"reasoning_format": "none"}),
        ("/v1/completions", {"prompt_logprobs": 1}),
        ("/v1/completions", {"prompt_embeds": "x"}),
        ("/completion", {"image_data": [{"id": 1, "data": "x"}]}),
        ("/completion", {"lora": [{"id": 0, "scale": 1}]}),
        ("/v1/messages", {"mcp_servers": [{"type": "url", "url": "http://a"}]}),
        ("/v1/messages", {"container": "x"}),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    live: LiveServer, path: str, field: dict[str, Any]
) -> None:
    answer = live.post(path, ENDPOINTS.get(path, {"messages": USER, "max_tokens": 2}) | field)
    assert answer.status_code == 400
    assert f"{next(iter(field))}` is not supported" in answer.text


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
    for streams in (False, True):
        response = live.post(path, body | {"stream": streams})
        assert response.status_code == 400
        error = response.json()["error"]
        assert path == "/completion" or error["code"] == "context_length_exceeded"
    assert "exceeds the available context size" in error["message"]
    assert "This model's maximum context length is" in error["message"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] > 0


def test_claude_code_recognises_a_context_overflow(live: LiveServer) -> None:
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": LONG}]}
    response = live.post("/v1/messages", body)
    message = response.json()["error"]["message"]
    assert re.fullmatch(r"prompt is too long: \d+ tokens > \d+ maximum", message)


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
