"""The bodies of Claude Code and of the `anthropic` library for Python, literally, and what they
read of the answers."""

import json
import sys
from typing import Any

import pytest

from tests.server.live import LiveServer

CALL = '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a.py"}}\n</tool_call>'
READ = {
    "name": "Read",
    "description": "Reads a file from the local filesystem.",
    "input_schema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"file_path": {"type": "string", "description": "The absolute path"}},
        "required": ["file_path"],
        "additionalProperties": False,
    },
}


def body(text: str, **fields: Any) -> dict[str, Any]:
    """As the library sends it."""
    turn = {"role": "user", "content": text}
    return {"max_tokens": 200, "messages": [turn], "model": "claude", "temperature": 0} | fields


def ask(server: LiveServer, asked: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = server.ask("/v1/messages", asked)
    return found


def stream(server: LiveServer, asked: dict[str, Any]) -> list[dict[str, Any]]:
    return server.named_events("/v1/messages?beta=true", asked)


def assembled(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content blocks as the library puts them together."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"], json=""))
        elif event["type"] == "content_block_delta":
            delta, block = dict(event["delta"]), blocks[event["index"]]
            if delta.pop("type") == "input_json_delta":
                block["json"] += delta["partial_json"]
            else:
                for name, text in delta.items():
                    block[name] += text
    for block in blocks:
        if text := block.pop("json"):
            block["input"] = json.loads(text)
    return blocks


def test_a_message(parrot: LiveServer) -> None:
    answer = ask(parrot, body("Hello, world", system="Be brief."))
    assert answer["id"].startswith("msg_")
    assert (answer["type"], answer["role"]) == ("message", "assistant")
    assert answer["content"] == [{"type": "text", "text": "Hello, world"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    usage = answer["usage"]
    assert usage["output_tokens"] > 0
    again = ask(parrot, body("Hello, world", system="Be brief."))["usage"]
    assert again["cache_read_input_tokens"] > usage["cache_read_input_tokens"]
    prompt = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(again[name] for name in prompt) == sum(usage[name] for name in prompt)


def test_events_come_in_order(parrot: LiveServer) -> None:
    events = stream(parrot, body("Hello, world"))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] > 0
    assert assembled(events) == [{"type": "text", "text": "Hello, world"}]


@pytest.mark.parametrize("text", [CALL, f"I look.{CALL}{CALL}", f"<think>Hm.</think>I look.{CALL}"])
def test_thoughts_and_calls_are_blocks(parrot: LiveServer, text: str) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    asked = body(text, tools=[READ], thinking=thinking, num_draft_tokens=0)
    whole = ask(parrot, asked)
    assert whole["stop_reason"] == "tool_use"
    thought, said, *calls = [None, None, *whole["content"]][-2 - text.count("<tool_call>") :]
    assert all(call["type"] == "tool_use" and call["id"] for call in calls)
    assert {json.dumps(call["input"]) for call in calls} == {'{"file_path": "/a.py"}'}
    assert len({call["id"] for call in calls}) == len(calls) == text.count("<tool_call>")
    assert said is None or said == {"type": "text", "text": "I look."}
    assert thought is None or thought["thinking"] == "Hm."
    events = stream(parrot, asked)
    pieces = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert pieces.count("input_json_delta") > len(calls)
    streamed = assembled(events)
    for block in (*streamed, *whole["content"]):
        block.pop("id", None)
    assert streamed == whole["content"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_claude_codes_second_turn(parrot: LiveServer) -> None:
    """Its blocks have marks for caches, and the result of a tool comes as a user's block."""
    ephemeral = {"cache_control": {"type": "ephemeral"}}
    asked = {
        "model": "claude-sonnet-4-5",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Read /a.py", **ephemeral}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I read it.", "signature": "x"},
                    {"type": "text", "text": "Reading."},
                    {"type": "tool_use", "id": "toolu_1", "name": "Read",
                     "input": {"file_path": "/a.py"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1",
                     "content": [{"type": "text", "text": "print(1)"}], "is_error": False,
                     **ephemeral},
                ],
            },
        ],
        "temperature": 0,
        "system": [
            {"type": "text", "text": "You are an agent.", **ephemeral},
            {"type": "text", "text": "Be brief."},
        ],
        "tools": [READ],
        "metadata": {"user_id": "user_account__session_1"},
        "max_tokens": 200,
    }  # fmt: skip
    assert ask(parrot, asked)["content"] == [{"type": "text", "text": "print(1)"}]
    assert assembled(stream(parrot, asked)) == [{"type": "text", "text": "print(1)"}]
    counted = parrot.post("/v1/messages/count_tokens?beta=true", asked).json()
    usage = ask(parrot, asked)["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_why_an_answer_ended(parrot: LiveServer) -> None:
    cut = ask(parrot, body("Hello, world", stop_sequences=["x", ", w"]))
    assert cut["content"] == [{"type": "text", "text": "Hello"}]
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", ", w")
    assert ask(parrot, body("Hello", max_tokens=2))["stop_reason"] == "max_tokens"


def test_a_call_can_be_demanded_and_forbidden(parrot: LiveServer) -> None:
    """A demanded call is begun by the prompt, and the parrot continues it."""
    for choice in ({"type": "any"}, {"type": "tool", "name": "Read"}):
        (call,) = ask(parrot, body(CALL, tools=[READ], tool_choice=choice))["content"]
        assert (call["type"], call["name"]) == ("tool_use", "Read")
    (text,) = ask(parrot, body(CALL, tools=[READ], tool_choice={"type": "none"}))["content"]
    assert text == {"type": "text", "text": CALL}


def test_the_beginning_of_an_answer_is_continued(parrot: LiveServer) -> None:
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hel"}]
    assert ask(parrot, body("", messages=turns))["content"] == [{"type": "text", "text": "lo"}]


def test_claude_codes_first_turn(parrot: LiveServer) -> None:
    """It sends a system message after the user's, which templates refuse: it becomes the user's."""
    asked = {
        "model": "local",
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>\n</system-reminder>\n\n"},
                {"type": "text", "text": "Rename x."}]},
            {"role": "system", "content": "Available agent types for the Agent tool:\n- claude"},
        ],
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.1b6;"},
            {"type": "text", "text": "You are a Claude agent, built on Anthropic's Agent SDK.",
             "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [READ],
        "metadata": {"user_id": '{"device_id":"b8","account_uuid":"","session_id":"b8df26d0"}'},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "temperature": 0,
    }  # fmt: skip
    (block,) = ask(parrot, asked)["content"]
    assert block["text"].endswith(
        "Rename x.\n\nAvailable agent types for the Agent tool:\n- claude"
    )


