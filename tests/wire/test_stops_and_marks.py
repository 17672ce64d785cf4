"""Where stop strings, reasoning and calls meet: the same in all contracts, streamed and whole."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from akunu_py.engine import Engine
from akunu_py.text.answer_parser import AnswerFormat, AnswerParser
from tests.parrot import parrot_engine
from tests.server.live import LiveServer, serve

PARAMETERS = {"type": "object", "properties": {"p": {"type": "string"}}, "required": ["p"]}
CALL = '<tool_call>\n{"name": "get", "arguments": {"p": "v"}}\n</tool_call>'
WHOLE = {"type": "json_schema", "json_schema": {"name": "x", "schema": {
    "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}}  # fmt: skip


def tools(name: str = "get") -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}}]}


def asked(says: str, **fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": says}]
    return {"messages": said, "max_tokens": 400, "temperature": 0} | fields


def chat(server: LiveServer, says: str, **fields: Any) -> tuple[str, list[str], str]:
    """The text, the arguments of the calls and the reason of the end, streamed and whole alike."""
    (choice,) = server.ask("/v1/chat/completions", asked(says, **fields))["choices"]
    message = choice["message"]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
    *chunks, _ = server.events("/v1/chat/completions", asked(says, **fields))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    text = "".join(delta.get("content") or "" for delta in deltas)
    streamed: dict[int, str] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        added = call["function"].get("arguments", "")
        streamed[call["index"]] = streamed.get(call["index"], "") + added
    assert (text, [*streamed.values()]) == (message["content"] or "", calls)
    return text, calls, choice["finish_reason"]


@pytest.mark.parametrize("stop", ["\n", "\n\n"])
def test_blanks_after_reasoning_stop_nothing(parrot: LiveServer, stop: str) -> None:
    says = "<think>x\n\ny</think>\n\nHello\n\nWorld"
    assert chat(parrot, says, stop=[stop])[0] == "Hello"
    said = parrot.ask("/v1/messages", asked(says, stop_sequences=[stop]))
    assert said["content"][-1]["text"] == "Hello"
    whole = '<think>x</think>\n\n{"a": "b"}'
    assert chat(parrot, whole, stop=[stop], response_format=WHOLE)[0] == '{"a": "b"}'


@pytest.mark.parametrize(
    ("stop", "arguments"),
    [("\n", None), ("get", None), ('"v', '{"p": '), ("\n</tool_call>", '{"p": "v"}')],
)
@pytest.mark.parametrize("name", ["get", "a b"], ids=["held", "not held"])
def test_a_stop_string_within_a_call_leaves_no_marks(
    parrot: LiveServer, stop: str, arguments: str | None, name: str
) -> None:
    says = f"See. {CALL}"
    text, calls, reason = chat(parrot, says, stop=[stop], **tools(name))
    assert text == "See. "
    is_whole = stop.startswith("\n</")
    if name == "get" or is_whole:
        assert calls == ([] if arguments is None else [arguments])
    assert reason == ("tool_calls" if is_whole else "stop")


def test_a_stop_that_the_client_did_not_send_is_not_told(parrot: LiveServer) -> None:
    named = {"tools": [{"name": "a b", "input_schema": PARAMETERS}],
             "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}  # fmt: skip
    body = asked("x <tool_call>bad</tool_call> more", **named)
    said = parrot.ask("/v1/messages", body)
    assert (said["stop_reason"], said["stop_sequence"]) == ("end_turn", None)
    assert said["content"][0]["text"] == "x <tool_call>bad</tool_call>"


@pytest.mark.parametrize("name", ["get", "a b"], ids=["held", "not held"])
def test_what_is_no_call_keeps_its_blanks(parrot: LiveServer, name: str) -> None:
    says = "x <tool_call>bad</tool_call> and\n more"
    if name == "a b":
        assert chat(parrot, says, **tools(name))[0] == says
    says = '{"a": "<tool_call>X y"}'
    text, calls, _ = chat(parrot, says, response_format=WHOLE, num_draft_tokens=0, **tools())
    assert (text, calls) == (says, [])


def test_many_calls_are_read_in_one_piece(parrot: LiveServer) -> None:
    parser = AnswerParser(parrot.service.engine.tokenizer.answer_format, [], holds_calls=True)
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    try:
        steps = [*parser.feed(CALL * 150), *parser.finish()]
    finally:
        sys.setrecursionlimit(usual)
    assert sum(what == "stop" for what, _, _ in steps) == 150


def test_a_second_mark_is_a_thought() -> None:
    for pieces in (["<think><think>"], ["<think>", "<think>"], ["\n", "<think>", "\n", "<think>"]):
        parser = AnswerParser(AnswerFormat("<think>", "</think>"), None)
        steps = [step for piece in pieces for step in parser.feed(piece, len(piece))]
        assert "".join(text for _, _, text in steps) == "<think>"


def test_ollama_generates_with_reasoning(parrot: LiveServer) -> None:
    body = {"prompt": '<think>let me</think>{"a": "b"}', "stream": False, "stop": ["me"]}
    schema = WHOLE["json_schema"]["schema"]  # type: ignore[index]
    said = parrot.ask("/api/generate", body | {"format": schema, "think": True})
    assert (said["thinking"], said["response"]) == ("let me", '{"a": "b"}')
    lines = parrot.lines("/api/generate", body | {"stream": True})
    assert "".join(line.get("thinking", "") for line in lines) == "let me"
    assert "".join(line["response"] for line in lines) == '{"a": "b"}'
    refused = parrot.post("/api/generate", body | {"think": 5})
    assert refused.status_code == 400


SHOWS_THOUGHTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant{{ '\n' }}"
)


def thoughtful(folder: Path) -> Engine:
    """A parrot whose template shows earlier reasoning."""
    engine = parrot_engine(folder)
    engine.tokenizer.wrapped.chat_template = SHOWS_THOUGHTS
    return engine


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("models") / "thinker"
    with serve(lambda: thoughtful(folder)) as server:
        yield server


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_the_reasoning_before_what_is_continued_stays(thinker: LiveServer, name: str) -> None:
    question = {"role": "user", "content": "Hello there"}
    begun = {"role": "assistant", "content": "Hel", name: "Hm."}
    prompt = thinker.ask("/apply-template", {"messages": [question, begun]})["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n<think>\nHm.\n</think>\n\nHel")


def test_two_answers_in_a_row_keep_both_thoughts(thinker: LiveServer) -> None:
    def answer(thought: str, text: str) -> dict[str, Any]:
        blocks = [{"type": "thinking", "thinking": thought}, {"type": "text", "text": text}]
        return {"role": "assistant", "content": blocks}

    turns = [{"role": "user", "content": "a"}, answer("one", "b"), answer("two", "c")]
    counts = []
    for messages in (turns, [*turns[:2], answer("", "c")]):
        body = {"messages": [*messages, {"role": "user", "content": "d"}]}
        counts.append(thinker.ask("/v1/messages/count_tokens", body)["input_tokens"])
    assert counts[0] == counts[1] + len("two")


def test_a_call_cannot_be_continued(parrot: LiveServer) -> None:
    begun = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": CALL[:30]}]
    answer = parrot.post("/v1/chat/completions", {"messages": begun} | tools())
    assert answer.json()["error"]["message"] == "`messages` cannot end in the middle of a call."
    parrot.ask("/v1/chat/completions", {"messages": begun, "max_tokens": 1})
