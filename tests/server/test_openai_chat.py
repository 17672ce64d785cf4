"""OpenAI's `/v1/chat/completions`: messages, formats and tools."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import akunu_py
from akunu_py.engine import Engine
from akunu_py.options import Options
from tests.server.live import LiveServer, serve

USER = [{"role": "user", "content": "Say something nice."}]


def ask(live: LiveServer, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    return live.ask(path, {"messages": USER, "max_tokens": 12, "temperature": 0} | fields)


def stream(live: LiveServer, **fields: Any) -> list[Any]:
    body = {"messages": USER, "max_tokens": 12, "temperature": 0} | fields
    *chunks, done = live.events("/v1/chat/completions", body)
    assert done == "[DONE]"
    return chunks


def content_of(live: LiveServer, **fields: Any) -> str:
    return str(ask(live, **fields)["choices"][0]["message"]["content"])


def test_an_answer_has_what_clients_read(live: LiveServer) -> None:
    answer = ask(live)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert "tool_calls" not in choice["message"]
    assert answer["usage"]["completion_tokens"] <= 12


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_the_text_is_the_engines_own(live: LiveServer, path: str) -> None:
    def generate(engine: Any) -> str:
        prompt = engine.tokenizer.render_chat(USER, open_answer=True)
        return str(engine.generate(prompt, Options(max_tokens=12)).text)

    answer = ask(live, path)
    assert answer["choices"][0]["message"]["content"] == live.worker.call(generate)


def test_streamed_and_whole_say_the_same(live: LiveServer) -> None:
    first, *parts, last = stream(live)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    said = "".join(part["choices"][0]["delta"]["content"] for part in parts)
    assert said == content_of(live)
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] in ("stop", "length")
    assert last["timings"]["predicted_n"] <= 12


def test_content_may_come_in_parts(parrot: LiveServer) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]
    assert content_of(parrot, messages=[{"role": "user", "content": parts}]) == "Hel\n\nlo."


def test_developers_write_the_system_message(live: LiveServer) -> None:
    texts = {
        content_of(live, messages=[{"role": role, "content": "Be brief."}, *USER])
        for role in ("system", "developer")
    }
    assert len(texts) == 1


def test_logprobs_are_one_object_per_token(live: LiveServer) -> None:
    answer = ask(live, logprobs=True, top_logprobs=3, max_tokens=6)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"]  # it is greedy
        assert bytes(entry["bytes"]).decode(errors="backslashreplace") == entry["token"]
    streamed = [
        entry
        for chunk in stream(live, logprobs=True, top_logprobs=3, max_tokens=6)
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [True, None]}}},
        {"type": "json_object", "schema": {"enum": [True, None]}},
    ],
)
def test_the_answer_may_have_to_follow_a_schema(live: LiveServer, wanted: dict[str, Any]) -> None:
    for seed in range(3):
        answer = ask(live, response_format=wanted, temperature=1, seed=seed)["choices"][0]
        assert json.loads(answer["message"]["content"]) in (True, None)
        assert answer["finish_reason"] == "stop"
    answer = ask(live, response_format={"type": "json_object"}, temperature=1, seed=1)
    assert answer["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize("as_parts", [False, True])
def test_a_prediction_is_drafted_from(parrot: LiveServer, *, as_parts: bool) -> None:
    said = "The quick brown fox jumps over the lazy dog."
    content: Any = [{"type": "text", "text": said}] if as_parts else said
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": said}],
        "max_tokens": 80,
        "num_draft_tokens": 8,
        "prediction": {"type": "content", "content": content},
    }
    answer = ask(parrot, **body)
    assert answer["choices"][0]["message"]["content"] == said
    assert answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    # It changes nothing but the drafts, whatever it says.
    other = body | {"prediction": {"type": "content", "content": "Something else"}}
    assert content_of(parrot, **other) == said


def test_a_second_turn_finds_the_first_in_the_cache(parrot: LiveServer) -> None:
    first = [{"role": "user", "content": "A first question, long enough to be worth keeping."}]
    said = content_of(parrot, messages=first, max_tokens=80)
    second = [*first, {"role": "assistant", "content": said}, {"role": "user", "content": "Two"}]
    usage = ask(parrot, messages=second)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 2 * len(said)


def test_a_client_can_set_template_options_but_not_the_template(live: LiveServer) -> None:
    expected = content_of(live)
    asked = {"enable_thinking": False, "chat_template": "{{ 1 / 0 }}", "tokenize": True}
    assert content_of(live, chat_template_kwargs=asked, reasoning_effort="low") == expected
    assert content_of(live, chat_template="{{ 1 / 0 }}") == expected


def test_template_variables_of_a_request_replace_those_of_the_start(tiny_model_dir: Path) -> None:
    said = "{{ mood }}{% if not enable_thinking %} without a thought{% endif %}"
    said += "{% if date_string == '' %}{% else %} today{% endif %}"
    start = {"mood": "calm", "enable_thinking": True, "date_string": ""}

    def load() -> Engine:
        return akunu_py.load(
            akunu_py.ModelOptions(str(tiny_model_dir), chat_template=said, chat_template_args=start)
        )

    with serve(load) as server:
        for given, prompt in (
            ({}, "calm"),
            ({"mood": "excited"}, "excited"),
            ({"enable_thinking": False}, "calm without a thought"),
            ({"enable_thinking": None}, "calm"),
            ({"date_string": "1 Jan 2026"}, "calm today"),
        ):
            usage = ask(server, chat_template_kwargs=given)["usage"]
            assert usage["prompt_tokens"] == len(prompt)


def test_a_template_that_asks_for_the_date_gets_todays(tiny_model_dir: Path) -> None:
    said = "{{ date_string[-4:] }}"
    with serve(
        lambda: akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), chat_template=said))
    ) as server:
        prompt = server.post("/apply-template", {"messages": USER}).json()["prompt"]
        assert prompt in (f"{datetime.now(UTC).year}", f"{datetime.now(UTC).year - 1}")


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    function = {"name": name, "description": "A tool.", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [tool("read_file"), tool("list_files")]
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "ä.py"}}\n</tool_call>'


def tools_body(says: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": says}]
    return {"messages": messages, "tools": TOOLS, "max_tokens": 400, "temperature": 0} | fields


def choice_of(parrot: LiveServer, says: str, **fields: Any) -> Any:
    return parrot.ask("/v1/chat/completions", tools_body(says, **fields))["choices"][0]


def assert_reads_the_file(call: dict[str, Any]) -> None:
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    assert call["function"]["name"] == "read_file"
    assert json.loads(call["function"]["arguments"]) == {"path": "ä.py"}


def test_calls_are_parsed(parrot: LiveServer) -> None:
    assert choice_of(parrot, CALL)["message"]["content"] is None
    choice = choice_of(parrot, f"Let me see.{CALL}\n{CALL}")
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    first, second = choice["message"]["tool_calls"]
    assert first["id"] != second["id"]
    assert_reads_the_file(first)
    assert_reads_the_file(second)


def test_calls_are_streamed(parrot: LiveServer) -> None:
    asked = tools_body(f"See:{CALL}\n{CALL}", num_draft_tokens=0)
    *chunks, last, done = parrot.events("/v1/chat/completions", asked)
    assert done == "[DONE]"
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "See:"
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    begun = [call for call in calls if "id" in call]
    assert [call["index"] for call in begun] == [0, 1]
    for call in begun:
        assert call["function"]["arguments"] == ""
        pieces = [each["function"]["arguments"] for each in calls if each["index"] == call["index"]]
        assert len(pieces) > 2
        call["function"]["arguments"] = "".join(pieces)
        assert_reads_the_file(call)


def test_a_model_cannot_leave_a_call_unfinished(parrot: LiveServer) -> None:
    choice = choice_of(parrot, '<tool_call>\n{"name": "list_files", "argu')
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "list_files"
    assert call["function"]["arguments"].startswith('{"')


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
PERSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
THOUGHT = "Who? {<tool_call>Question: who?"


@pytest.mark.parametrize(
    ("says", "fields", "content"),
    [
        ('{"name": "Ada", "age": 36}', {"response_format": PERSON_FORMAT}, True),
        ("Ada.", {"structured_outputs": {"regex": "[A-Z][a-z]*[.]"}, "tools": []}, True),
        (CALL, {"tool_choice": "required"}, False),
        ('{"name": "Ada", "age": 36}', {"response_format": PERSON_FORMAT, "tools": []}, True),
        ("Ada <think>is</think> it. ", {"stop": ["Question:"]}, True),
    ],
    ids=["schema", "regex", "required call", "schema without tools", "stop"],
)
def test_grammars_and_stops_leave_reasoning_alone(
    parrot: LiveServer, says: str, fields: dict[str, Any], *, content: bool
) -> None:
    spoken = f"<think>{THOUGHT}</think>\n\n{says}Question: who?"
    message = choice_of(parrot, spoken, **fields)["message"]
    assert message["reasoning_content"] == THOUGHT
    assert message["content"] == (says if content else None)
    assert bool(message.get("tool_calls")) is not content
    body = tools_body(spoken, stream=True, **fields)
    chunks = [chunk for chunk in parrot.events("/v1/chat/completions", body) if chunk != "[DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == THOUGHT
    assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")


def test_a_budget_ends_reasoning_before_a_grammar(parrot: LiveServer) -> None:
    spoken = '<think>abcdefgh</think>{"name": "Ada", "age": 36}'
    fields = {"response_format": PERSON_FORMAT, "thinking_token_budget": 5, "tools": []}
    message = choice_of(parrot, spoken, **fields)["message"]
    assert message["reasoning_content"] == "abcd"  # the mark counts, too
    assert json.loads(message["content"]).keys() == {"name", "age"}
    refused = parrot.post("/v1/chat/completions", tools_body("a", thinking_token_budget=5))
    assert refused.status_code == 400


def test_without_parallel_calls_the_answer_ends_after_the_first(parrot: LiveServer) -> None:
    choice = choice_of(parrot, f"{CALL}\n{CALL}", parallel_tool_calls=False)
    (call,) = choice["message"]["tool_calls"]
    assert_reads_the_file(call)
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": []}, {"tools": None}])
def test_without_tools_a_call_is_text(parrot: LiveServer, fields: dict[str, Any]) -> None:
    choice = choice_of(parrot, CALL, **fields)
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "wanted",
    [
        "required",
        {"type": "function", "function": {"name": "read_file"}},
        {"type": "function", "name": "read_file"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"name": "read_file"}]},
    ],
)
def test_a_call_can_be_required(parrot: LiveServer, wanted: Any) -> None:
    choice = choice_of(parrot, CALL, tool_choice=wanted)
    (call,) = choice["message"]["tool_calls"]
    assert_reads_the_file(call)


def test_the_template_gets_only_the_tools_that_may_be_called(parrot: LiveServer) -> None:
    def prompt_tokens(**fields: Any) -> int:
        answer = parrot.post("/v1/chat/completions", tools_body("Hello", **fields)).json()
        return int(answer["usage"]["prompt_tokens"])

    both, none = prompt_tokens(), prompt_tokens(tool_choice="none")
    assert none == prompt_tokens(tools=None) < both
    named = {"type": "function", "function": {"name": "list_files"}}
    assert none < prompt_tokens(tool_choice=named) < both


def test_results_of_calls_go_back_to_the_model(parrot: LiveServer) -> None:
    function = {"name": "read_file", "arguments": '{"path": "a.py"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "What is in a.py?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "print('hello')"},
    ]
    assert choice_of(parrot, "", messages=messages)["message"]["content"] == "print('hello')"


def test_an_answer_is_begun_continued_or_left_alone(parrot: LiveServer) -> None:
    messages = [{"role": "user", "content": "print('hello')"},
                {"role": "assistant", "content": "print("}]  # fmt: skip

    def prompt(**fields: Any) -> str:
        answer = parrot.post("/apply-template", {"messages": messages} | fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["prompt"])

    assert prompt().endswith("assistant\nprint(")
    assert prompt(continue_final_message=True, add_generation_prompt=False) == prompt()
    assert prompt(continue_final_message=False).endswith(
        "print(<|im_end|>\n<|im_start|>assistant\n"
    )


def test_every_chunk_but_the_first_can_have_timings(live: LiveServer) -> None:
    first, *parts, _ = stream(live, timings_per_token=True)
    assert "timings" not in first
    assert all(part["timings"]["predicted_n"] > 0 for part in parts)