@pytest.mark.parametrize(
    "place",
    [lambda form: {"output_config": {"format": form}}, lambda form: {"output_format": form}],
)
def test_an_answer_has_the_format_that_is_asked_for(parrot: LiveServer, place: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    asked = body("Hello") | place({"type": "json_schema", "schema": schema})
    (block,) = ask(parrot, asked)["content"]
    assert json.loads(block["text"]) == {"a": 1}
    refused = parrot.post("/v1/messages", body("Hello") | place({"type": "xml"}))
    assert refused.status_code == 400


def test_a_strict_tool_that_cannot_be_followed_is_refused(parrot: LiveServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tool = {"name": "f", "input_schema": schema}
    assert parrot.post("/v1/messages", body("a", tools=[tool])).status_code == 200
    answer = parrot.post("/v1/messages", body("a", tools=[tool | {"strict": True}]))
    assert answer.status_code == 400


def test_a_call_that_a_stop_string_cuts_is_not_to_be_made(parrot: LiveServer) -> None:
    answer = ask(parrot, body(CALL, tools=[READ], stop_sequences=["/a"]))
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "/a")


def test_stop_strings_end_no_call_that_has_to_come(parrot: LiveServer) -> None:
    fields = {"tools": [READ], "tool_choice": {"type": "any"}, "stop_sequences": ["/a", '"']}
    answer = ask(parrot, body(CALL, **fields))
    assert answer["stop_reason"] == "tool_use"
    assert set(answer["content"][0]["input"]) == {"file_path"}


def test_a_number_that_no_float_can_hold_becomes_the_largest(parrot: LiveServer) -> None:
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {}}}}
    said = '<tool_call>\n{"name": "f", "arguments": {"a": -1e400}}\n</tool_call>'
    (block,) = ask(parrot, body(said, tools=[tool]))["content"]
    assert block["input"] == {"a": -sys.float_info.max}
