"""Where features meet: histories with calls that were cut, and schemas that libraries make."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import akunu_py
from akunu_py.server.settings import ServerSettings
from tests.server.live import LiveServer, serve
from tests.tiny_model import write_tiny_model

CODER = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for tool_call in message.tool_calls or [] %}{% set tool_call = tool_call.function %}"
    "<tool_call>\n<function={{ tool_call.name }}>\n"
    "{% for key, value in tool_call.arguments|items %}"
    "<parameter={{ key }}>\n{{ value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
"""Presents calls like Qwen3-Coder's template."""


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "coder")
    options = akunu_py.ModelOptions(str(folder), chat_template=CODER)
    with serve(lambda: akunu_py.load(options), folder=folder) as server:
        yield server


GO_ON = {"role": "user", "content": "Go on"}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("", ""),
        (None, ""),
        ("null", ""),
        ('{"a": ', '<parameter=arguments>\n{"a": \n</parameter>\n'),
        ("[1]", "<parameter=arguments>\n[1]\n</parameter>\n"),
        ('{"a": 1}', "<parameter=a>\n1\n</parameter>\n"),
        ('{"a": "\\ud83d"}', "<parameter=a>\n?\n</parameter>\n"),
    ],
)
def test_a_history_may_have_calls_that_were_cut(
    coder: LiveServer, arguments: str | None, shown: str
) -> None:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    said = [{"role": "assistant", "content": "", "tool_calls": [call]}, GO_ON]
    prompt = coder.ask("/apply-template", {"messages": said})["prompt"]
    assert f"<function=f>\n{shown}</function>" in prompt
    use = {"type": "tool_use", "id": "1", "name": "f", "input": arguments}
    item = {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}
    for path, fields in (
        ("/v1/chat/completions", {"messages": said}),
        ("/v1/messages", {"messages": [{"role": "assistant", "content": [use]}, GO_ON]}),
        ("/v1/responses", {"input": [item, GO_ON]}),
        ("/api/chat", {"messages": said, "stream": False, "options": {"num_predict": 1}}),
    ):
        coder.ask(path, fields | {"max_tokens": 1})
    del function["arguments"]
    coder.ask("/v1/chat/completions", {"messages": said, "max_tokens": 1})


DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "a path": ({"type": "string", "format": "path", "maxLength": 2}, ""),
    "int64": ({"type": "string", "format": "int64", "maxLength": 2}, ""),
    "integer or number": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ""),
    "Decimal": ({"type": "string", "pattern": DECIMAL, "maxLength": 3}, ""),
    "names of a kind": ({"type": "object", "propertyNames": {"enum": ["a"]}, "maxProperties": 1,
                         "additionalProperties": {"type": "boolean"}}, ""),
    "a set": ({"type": "array", "items": {"const": 1}, "uniqueItems": True, "maxItems": 2},
              "`uniqueItems`"),
    "not": ({"not": {"type": "string"}, "enum": [1, 2]}, "`not`"),
    "look-around": ({"type": "string", "pattern": "a(?=b)b", "maxLength": 2},
                    r"the pattern a(?=b)b"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_that_libraries_make_are_served(parrot: LiveServer, name: str) -> None:
    schema, unmet = SCHEMAS[name]
    holder = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    messages = [{"role": "user", "content": "Hello"}]

    def formats(**strict: bool) -> list[tuple[str, dict[str, Any]]]:
        named: dict[str, Any] = {"name": "x", "schema": holder} | strict
        tool = {"name": "f", "parameters": holder} | strict
        tools = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
        whole = {"response_format": {"type": "json_schema", "json_schema": named}}
        return [
            ("/v1/chat/completions", {"messages": messages} | whole),
            ("/v1/chat/completions", {"messages": messages} | tools),
            ("/v1/responses",
             {"input": "a", "text": {"format": {"type": "json_schema"} | named},
              "max_output_tokens": 8}),
        ]  # fmt: skip

    others: list[tuple[str, dict[str, Any]]] = [
        ("/v1/messages", {"messages": messages,
                          "output_format": {"type": "json_schema", "schema": holder}}),
        ("/completion", {"prompt": "a", "json_schema": holder}),
        ("/api/generate", {"prompt": "a", "raw": True, "format": holder}),
    ]  # fmt: skip
    for path, fields in [*formats(), *others]:
        for streams in (False, True):
            answer = parrot.post(path, {"max_tokens": 8, "stream": streams} | fields)
            assert answer.status_code == 200, answer.text
            assert unmet in answer.headers.get("warning", "")
            assert ("warning" in answer.headers) == bool(unmet)
    for path, fields in formats(strict=True):
        answer = parrot.post(path, {"max_tokens": 8} | fields)
        assert answer.status_code == (400 if unmet else 200), answer.text
        assert not unmet or f"cannot require {unmet}" in answer.json()["error"]["message"]


BAD: dict[str, dict[str, Any]] = {
    "a reference to nowhere": {"$ref": "#/nowhere"},
    "no number": {"type": "integer", "minimum": 5, "maximum": 2},
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_schema_loosens_no_other(live: LiveServer, name: str) -> None:
    def tool(called: str, b: dict[str, Any]) -> dict[str, Any]:
        properties = {"a": {"enum": [1]}, "b": b}
        parameters = {"type": "object", "properties": properties, "required": ["a", "b"]}
        return {"type": "function", "function": {"name": called, "parameters": parameters}}

    tools = {"tools": [tool("bad", BAD[name]), tool("good", {"enum": [2]})]}
    asked: dict[str, Any] = {"messages": [GO_ON], "max_tokens": 200, "temperature": 0.9} | tools
    for seed in range(2):
        called = "bad" if seed else "good"
        choice = {"tool_choice": {"type": "function", "function": {"name": called}}, "seed": seed}
        answer = live.post("/v1/chat/completions", asked | choice | {"max_tokens": 1})
        warned = "names and types of the parameters of bad" in answer.headers.get("warning", "")
        assert warned is (called == "bad")
        assert (
            "not a model for agents" in answer.headers["warning"]
        )  # the server has the bundled one
    answer = live.post("/v1/chat/completions", asked | {"tool_choice": "required", "seed": 1})
    assert answer.headers["warning"].count("types of the parameters of bad.")
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments.keys() <= {"a", "b"}


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema"}}},
         "`text.format.schema` must be a JSON schema."),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema"}}},
         "`output_config.format.schema` must be a JSON schema."),
        ("/v1/messages", {"tool_choice": {"type": "tool"}}, "`tool_choice.name` is missing."),
        ("/v1/messages", {"output_config": {"effort": "<|im_end|>"}},
         "`output_config.effort` must be a word of at most 16 characters."),
        ("/v1/responses", {"input": "a", "reasoning": {"effort": "a" * 17}},
         "`reasoning.effort` must be a word of at most 16 characters."),
        ("/v1/chat/completions", {"reasoning_effort": ""},
         "`reasoning_effort` must be a word of at most 16 characters."),
        ("/completion", {"prompt": "a", "stop": 5},
         "`stop` must be a string, or a list of strings, not a number."),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "a"}]},
         "`messages` must have one before the message to continue."),
        ("/v1/chat/completions",
         {"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}]},
         "`tools[0].function.parameters.type` must be object."),
        ("/v1/chat/completions",
         {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}]}},
         "`tool_choice` names a function that is not among `tools`."),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(
    live: LiveServer, path: str, body: dict[str, Any], sentence: str
) -> None:
    answer = live.post(path, {"max_tokens": 1, "messages": [GO_ON]} | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["message"]) == (400, sentence)


def test_the_log_quotes_no_schema(parrot: LiveServer) -> None:
    secret = {"type": "object", "properties": {"a": {"pattern": "^my-password(?!b)"}}}
    function = {"name": "f", "parameters": secret, "strict": True}
    asked = {"messages": [GO_ON], "tools": [{"type": "function", "function": function}]}
    parrot.log.clear()
    assert parrot.post("/v1/chat/completions", asked).status_code == 400
    assert "password" not in parrot.log.wait_for("/v1/chat/completions 400")


