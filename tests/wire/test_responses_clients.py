"""OpenAI's Responses: the `openai` library for Python, and the bodies of Codex, literally."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from akunu_py.server.conversation import ChatJob
from tests.server.live import LiveServer

CALL = '<tool_call>\n{"name": "shell", "arguments": {"command": ["ls", "-l"]}}\n</tool_call>'
SHELL: Any = {
    "type": "function",
    "name": "shell",
    "description": "Runs a shell command and returns its output.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"type": "string"}}},
        "required": ["command"],
        "additionalProperties": False,
    },
}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Use the `apply_patch` tool to edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}


@pytest.fixture(scope="module")
def client(parrot: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{parrot.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def events(server: LiveServer, asked: dict[str, Any]) -> list[dict[str, Any]]:
    found = server.named_events("/v1/responses", asked | {"temperature": 0})
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_a_text(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="m", input="Hello", instructions="Repeat.", temperature=0
    )
    assert (answer.output_text, answer.status, answer.error) == ("Hello", "completed", None)
    assert answer.instructions == "Repeat."
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input="Hello, world", temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == "Hello, world"
    opening = ("created", "in_progress", "output_item.added", "content_part.added")
    closing = ("output_text.done", "content_part.done", "output_item.done", "completed")
    assert kinds[:4] == [f"response.{name}" for name in opening]
    assert kinds[-4:] == [f"response.{name}" for name in closing]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}


def test_nothing_is_stored_and_asking_for_it_says_so(client: openai.OpenAI) -> None:
    first = client.responses.create(model="m", input="Hello", store=True, temperature=0)
    assert first.to_dict()["store"] is False
    with pytest.raises(openai.BadRequestError, match="stores no responses; send the whole") as bad:
        client.responses.create(model="m", input="Again", previous_response_id=first.id)
    assert bad.value.param == "previous_response_id"
    for ask in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="stores no responses"):
            ask(first.id)
    with pytest.raises(openai.NotFoundError, match="stores no responses"):
        client.responses.input_items.list(first.id)


def test_a_function_is_called_and_its_result_read(client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": f"<think>Look.</think>I look.{CALL}"}]
    answer = client.responses.create(model="m", input=asked, tools=[SHELL], temperature=0)
    reasoning, message, call = answer.output
    assert (reasoning.type, message.type, call.type) == ("reasoning", "message", "function_call")
    assert isinstance(call, openai.types.responses.ResponseFunctionToolCall)
    assert json.loads(call.arguments) == {"command": ["ls", "-l"]}
    asked += [item.model_dump() for item in answer.output]
    asked += [{"type": "function_call_output", "call_id": call.call_id, "output": "a.py"}]
    final = client.responses.create(model="m", input=asked, tools=[SHELL], temperature=0)
    assert final.output_text == "a.py"


def test_the_events_of_a_call(parrot: LiveServer) -> None:
    asked = {"model": "m", "input": CALL, "tools": [SHELL], "num_draft_tokens": 0}
    found = events(parrot, asked)
    deltas = [each for each in found if each["type"] == "response.function_call_arguments.delta"]
    rest = [each for each in found if each not in deltas]
    assert [event["type"].removeprefix("response.") for event in rest] == [
        "created", "in_progress", "output_item.added",
        "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    added, done, item = rest[2:5]
    assert len(deltas) > 1
    assert (added["item"]["name"], added["item"]["arguments"]) == ("shell", "")
    names = {each["item_id"] for each in (*deltas, done)}
    assert names == {added["item"]["id"]} == {item["item"]["id"]}
    pieces = "".join(each["delta"] for each in deltas)
    assert pieces == done["arguments"] == item["item"]["arguments"]
    assert found[-1]["response"]["output"] == [item["item"]]


def test_a_custom_tool_gets_a_text(parrot: LiveServer) -> None:
    call = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin"}}\n</tool_call>'
    found = events(parrot, {"model": "m", "input": call, "tools": [SHELL, PATCH]})
    assert found[3]["type"] == "response.custom_tool_call_input.delta"
    (item,) = found[-1]["response"]["output"]
    assert (item["type"], item["name"], item["input"]) == (
        "custom_tool_call", "apply_patch", "*** Begin",
    )  # fmt: skip


def test_codexs_body(parrot: LiveServer) -> None:
    """Its second turn, with tools of every kind that it knows, and reasoning sent back."""
    asked = {
        "model": "gpt-5-codex",
        "instructions": "You are a coding agent running in the Codex CLI.",
        "input": [
            {"type": "message", "role": "developer",
             "content": [{"type": "input_text", "text": "<permissions instructions>"}]},
            {"type": "message", "role": "user",
             "content": [{"type": "input_text", "text": "<environment_context>"}]},
            {"type": "message", "role": "user",
             "content": [{"type": "input_text", "text": "Rename x."}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAA"},
            {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}',
             "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "a.py"},
            {"type": "custom_tool_call", "status": "completed", "call_id": "call_2",
             "name": "apply_patch", "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done."},
        ],
        "tools": [SHELL, PATCH, {"type": "local_shell"},
                  {"type": "web_search", "external_web_access": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "019a",
    }  # fmt: skip
    found = events(parrot, asked)
    assert found[-1]["type"] == "response.completed"
    (item,) = found[-1]["response"]["output"]
    assert item["content"][0]["text"] == "Done."
    assert found[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] >= 0


def test_a_cut_answer_is_incomplete(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="m", input="Hello, world", max_output_tokens=3, temperature=0
    )
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in answer.output] == ["incomplete"]  # type: ignore[union-attr]


def test_codex_reads_the_answer_to_its_latest_body(parrot: LiveServer) -> None:
    """The first turn of Codex 0.169: no instructions, and two messages of the user in a row."""
    call = '<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "ls"}}\n</tool_call>'
    command = {"type": "string", "description": "Shell command to execute."}
    schema = {"type": "object", "properties": {"cmd": command}, "required": ["cmd"],
              "additionalProperties": False}  # fmt: skip
    asked = {
        "model": "local",
        "input": [
            {"type": "message", "id": "msg_1", "role": "developer",
             "content": [{"type": "input_text", "text": "You are a coding agent."}]},
            {"type": "message", "id": "msg_2", "role": "developer",
             "content": [{"type": "input_text", "text": "<skills_instructions>"}]},
            {"type": "message", "id": "msg_3", "role": "user",
             "content": [{"type": "input_text", "text": "<environment_context>"}]},
            {"type": "message", "id": "msg_4", "role": "user",
             "content": [{"type": "input_text", "text": call}]},
        ],
        "tools": [
            {"type": "function", "name": "exec_command", "description": "Runs a command in a PTY.",
             "strict": False, "parameters": schema},
            {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents.",
             "tools": [{"type": "function", "name": "close_agent", "parameters": {}}]},
            {"type": "web_search", "external_web_access": True},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a204c5-cb8c-7b93-8f82-05e314859239",
        "client_metadata": {"thread_id": "01a204c5-cb8c-7b93-8f82-05e314859239"},
    }  # fmt: skip
    text, item = events(parrot, asked)[-1]["response"]["output"]
    assert text["content"][0]["text"].strip() == "<environment_context>"
    assert (item["type"], item["name"]) == ("function_call", "exec_command")
    assert json.loads(item["arguments"]) == {"cmd": "ls"}
    counted = parrot.post("/v1/responses/input_tokens", asked).json()
    assert counted["input_tokens"] > 10


def test_reasoning_is_counted(parrot: LiveServer) -> None:
    said = "<think>Hm, well.</think>Yes"
    usage = parrot.post("/v1/responses", {"model": "m", "input": said}).json()["usage"]
    reasoning = usage["output_tokens_details"]["reasoning_tokens"]
    assert reasoning == usage["output_tokens"] - len("Yes")
    asked = {"messages": [{"role": "user", "content": said}]}
    usage = parrot.post("/v1/chat/completions", asked).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == reasoning


def test_the_oldest_turns_are_left_out_if_there_is_no_room(parrot: LiveServer) -> None:
    turns = [
        {"role": "user", "content": "x" * 7000},
        {"role": "assistant", "content": "y" * 7000},
        {"role": "user", "content": "z" * 7000},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "Hello"},
    ]
    asked = {"model": "m", "instructions": "Be brief.", "input": turns, "max_output_tokens": 99}
    refused = parrot.post("/v1/responses", asked)
    assert (refused.status_code, "context" in refused.text) == (400, True)
    answer = parrot.post("/v1/responses", asked | {"truncation": "auto"}).json()
    assert answer["output"][0]["content"][0]["text"] == "Hello"
    assert answer["truncation"] == "auto"
    assert 7000 < answer["usage"]["input_tokens"] < 8000


def test_a_call_that_a_stop_string_cuts_is_incomplete(parrot: LiveServer) -> None:
    asked = {"model": "m", "input": CALL, "tools": [SHELL], "stop": '"-l'}
    found = events(parrot, asked)
    assert found[-1]["type"] == "response.incomplete"  # clients parse all calls of a complete one
    (item,) = found[-1]["response"]["output"]
    assert item["status"] == "incomplete"
    assert found[-2]["item"] == item
    whole = parrot.post("/v1/responses", asked | {"temperature": 0}).json()
    assert (whole["status"], whole["output"][0]["status"]) == ("incomplete", "incomplete")


def test_numbers_that_no_float_can_hold_are_no_defect(parrot: LiveServer) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"properties": {"a": {}}}}
    said = '<tool_call>\n{"name": "f", "arguments": {"a": 1e400}}\n</tool_call>'
    asked = {"model": "m", "input": said, "tools": [tool], "temperature": 0}
    answer = parrot.post("/v1/responses", asked)
    assert answer.status_code == 200, answer.text
    (call,) = answer.json()["output"]
    assert call["arguments"] == '{"a": 1e400}'
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "b"}
    earlier = [{"role": "user", "content": "a"}, call, result]
    assert parrot.post("/v1/responses", {"model": "m", "input": earlier}).status_code == 200


def test_truncation_renders_a_long_conversation_a_few_times(
    parrot: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, count = ChatJob.begin, []

    def counted(*arguments: Any, **settings: Any) -> ChatJob:
        count.append(1)
        return begin(*arguments, **settings)

    monkeypatch.setattr(ChatJob, "begin", counted)
    roles = ("user", "assistant")
    turns = [{"role": roles[at % 2], "content": f"hello {at}"} for at in range(401)]
    asked = {"model": "m", "input": turns, "truncation": "auto", "max_output_tokens": 9}
    answer = parrot.post("/v1/responses", asked | {"temperature": 0})
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][0]["content"][0]["text"] == "hello 400"
    assert answer.json()["usage"]["input_tokens"] > 700  # as much as there is room for
    assert len(count) <= 10
