"""Reasoning, text and calls of gpt-oss and DeepSeek in every contract, streamed and whole."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.chat_templates import TEMPLATES, templated_engine
from tests.parrot import parrot_engine
from tests.server.live import LiveServer, serve

GIVEN = '{"p": "v"}'
PARAMETERS = {"type": "object", "properties": {"p": {"type": "string"}}, "required": ["p"]}
NAMED = {"name": "get", "description": "Gets.", "parameters": PARAMETERS}
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": NAMED}]}


class Family(NamedTuple):
    """What its template has in it, an answer without a call, and one with a call."""

    hint: str
    answer: str
    call: str


HARMONY = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
    "I look.<|end|><|start|>assistant<|channel|>"
)
DEEPSEEK = "<think>Hm.</think>I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
FAMILIES = {
    "gpt-oss": Family(
        "<|channel|>final<|message|>",
        f"{HARMONY}final<|message|> Yes.",
        f"{HARMONY}commentary to=functions.get <|constrain|>json<|message|>{GIVEN}",
    ),
    "v3": Family(
        "<｜tool▁calls▁begin｜>```json",
        "<think>Hm.</think>I look. Yes.",
        f"{DEEPSEEK}function<｜tool▁sep｜>get\n```json\n{GIVEN}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "v3.1": Family(
        "<｜tool▁calls▁begin｜>",
        "<think>Hm.</think>I look. Yes.",
        f"{DEEPSEEK}get<｜tool▁sep｜>{GIVEN}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
}


TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant{{ '\n' }}"
)


@pytest.fixture(scope="module", params=FAMILIES)
def spoken(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LiveServer, Family]]:
    folder = tmp_path_factory.mktemp("models") / "parrot"
    family = FAMILIES[request.param]
    template = f"{TEMPLATE}{{# {family.hint} #}}"
    with serve(lambda: parrot_engine(folder, template)) as server:
        yield server, family


@pytest.fixture(scope="module")
def r1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    with serve(lambda: templated_engine(folder, TEMPLATES["deepseek r1"])) as server:
        yield server


def asked(says: str, **fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": says}]
    return {"messages": said, "max_tokens": 600, "temperature": 0} | fields


def of_chat(server: LiveServer, says: str) -> Iterator[tuple[str, str, list[str]]]:
    body = asked(says, **TOOLS)
    message = server.ask("/v1/chat/completions", body)["choices"][0]["message"]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
    yield message["reasoning_content"], message["content"], calls
    *chunks, _ = server.events("/v1/chat/completions", body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    words = ["".join(delta.get(name) or "" for delta in deltas)
             for name in ("reasoning_content", "content")]  # fmt: skip
    made = [call for delta in deltas for call in delta.get("tool_calls", ())]
    given = "".join(call["function"].get("arguments", "") for call in made)
    yield words[0], words[1], [given] if made else []


def of_responses(server: LiveServer, says: str) -> Iterator[tuple[str, str, list[str]]]:
    body = {"input": says, "tools": [NAMED | {"type": "function"}], "temperature": 0}
    whole = server.ask("/v1/responses", body)
    streamed = server.named_events("/v1/responses", body)[-1]["response"]
    for response in (whole, streamed):
        parts: dict[str, Any] = {"reasoning": "", "message": ""}
        for item in response["output"]:
            if item["type"] in parts:
                parts[item["type"]] += "".join(part["text"] for part in item["content"])
        made = [item["arguments"] for item in response["output"] if "arguments" in item]
        yield parts["reasoning"], parts["message"], made


def of_messages(server: LiveServer, says: str) -> Iterator[tuple[str, str, list[str]]]:
    tool = {"name": "get", "input_schema": PARAMETERS}
    body = asked(says, tools=[tool])
    content = server.ask("/v1/messages", body)["content"]
    words = ["".join(block.get(name, "") for block in content) for name in ("thinking", "text")]
    made = [json.dumps(block["input"]) for block in content if block["type"] == "tool_use"]
    yield words[0], words[1], made
    events = server.named_events("/v1/messages", body)
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    words = ["".join(delta.get(name, "") for delta in deltas)
             for name in ("thinking", "text", "partial_json")]  # fmt: skip
    yield words[0], words[1], [words[2]] if words[2] else []


def of_ollama(server: LiveServer, says: str) -> Iterator[tuple[str, str, list[str]]]:
    body = asked(says, options={"temperature": 0}, **TOOLS)
    for lines in (
        server.lines("/api/chat", body | {"stream": False}),
        server.lines("/api/chat", body),
    ):
        said = [line["message"] for line in lines]
        words = ["".join(each.get(name, "") for each in said) for name in ("thinking", "content")]
        calls = [
            call["function"]["arguments"] for each in said for call in each.get("tool_calls", ())
        ]
        yield words[0], words[1], [json.dumps(call) for call in calls]


@pytest.mark.parametrize("ask", [of_chat, of_responses, of_messages, of_ollama])
def test_an_answer_and_a_call(spoken: tuple[LiveServer, Family], ask: Any) -> None:
    server, family = spoken
    assert [*ask(server, family.answer)] == [("Hm.", "I look. Yes.", [])] * 2
    assert [*ask(server, family.call)] == [("Hm.", "I look.", [GIVEN])] * 2


def test_gpt_oss_cannot_be_told_not_to_think(spoken: tuple[LiveServer, Family]) -> None:
    live, family = spoken
    for path, body in (
        ("/api/chat", asked(family.answer, think=False, stream=False)),
        ("/api/generate", {"prompt": family.answer, "think": False, "stream": False}),
    ):
        answer = live.post(path, body)
        if family is FAMILIES["gpt-oss"]:
            assert answer.status_code == 400
            assert "`think` cannot be false, as this model" in answer.json()["error"]
        else:
            assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "usual", "told"),
    [
        ("/api/chat", {"stream": False}, {"think": False}),
        ("/api/generate", {"stream": False, "prompt": "Which?"}, {"think": False}),
        ("/v1/messages", {}, {"thinking": {"type": "disabled"}}),
        ("/v1/chat/completions", {}, {"reasoning_effort": "none"}),
        ("/v1/chat/completions", {}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ("/v1/responses", {"input": "Which?"}, {"reasoning": {"effort": "none"}}),
    ],
)
def test_r1_thinks_unless_it_is_told_not_to(
    r1: LiveServer, path: str, usual: dict[str, Any], told: dict[str, Any]
) -> None:
    body = asked("Which?", max_tokens=9, max_output_tokens=9, options={"num_predict": 9}) | usual
    thoughts = re.compile('"thinking":|"reasoning_content":|"reasoning_text"')
    assert thoughts.search(json.dumps(r1.ask(path, body)))
    assert not thoughts.search(json.dumps(r1.ask(path, body | told)))


def test_stops_hold_for_text_only(spoken: tuple[LiveServer, Family]) -> None:
    server, family = spoken
    for stop in ("Hm", "final", "assistant", "message"):
        body = asked(family.answer, stop=[stop, "Yes"])
        said = server.ask("/v1/chat/completions", body)["choices"][0]
        assert said["message"]["content"].rstrip() == "I look."


def test_llamas_contract_shows_what_is_in_the_prompt(spoken: tuple[LiveServer, Family]) -> None:
    server, family = spoken
    prompt = server.ask("/apply-template", asked("Hi", **TOOLS))["prompt"]
    assert '"get"' in prompt
    said = server.ask("/completion", {"prompt": prompt, "n_predict": 1})
    assert said["tokens_predicted"] == 1
    assert "tools" in server.ask("/api/show", {})["capabilities"]
    assert family.hint not in prompt
