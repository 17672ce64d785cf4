"""Ollama's `/api/generate`, and what its clients ask about models."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from akunu_py.server.wire import json_line
from tests.server.live import LiveServer
from tests.tiny_model import SPECIAL_TOKENS

PATH = "/api/generate"
GREEDY = {"num_predict": 6, "temperature": 0}


def ask(live: LiveServer, **fields: Any) -> Any:
    body = {"model": "tiny", "prompt": "hello", "stream": False, "options": GREEDY} | fields
    response = live.post(PATH, body)
    assert response.status_code == 200, response.text
    return response.json()


def stream(live: LiveServer, **fields: Any) -> list[Any]:
    response = live.post(PATH, {"model": "tiny", "prompt": "hello", "options": GREEDY} | fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_an_answer_has_what_clients_read(live: LiveServer) -> None:
    answer = ask(live)
    assert answer["model"] == "tiny:latest"
    assert answer["done"] is True
    assert answer["done_reason"] == "length"
    assert answer["eval_count"] == 6
    assert answer["prompt_eval_count"] + 6 == len(answer["context"])
    durations = [answer[name] for name in ("prompt_eval_duration", "eval_duration")]
    assert all(type(duration) is int and duration > 0 for duration in durations)
    assert answer["total_duration"] > sum(durations)
    age = datetime.now(UTC) - datetime.fromisoformat(answer["created_at"])
    assert abs(age.total_seconds()) < 60


def test_streams_unless_told_otherwise(live: LiveServer) -> None:
    *parts, last = stream(live)
    whole = ask(live)
    assert "".join(part["response"] for part in parts) == whole["response"]
    assert all(part["done"] is False and part["created_at"] for part in parts)
    assert (last["done"], last["response"], last["eval_count"]) == (True, "", 6)
    assert last["context"] == whole["context"]


def test_drafted_pieces_are_marked_on_request(live: LiveServer) -> None:
    *parts, last = stream(live, show_drafts=True, prompt="abab" * 20, raw=True)
    pieces = [piece for part in parts for piece in part["pieces"]]
    assert "".join(piece["text"] for piece in pieces) == "".join(p["response"] for p in parts)
    drafted = sum(piece["drafted"] for piece in pieces)
    assert drafted <= last["draft_accepted_count"] <= last["draft_count"]
    assert "pieces" not in ask(live)


def test_a_prompt_is_put_into_the_models_template_unless_it_is_raw(live: LiveServer) -> None:
    plain, raw = ask(live), ask(live, raw=True)
    assert raw["prompt_eval_count"] == len("hello")
    assert plain["prompt_eval_count"] > raw["prompt_eval_count"]
    assert "context" not in raw
    system = ask(live, system="be brief")
    assert system["prompt_eval_count"] > plain["prompt_eval_count"]


def test_a_prompt_that_spells_fill_tokens_is_the_clients_own(live: LiveServer) -> None:
    prompt = "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    assert "<|fim_prefix|>" in SPECIAL_TOKENS
    assert ask(live, prompt=prompt)["prompt_eval_count"] == 5


def test_a_suffix_asks_to_fill_the_gap_before_it(live: LiveServer) -> None:
    filled = ask(live, prompt="ab", suffix="cde")
    assert filled["prompt_eval_count"] == len("ab") + len("cde") + 3
    assert ask(live, prompt="", suffix="cde")["prompt_eval_count"] == len("cde") + 3


def test_a_conversation_goes_on_from_its_context(live: LiveServer) -> None:
    first = ask(live)
    second = ask(live, prompt="and now?", context=first["context"])
    assert second["context"][: len(first["context"])] == first["context"]
    assert second["prompt_eval_count"] > len(first["context"])


def test_an_empty_prompt_only_checks_that_the_model_is_loaded(live: LiveServer) -> None:
    for fields in ({"prompt": ""}, {"prompt": "", "stream": False}, {"keep_alive": 0}):
        answer = live.post(PATH, {"model": "tiny"} | fields).json()
        assert (answer["done"], answer["done_reason"], answer["response"]) == (True, "load", "")


def test_options_are_applied(live: LiveServer) -> None:
    whole = ask(live, options=GREEDY | {"num_predict": 12})["response"]
    stop = whole[3:5]
    stopped = ask(live, options=GREEDY | {"num_predict": 12, "stop": [stop]})
    assert stopped["response"] == whole[: whole.index(stop)]
    assert stopped["done_reason"] == "stop"
    seeded = {"num_predict": 8, "temperature": 1.0, "seed": 7}
    assert ask(live, options=seeded)["response"] == ask(live, options=seeded)["response"]


@pytest.mark.parametrize(
    "format_", ["json", {"type": "object", "properties": {"a": {"type": "integer"}}}]
)
def test_an_answer_keeps_to_a_format(live: LiveServer, format_: Any) -> None:
    text = ask(live, format=format_, options={"num_predict": 8, "temperature": 0})["response"]
    assert text.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": 3}, "`prompt` must be a string"),
        ({"options": []}, "`options` must be an object"),
        ({"options": {"num_predict": "many"}}, "`options.num_predict`"),
        ({"format": "yaml"}, "`format`"),
        ({"format": {"type": "nothing"}}, "schema"),
        ({"images": ["aGk="]}, "`images`"),
        ({"template": "{{ .System }} {{ .Prompt }}"}, "`template`"),
        ({"raw": True, "context": [1]}, "`raw`"),
        ({"context": [1.5]}, "`context[0]`"),
        ({"context": [99999]}, "vocabulary"),
        ({"prompt": "a" * 2000}, "context"),
    ],
)
def test_an_error_is_one_sentence(live: LiveServer, fields: dict[str, Any], words: str) -> None:
    response = live.post(PATH, {"model": "tiny", "prompt": "hello"} | fields)
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    assert words in response.json()["error"]


def test_a_bare_template_makes_the_prompt_raw(live: LiveServer) -> None:
    assert ask(live, template="{{ .Prompt }}")["prompt_eval_count"] == len("hello")


def test_there_is_one_model(live: LiveServer) -> None:
    (model,) = live.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == "tiny:latest"
    assert len(model["digest"]) == 64
    assert model["size"] > 0
    assert datetime.fromisoformat(model["modified_at"]) <= datetime.now(UTC)
    assert model["details"]["parameter_size"] == "337K"
    (running,) = live.get("/api/ps").json()["models"]
    assert running["digest"] == model["digest"]
    assert datetime.fromisoformat(running["expires_at"]) > datetime.now(UTC)
    assert running["context_length"] == 1024


def test_the_model_is_shown_under_any_name(live: LiveServer) -> None:
    for body in ({"model": "tiny:latest"}, {"name": "qwen2.5-coder:7b", "verbose": True}, {}):
        shown = live.post("/api/show", body).json()
        assert shown["model_info"]["general.architecture"] == "llama"
        assert shown["model_info"]["llama.context_length"] == 1024
        assert shown["model_info"]["general.parameter_count"] == 336_512
        assert shown["capabilities"] == ["completion", "insert"]
        assert ".Suffix" in shown["template"]


def test_the_version_is_one_that_clients_take(live: LiveServer) -> None:
    version = live.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_clients_can_check_that_the_server_runs(live: LiveServer, method: str) -> None:
    assert live.client.request(method, "/api/tags").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/api/sing", 404), ("GET", "/api/chat", 405)]
)
def test_unknown_paths_have_ollamas_errors(
    live: LiveServer, method: str, path: str, status: int
) -> None:
    response = live.client.request(method, path)
    assert response.status_code == status
    assert list(response.json()) == ["error"]


def test_only_a_newline_ends_a_line_of_json() -> None:
    text = "a\x85b\u2028c\u2029d\N{GRINNING FACE}"
    (line,) = json_line({"response": text}).decode().splitlines()
    assert json.loads(line) == {"response": text}