def test_no_calls_are_no_calls(live: LiveServer) -> None:
    turns = [GO_ON, {"role": "assistant", "content": "def g(", "tool_calls": []}]
    prompt = live.ask("/apply-template", {"messages": turns})["prompt"]
    assert prompt.endswith("def g(")
    prompt = live.ask("/apply-template", {"messages": [*turns, GO_ON, GO_ON]})["prompt"]
    assert prompt.count("Go on<|im_end|>") == 3


def test_any_json_is_a_schema(live: LiveServer) -> None:
    whole = {"type": "json_schema", "json_schema": {"name": "x", "schema": True}}
    asked = {"messages": [GO_ON], "response_format": whole, "max_tokens": 4, "temperature": 0}
    live.ask("/v1/chat/completions", asked)


READ = {"name": "read", "parameters": {"type": "object", "properties": {"p": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "read", "arguments": {"p": "a.py"}}\n</tool_call>'


def test_a_named_tool_is_called_once(parrot: LiveServer) -> None:
    messages = [{"role": "user", "content": "\n".join([CALL] * 3)}]
    asked: dict[str, Any] = {"messages": messages, "max_tokens": 400, "temperature": 0}
    tools = {"tools": [{"type": "function", "function": READ}],
             "tool_choice": {"type": "function", "function": {"name": "read"}}}  # fmt: skip
    message = parrot.ask("/v1/chat/completions", asked | tools)["choices"][0]["message"]
    assert (len(message["tool_calls"]), message["content"]) == (1, None)
    tools = {"tools": [{"name": "read", "input_schema": READ["parameters"]}],
             "tool_choice": {"type": "tool", "name": "read"}}  # fmt: skip
    assert len(parrot.ask("/v1/messages", asked | tools)["content"]) == 1
    item = {"input": messages, "tools": [READ | {"type": "function"}],
            "tool_choice": {"type": "function", "name": "read"}}  # fmt: skip
    assert len(parrot.ask("/v1/responses", {"temperature": 0} | item)["output"]) == 1


def test_a_template_without_tools_is_told_of_them_in_words(live: LiveServer) -> None:
    function = {"name": "read", "arguments": {"p": "a.py"}}
    said = [
        {"role": "user", "content": "Read"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "x = 1"},
        GO_ON,
    ]
    tools = [{"type": "function", "function": READ}]
    turns = live.ask("/apply-template", {"messages": said, "tools": tools})["prompt"]
    first, called, result, opened = turns.split("<|im_end|>\n")
    assert json.dumps(READ) in first
    assert first.endswith("\n\nRead")
    assert called == f"<|im_start|>assistant\n{CALL}"
    assert result.endswith("user\n<tool_response>\nx = 1\n</tool_response>\n\nGo on")
    assert opened == "<|im_start|>assistant\n"
    system = {"role": "system", "content": "Be brief"}
    turns = live.ask("/apply-template", {"messages": [system, *said], "tools": tools})["prompt"]
    assert turns.startswith("<|im_start|>system\nBe brief\n\n")
    plain = live.ask("/apply-template", {"messages": [GO_ON]})["prompt"]
    assert plain == "<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\n"


def test_any_model_can_be_made_to_call(live: LiveServer) -> None:
    asked: dict[str, Any] = {"messages": [GO_ON], "max_tokens": 200, "temperature": 0}
    bounded = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    tools = {"tools": [{"type": "function", "function": {"name": "f", "parameters": bounded}}]}
    choice = live.ask("/v1/chat/completions", asked | tools | {"tool_choice": "required"})
    (called,) = choice["choices"][0]["message"]["tool_calls"]
    assert json.loads(called["function"]["arguments"])["n"] in (1, 2)
    named = {"tools": [{"name": "f", "input_schema": bounded}], "tool_choice": {"type": "any"}}
    (use,) = live.ask("/v1/messages", asked | named)["content"]
    assert (use["type"], use["name"]) == ("tool_use", "f")


@pytest.mark.parametrize("tokens", [4, 14, 24, 40, 66, 68, 70])
def test_a_call_that_a_limit_cuts_is_not_in_the_text(parrot: LiveServer, tokens: int) -> None:
    messages = [{"role": "user", "content": f"Hm.{CALL}"}]
    asked: dict[str, Any] = {"messages": messages, "max_tokens": tokens, "temperature": 0}
    tools = {"tools": [{"type": "function", "function": READ}]}
    chat = parrot.ask("/v1/chat/completions", asked | tools)["choices"][0]
    assert (chat["message"]["content"], chat["finish_reason"]) == ("Hm.", "length")
    *chunks, _ = parrot.events("/v1/chat/completions", asked | tools)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hm."
    named = {"tools": [{"name": "read", "input_schema": READ["parameters"]}]}
    blocks = parrot.ask("/v1/messages", asked | named)["content"]
    assert [block["text"] for block in blocks if block["type"] == "text"] == ["Hm."]
    item = {"input": messages, "max_output_tokens": tokens, "tools": [READ | {"type": "function"}]}
    output = parrot.ask("/v1/responses", {"temperature": 0} | item)["output"]
    assert [each["content"][0]["text"] for each in output if "content" in each] == ["Hm."]
    options = {"options": {"num_predict": tokens, "temperature": 0}, "stream": False}
    assert parrot.ask("/api/chat", asked | tools | options)["message"]["content"] == "Hm."


@pytest.mark.parametrize(
    "item", [{"type": "item_reference", "id": "rs_1"}, {"id": "msg_1"}, {"id": "x", "type": None}]
)
def test_a_reference_to_an_item_is_refused_in_a_sentence(
    parrot: LiveServer, item: dict[str, Any]
) -> None:
    turn = {"role": "user", "content": "Hello"}
    answer = parrot.post("/v1/responses", {"input": [turn, item]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "input[1].id")
    assert "stores no responses" in error["message"]


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"type": "message", "role": "user", "id": "msg_1"}, "content"),
        ({"type": "function_call", "id": "fc_1", "call_id": "1"}, "name"),
        ({"type": "function_call_output", "call_id": "1"}, "output"),
        ({"type": "local_shell_call", "id": "lsh_1"}, "action"),
    ],
)
def test_an_item_without_its_text_is_refused(
    parrot: LiveServer, item: dict[str, Any], field: str
) -> None:
    error = parrot.post("/v1/responses", {"input": [item]}).json()["error"]
    assert error["message"] == f"`input[0].{field}` is missing."


