"""Tools: offered to the template, and read out of what the model writes."""

import json
from typing import Any

import pytest

from tests.server.live import LiveServer


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    function = {"name": name, "description": "A tool.", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [tool("read_file"), tool("list_files")]
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "ä.py"}}\n</tool_call>'


def body(says: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": says}]
    return {"messages": messages, "tools": TOOLS, "max_tokens": 400, "temperature": 0} | fields


def ask(parrot: LiveServer, says: str, **fields: Any) -> Any:
    response = parrot.post("/v1/chat/completions", body(says, **fields))
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def assert_reads_the_file(call: dict[str, Any]) -> None:
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    assert call["function"]["name"] == "read_file"
    assert json.loads(call["function"]["arguments"]) == {"path": "ä.py"}


def test_a_call_is_read(parrot: LiveServer) -> None:
    choice = ask(parrot, CALL)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert_reads_the_file(call)


def test_what_is_said_before_stays_content(parrot: LiveServer) -> None:
    choice = ask(parrot, f"Let me see.{CALL}\n{CALL}")
    assert choice["message"]["content"] == "Let me see."
    first, second = choice["message"]["tool_calls"]
    assert first["id"] != second["id"]


def test_calls_are_streamed(parrot: LiveServer) -> None:
    *chunks, last, done = parrot.events("/v1/chat/completions", body(f"See:{CALL}\n{CALL}"))
    assert done == "[DONE]"
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == "See:"
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 1]
    for call in calls:
        assert_reads_the_file(call)


def test_what_cannot_be_read_is_content(parrot: LiveServer) -> None:
    broken = '<tool_call>\n{"name": "read_file", "argu'
    choice = ask(parrot, broken)
    assert choice["message"]["content"] == broken
    assert choice["finish_reason"] == "stop"


def test_one_call_may_be_enough(parrot: LiveServer) -> None:
    choice = ask(parrot, f"{CALL}\n{CALL}", parallel_tool_calls=False)
    (call,) = choice["message"]["tool_calls"]
    assert_reads_the_file(call)
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": []}, {"tools": None}])
def test_without_tools_a_call_is_text(parrot: LiveServer, fields: dict[str, Any]) -> None:
    choice = ask(parrot, CALL, **fields)
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "wanted",
    [
        "required",
        {"type": "function", "function": {"name": "read_file"}},
        {"type": "function", "name": "read_file"},
    ],
)
def test_a_call_can_be_demanded(parrot: LiveServer, wanted: Any) -> None:
    choice = ask(parrot, CALL, tool_choice=wanted)
    (call,) = choice["message"]["tool_calls"]
    assert_reads_the_file(call)


def test_a_demanded_call_is_opened_in_the_prompt(parrot: LiveServer) -> None:
    free, forced = (
        parrot.post("/v1/chat/completions", body(CALL, tool_choice=choice)).json()["usage"]
        for choice in ("auto", "required")
    )
    assert forced["prompt_tokens"] == free["prompt_tokens"] + len("<tool_call>")
    assert forced["completion_tokens"] == free["completion_tokens"] - len("<tool_call>")


def test_the_template_is_told_of_the_tools_that_may_be_called(parrot: LiveServer) -> None:
    def prompt_tokens(**fields: Any) -> int:
        answer = parrot.post("/v1/chat/completions", body("Hello", **fields)).json()
        return int(answer["usage"]["prompt_tokens"])

    both, none = prompt_tokens(), prompt_tokens(tool_choice="none")
    assert none == prompt_tokens(tools=None) < both
    named = {"type": "function", "function": {"name": "list_files"}}
    assert none < prompt_tokens(tool_choice=named) < both


def test_results_of_calls_go_back_to_the_model(parrot: LiveServer) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "read_file", "arguments": '{"path": "a.py"}'},
    }
    messages = [
        {"role": "user", "content": "What is in a.py?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "print('hello')"},
    ]
    assert ask(parrot, "", messages=messages)["message"]["content"] == "print('hello')"


def test_a_model_without_tools_answers_as_if_there_were_none(live: LiveServer) -> None:
    with_tools, without = (
        live.post("/v1/chat/completions", body("Hi", tools=tools, max_tokens=8)).json()
        for tools in (TOOLS, None)
    )
    assert with_tools["choices"][0]["message"] == without["choices"][0]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_makes_no_sense_is_refused(
    parrot: LiveServer, fields: dict[str, Any], param: str
) -> None:
    response = parrot.post("/v1/chat/completions", body("Hello", **fields))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_model_without_tools_cannot_be_made_to_call_one(live: LiveServer) -> None:
    response = live.post("/v1/chat/completions", body("Hi", tool_choice="required"))
    assert response.status_code == 400
    assert "no tools" in response.json()["error"]["message"]
