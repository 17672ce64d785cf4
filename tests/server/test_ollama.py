"""Ollama's contract: `/api/generate`, `/api/chat`, and what its clients ask about models."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import ollama
import pytest

from akunu_py.server.wire import json_line
from tests.server.live import LiveServer
from tests.tiny_model import SPECIAL_TOKENS

PATH = "/api/generate"
CHAT = "/api/chat"
GREEDY = {"num_predict": 6, "temperature": 0}
QUESTION = {"role": "user", "content": "hello"}


def ask(live: LiveServer, **fields: Any) -> Any:
    body = {"model": "tiny", "prompt": "hello", "stream": False, "options": GREEDY}
    return live.ask(PATH, body | fields)


def stream(live: LiveServer, **fields: Any) -> list[Any]:
    return live.lines(PATH, {"model": "tiny", "prompt": "hello", "options": GREEDY} | fields)


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
    kind = live.post(PATH, {"prompt": "hello", "options": GREEDY}).headers["content-type"]
    assert kind == "application/x-ndjson"
    whole = ask(live)
    assert "".join(part["response"] for part in parts) == whole["response"]
    assert all(part["done"] is False and part["created_at"] for part in parts)
    assert (last["done"], last["response"], last["eval_count"]) == (True, "", 6)
    assert last["context"] == whole["context"]


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
    for fields in ({"prompt": ""}, {"prompt": "", "stream": False}):
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


def test_a_bare_template_makes_the_prompt_raw(live: LiveServer) -> None:
    assert ask(live, template="{{ .Prompt }}")["prompt_eval_count"] == len("hello")


def test_there_is_one_model(live: LiveServer) -> None:
    (model,) = live.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == "tiny:latest"
    assert len(model["digest"]) == 64
    assert model["size"] > 0
    assert datetime.fromisoformat(model["modified_at"]) <= datetime.now(UTC)
    assert model["details"]["parameter_size"] == "337K"
    for name in ("format", "family", "quantization_level"):  # Zed wants them to be texts
        assert isinstance(model["details"][name], str)
    (running,) = live.get("/api/ps").json()["models"]
    assert running["digest"] == model["digest"]
    assert datetime.fromisoformat(running["expires_at"]) > datetime.now(UTC)
    assert running["context_length"] == 1024


def test_the_model_is_shown(live: LiveServer) -> None:
    for body in ({"model": "tiny:latest"}, {"name": "tiny", "verbose": True}, {}):
        shown = live.post("/api/show", body).json()
        assert shown["model_info"]["general.architecture"] == "llama"
        assert shown["model_info"]["llama.context_length"] == 1024
        assert shown["model_info"]["general.parameter_count"] == 336_512
        assert shown["capabilities"] == ["completion", "insert"]
        assert ".Suffix" in shown["template"]
        for line in shown["parameters"].split("\n"):  # as Continue reads them
            assert re.match(r'^(\S+)\s+((?:".*")|\S+)$', line)
        assert "num_ctx 1024" in shown["parameters"]


def test_pulling_the_model_that_is_served_succeeds(live: LiveServer) -> None:
    *_, last = live.lines("/api/pull", {"model": "tiny:latest"})
    assert last == {"status": "success"}
    assert live.post("/api/pull", {"name": "tiny", "stream": False}).json() == {"status": "success"}
    other = live.post("/api/pull", {"model": "qwen3"})
    assert (other.status_code, "not a name on the hub" in other.json()["error"]) == (400, True)


def test_the_version_is_one_that_clients_take(live: LiveServer) -> None:
    version = live.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)


def test_clients_can_check_that_the_server_runs(live: LiveServer) -> None:
    assert live.client.request("HEAD", "/api/tags").status_code == 200


def test_only_a_newline_ends_a_line_of_json() -> None:
    text = "a\x85b\u2028c\u2029d\N{GRINNING FACE}"
    (line,) = json_line({"response": text}).decode().splitlines()
    assert json.loads(line) == {"response": text}


def chat(live: LiveServer, **fields: Any) -> Any:
    body = {"model": "tiny", "messages": [QUESTION], "stream": False, "options": GREEDY}
    return live.ask(CHAT, body | fields)


def test_an_answer_is_a_message_of_the_assistants(live: LiveServer) -> None:
    answer = chat(live)
    assert answer["message"]["role"] == "assistant"
    assert answer["message"]["content"]
    assert (answer["done"], answer["done_reason"], answer["eval_count"]) == (True, "length", 6)
    body = {"model": "tiny", "messages": [QUESTION], "options": GREEDY}
    *parts, last = live.lines(CHAT, body)
    said = "".join(part["message"]["content"] for part in parts)
    assert said == answer["message"]["content"]
    assert (last["done"], last["message"]["content"], last["eval_count"]) == (True, "", 6)


def test_every_message_counts(live: LiveServer) -> None:
    longer = chat(live, messages=[{"role": "system", "content": "be brief"}, QUESTION])
    assert longer["prompt_eval_count"] > chat(live)["prompt_eval_count"]


def test_an_empty_conversation_only_checks_that_the_model_is_loaded(live: LiveServer) -> None:
    answer = live.post(CHAT, {"model": "tiny", "messages": []}).json()
    assert answer["message"] == {"role": "assistant", "content": ""}
    assert (answer["done"], answer["done_reason"]) == (True, "load")


TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "ä.py"}}\n</tool_call>'
READ = {"function": {"name": "read_file", "arguments": {"path": "ä.py"}}}


def body(says: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": says}]
    options = {"num_predict": 400, "temperature": 0}
    return {"model": "parrot", "messages": messages, "tools": [TOOL], "options": options} | fields


def message(parrot: LiveServer, says: str, **fields: Any) -> Any:
    return parrot.ask(CHAT, body(says, stream=False, **fields))["message"]


def streamed(parrot: LiveServer, says: str, **fields: Any) -> list[Any]:
    return parrot.lines(CHAT, body(says, **fields))


def test_a_call_has_its_arguments_as_an_object(parrot: LiveServer) -> None:
    said = message(parrot, f"Let me see.{CALL}")
    assert said == {"role": "assistant", "content": "Let me see.", "tool_calls": [READ]}


def test_calls_are_streamed_once_they_are_whole(parrot: LiveServer) -> None:
    *parts, last = streamed(parrot, f"See:{CALL}\n{CALL}")
    assert "".join(part["message"]["content"] for part in parts) == "See:"
    calls = [call for part in parts for call in part["message"].get("tool_calls", [])]
    assert calls == [READ, READ]
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")


def test_an_unfinished_mark_is_content_in_the_end(parrot: LiveServer) -> None:
    *parts, _ = streamed(parrot, "Hm <tool_ca")
    assert "".join(part["message"]["content"] for part in parts) == "Hm <tool_ca"
    assert message(parrot, "is a <b")["content"] == "is a <b"


def test_without_tools_a_call_is_text(parrot: LiveServer) -> None:
    assert message(parrot, CALL, tools=[])["content"] == CALL


def test_reasoning_is_separated_from_content(parrot: LiveServer) -> None:
    thought = f"<think>\nA file.\n</think>\n\nLet me see.{CALL}"
    assert message(parrot, thought, think=True) == {
        "role": "assistant",
        "content": "Let me see.",
        "thinking": "A file.\n",
        "tool_calls": [READ],
    }
    *parts, _ = streamed(parrot, thought, think="low", tools=None)
    assert "".join(part["message"].get("thinking", "") for part in parts) == "A file.\n"
    assert "".join(part["message"]["content"] for part in parts) == f"Let me see.{CALL}"


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_model_that_cannot_think_is_not_asked_to(live: LiveServer, path: str) -> None:
    asked = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "stream": False}
    for think in (True, "high"):
        refused = live.post(path, asked | {"think": think})
        assert refused.status_code == 400
        assert "this model does not think" in refused.json()["error"]
    assert live.post(path, asked | {"think": False}).status_code == 200


def test_results_go_back_to_the_model(parrot: LiveServer) -> None:
    messages = [
        {"role": "user", "content": "What is in ä.py?"},
        {"role": "assistant", "content": "", "tool_calls": [READ]},
        {"role": "tool", "tool_name": "read_file", "content": "print('hello')"},
    ]
    assert message(parrot, "", messages=messages)["content"] == "print('hello')"


def test_capabilities_are_reported(parrot: LiveServer) -> None:
    shown = parrot.post("/api/show", {}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]


def test_the_library_offers_functions_and_reads_calls(parrot: LiveServer) -> None:
    def read_file(path: str) -> str:
        """Reads a file.

        Args:
            path: of the file.
        """
        return path

    with ollama.Client(host=parrot.url) as client:
        asked = [{"role": "user", "content": CALL}]
        answer = client.chat("parrot", asked, tools=[read_file], think=False)
        assert answer.message.tool_calls is not None
        (call,) = answer.message.tool_calls
        assert read_file(**call.function.arguments) == "ä.py"
        parts = client.chat("parrot", asked, tools=[read_file], stream=True)
        calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [call.function.name for call in calls] == ["read_file"]