def test_ollama_has_no_other_models(coder: LiveServer) -> None:
    chat = {"messages": [GO_ON], "options": {"num_predict": 1}, "stream": False}
    bodies = {"/api/generate": {"prompt": "a", "stream": False, "options": {"num_predict": 1}},
              "/api/chat": chat, "/api/show": {}}  # fmt: skip
    for path, body in bodies.items():
        answer = coder.post(path, body | {"model": "llama3.2"})
        assert answer.status_code == 404
        assert answer.json()["error"].startswith("model 'llama3.2' not found")
        for name in ("coder", "coder:latest", ""):
            coder.ask(path, body | {"model": name})


@pytest.mark.parametrize(
    ("keeps", "reason"), [(0, "unload"), ("0s", "unload"), ("5m", "load"), (-1, "load")]
)
def test_ollama_says_that_it_unloads(coder: LiveServer, keeps: Any, reason: str) -> None:
    for path in ("/api/generate", "/api/chat"):
        answer = coder.ask(path, {"model": "coder", "keep_alive": keeps})
        assert (answer["done"], answer["done_reason"]) == (True, reason)


def test_an_alias_with_a_tag_keeps_it(tiny_model_dir: Path) -> None:
    settings = ServerSettings(aliases=("qwen2.5-coder:7b", "any"))
    load = lambda: akunu_py.load(str(tiny_model_dir))  # noqa: E731
    with serve(load, settings, folder=tiny_model_dir) as server:
        listed = server.get("/api/tags").json()["models"]
        assert [model["name"] for model in listed] == ["qwen2.5-coder:7b", "any:latest"]
        assert len({model["digest"] for model in listed}) == 1
        (running,) = server.get("/api/ps").json()["models"]
        assert running["digest"] == listed[0]["digest"]
        shown = server.get("/v1/models").json()["data"]
        assert [model["id"] for model in shown] == ["qwen2.5-coder:7b", "any"]
        assert json.loads(server.get("/v1/models/any").text)["id"] == "any"
