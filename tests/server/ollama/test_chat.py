"""Ollama's `/api/chat`: messages in, a message out."""

import json
from typing import Any

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


def test_a_conversation_without_messages_only_loads(live: LiveServer) -> None:
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
def test_what_cannot_be_served_is_told_in_a_sentence(
    live: LiveServer, fields: dict[str, Any], words: str
) -> None:
    response = live.post(PATH, {"model": "tiny", "messages": [QUESTION]} | fields)
    assert response.status_code == 400
    assert words in response.json()["error"]
