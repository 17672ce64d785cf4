"""Ollama's `/api/chat`: messages, reasoning and tools."""

import json
from typing import Any

import ollama
import pytest

from tests.server.live import LiveServer

PATH = "/api/chat"
GREEDY = {"num_predict": 6, "temperature": 0}
QUESTION = {"role": "user", "content": "hello"}


def ask(live: LiveServer, **fields: Any) -> Any:
    body = {"model": "tiny", "messages": [QUESTION], "stream": False, "options": GREEDY} | fields
    response = live.post(PATH, body)
    assert response.status_code == 200, response.text
    return response.json()


def test_an_answer_is_a_message_of_the_assistants(live: LiveServer) -> None:
    answer = ask(live)
    assert answer["message"]["role"] == "assistant"
    assert answer["message"]["content"]
    assert (answer["done"], answer["done_reason"], answer["eval_count"]) == (True, "length", 6)


def test_streams_unless_told_otherwise(live: LiveServer) -> None:
    body = {"model": "tiny", "messages": [QUESTION], "options": GREEDY}
    lines = live.post(PATH, body).text.splitlines()
    *parts, last = [json.loads(line) for line in lines]
    said = "".join(part["message"]["content"] for part in parts)
    assert said == ask(live)["message"]["content"]
    assert (last["done"], last["message"]["content"], last["eval_count"]) == (True, "", 6)


def test_every_message_counts(live: LiveServer) -> None:
    system = {"role": "system", "content": "be brief"}
    longer = ask(live, messages=[system, QUESTION])
    assert longer["prompt_eval_count"] > ask(live)["prompt_eval_count"]


def test_an_empty_conversation_only_checks_that_the_model_is_loaded(live: LiveServer) -> None:
    answer = live.post(PATH, {"model": "tiny", "messages": []}).json()
    assert answer["message"] == {"role": "assistant", "content": ""}
    assert (answer["done"], answer["done_reason"]) == (True, "load")


def test_an_answer_keeps_to_a_format(live: LiveServer) -> None:
    assert ask(live, format="json")["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": "hello"}, "`messages`"),
        ({"messages": [{"content": "hello"}]}, "`messages[0].role`"),
        ({"messages": [{"role": "user", "content": 3}]}, "`messages[0].content`"),
        ({"messages": [QUESTION | {"images": ["aGk="]}]}, "`messages[0].images`"),
        ({"options": "none"}, "`options`"),
    ],
)
def test_an_error_is_one_sentence(live: LiveServer, fields: dict[str, Any], words: str) -> None:
    response = live.post(PATH, {"model": "tiny", "messages": [QUESTION]} | fields)
    assert response.status_code == 400
    assert words in response.json()["error"]


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
    response = parrot.post(PATH, body(says, stream=False, **fields))
    assert response.status_code == 200, response.text
    return response.json()["message"]


def streamed(parrot: LiveServer, says: str, **fields: Any) -> list[Any]:
    lines = parrot.post(PATH, body(says, **fields)).text.splitlines()
    return [json.loads(line) for line in lines]


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


def test_results_go_back_to_the_model(parrot: LiveServer) -> None:
    messages = [
        {"role": "user", "content": "What is in ä.py?"},
        {"role": "assistant", "content": "", "tool_calls": [READ]},
        {"role": "tool", "tool_name": "read_file", "content": "print('hello')"},
    ]
    assert message(parrot, "", messages=messages)["content"] == "print('hello')"


def test_capabilities_are_reported(parrot: LiveServer, live: LiveServer) -> None:
    capabilities = [
        server.post("/api/show", {}).json()["capabilities"] for server in (parrot, live)
    ]
    assert capabilities == [["completion", "tools", "thinking"], ["completion", "insert"]]


def test_contradictory_fields_are_refused(parrot: LiveServer) -> None:
    for fields, words in (
        ({"tools": [{"type": "function", "function": {}}]}, "`tools[0].function.name` is missing"),
        ({"think": "harder"}, "`think`"),
        ({"think": 1}, "`think`"),
    ):
        response = parrot.post(PATH, body("hello", **fields))
        assert response.status_code == 400, response.text
        assert words in response.json()["error"]


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
