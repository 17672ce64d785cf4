"""The bodies of clients that call tools by chat completions, literally: the AI SDK, LangChain and
instructor; the model repeats what it was told, as far as the grammar lets it."""

import json
from typing import Any

from tests.server.live import LiveServer

PATH = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather",
        "parameters": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"location": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["location", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
ANSWER = {"location": "Rome", "days": 3}


def call(arguments: Any) -> str:
    made = json.dumps({"name": "get_weather", "arguments": arguments})
    return f"<tool_call>\n{made}\n</tool_call>"


def body(said: str, **fields: Any) -> dict[str, Any]:
    asked = {"model": "m", "temperature": 0, "max_tokens": 300, "tools": [WEATHER]}
    return asked | {"messages": [{"role": "user", "content": said}]} | fields


def message(server: LiveServer, said: str, **fields: Any) -> dict[str, Any]:
    answer = server.post(PATH, body(said, **fields))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["choices"][0]["message"]
    return found


def test_the_ai_sdk_puts_deltas_together(parrot: LiveServer) -> None:
    said = f"I look.{call(ANSWER)}\n{call(ANSWER)}"
    options = {
        "num_draft_tokens": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tool_choice": "auto",
    }
    *chunks, done = parrot.events(PATH, body(said, **options))
    assert done == "[DONE]"
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            for delta in choice["delta"].get("tool_calls") or []:
                if delta["index"] == len(calls):  # the first of a call has its id and name
                    assert delta["id"].startswith("call_")
                    assert delta["type"] == "function"
                    assert delta["function"] == {"name": "get_weather", "arguments": ""}
                    calls.append({"pieces": 0, "arguments": ""})
                calls[delta["index"]]["pieces"] += 1
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    assert [json.loads(each["arguments"]) for each in calls] == [ANSWER, ANSWER]
    assert all(each["pieces"] > 2 for each in calls)


def test_a_call_follows_its_schema_from_where_it_begins(parrot: LiveServer) -> None:
    said = call({"location": "Rome", "days": "three"})
    (made,) = message(parrot, said)["tool_calls"]
    arguments = json.loads(made["function"]["arguments"])
    assert arguments["location"] == "Rome"
    assert isinstance(arguments["days"], int)


def test_calls_or_an_answer_in_a_schema(parrot: LiveServer) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    kind = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert json.loads(message(parrot, '{"n": 5}', response_format=kind)["content"]) == {"n": 5}
    (made,) = message(parrot, call(ANSWER), response_format=kind)["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == ANSWER


def test_a_strict_function_that_cannot_be_followed_is_refused(parrot: LiveServer) -> None:
    tool = json.loads(json.dumps(WEATHER))
    tool["function"]["parameters"]["properties"]["location"]["pattern"] = "(?=R)x"
    answer = parrot.post(PATH, body("Hello", tools=[tool]))
    assert answer.status_code == 400
    assert "The schemas of the tools cannot be followed" in answer.json()["error"]["message"]


def test_a_schema_that_refers_to_itself_forever_is_no_defect(parrot: LiveServer) -> None:
    tool = json.loads(json.dumps(WEATHER))
    tool["function"] |= {"strict": False, "parameters": {
        "type": "object", "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"type": [[]]}},
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}},
    }}  # fmt: skip
    assert parrot.post(PATH, body("Hello", tools=[tool])).status_code == 200
    answer = parrot.post(PATH, body("Hello", tools=[tool], tool_choice="required"))
    assert answer.status_code in (200, 400)


def test_a_call_that_a_stop_string_cuts_is_not_to_be_made(parrot: LiveServer) -> None:
    (choice,) = parrot.post(PATH, body(call(ANSWER), stop="Rom")).json()["choices"]
    assert choice["finish_reason"] == "stop"
    events = parrot.events(PATH, body(call(ANSWER), stop="Rom"))
    assert [e["choices"][0]["finish_reason"] for e in events[:-1]][-1] == "stop"
    (choice,) = parrot.post(PATH, body(call(ANSWER))).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
