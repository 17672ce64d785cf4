"""What is wrong with a request is told with its field, in the form of each contract."""

from typing import Any

import pytest

from tests.server.live import LiveServer
from tests.server.test_body import PREFIX_OF, complaint

SAID = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
READ = {"name": "Read", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {}}
USUAL: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("/completion", {"prompt": "a", "n_predict": 1}),
    "text": ("/v1/completions", {"prompt": "hello", "max_tokens": 2}),
    "fim": ("/v1/fim/completions", {"prompt": "hello", "max_tokens": 2}),
    "chat": ("/v1/chat/completions", {"messages": [SAID], "max_tokens": 2}),
    "calls": ("/v1/chat/completions", {"messages": [SAID], "max_tokens": 400, "tools": [TOOL]}),
    "generate": ("/api/generate", {"model": "tiny", "prompt": "hello"}),
    "ollama": ("/api/chat", {"model": "tiny"}),
    "messages": ("/v1/messages", {"model": "claude", "messages": [SAID], "max_tokens": 200}),
    "responses": ("/v1/responses", {"model": "m"}),
}
SPEAK = ("calls", "messages", "responses")
"""They ask a model that knows tools."""
WORDS = ("JSON schema", "grammar", "prompt is empty", "schema", "vocabulary", "context")
"""Where no single field is at fault."""


@pytest.mark.parametrize(
    ("contract", "fields", "field"),
    [
        ("llama", {"json_schema": {"type": "nothing"}}, "JSON schema"),
        ("llama", {"grammar": "nonsense"}, "grammar"),
        ("llama", {"grammar": 'root ::= "a"', "json_schema": {}}, "grammar"),
        ("llama", {"prompt": None}, "prompt"),
        ("llama", {"prompt": ""}, "prompt is empty"),
        ("llama", {"prompt": []}, "prompt is empty"),
        ("llama", {"prompt": [True]}, "prompt[0]"),
        ("llama", {"prompt": ["a", 5, {}]}, "prompt[2]"),
        ("llama", {"stop": ["x"] * 65}, "stop"),
        ("llama", {"stop": "x" * 513}, "stop"),
        ("llama", {"n_cmpl": 100}, "n_cmpl"),
        ("llama", {"prompt": ["a"] * 17}, "prompt"),
        ("llama", {"id_slot": -2}, "id_slot"),
        ("llama", {"logit_bias": [[1]]}, "logit_bias"),
        ("llama", {"logit_bias": [[1, "x"]]}, "logit_bias"),
        ("llama", {"speculative.n_max": -1}, "speculative.n_max"),
        ("text", {"prompt": None}, "prompt"),
        ("text", {"prompt": ["a"] * 17}, "prompt"),
        ("text", {"prompt": ["a"] * 9, "n": 2}, "prompt"),
        ("text", {"temperature": -1}, "temperature"),
        ("text", {"top_p": 2}, "top_p"),
        ("text", {"presence_penalty": 2.5}, "presence_penalty"),
        ("text", {"logprobs": 101}, "logprobs"),
        ("text", {"echo": True, "logprobs": 1, "suffix": "b"}, "logprobs"),
        ("text", {"n": 0}, "n"),
        ("text", {"best_of": 4}, "best_of"),
        ("text", {"stop": ["x"] * 65}, "stop"),
        ("text", {"logit_bias": {"": 1}}, "logit_bias"),
        ("text", {"prediction": {"type": "guess"}}, "prediction.type"),
        ("fim", {"prompt": None}, "prompt"),
        ("fim", {"min_tokens": 3, "max_tokens": "x"}, "max_tokens"),
        ("chat", {"messages": []}, "messages"),
        ("chat", {"messages": [{"content": "a"}]}, "messages[0].role"),
        ("chat", {"top_logprobs": 2}, "top_logprobs"),
        ("chat", {"tool_choice": "required"}, "tool_choice"),
        ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat", {"response_format": {"type": "xml"}}, "response_format.type"),
        ("chat", {"response_format": {"type": "json_schema"}},
         "response_format.json_schema.schema"),
        ("chat", {"chat_template_kwargs": {"enable_thinking": 1}},
         "chat_template_kwargs.enable_thinking"),
        ("chat", {"continue_final_message": True}, "continue_final_message"),
        ("chat", {"continue_final_message": True, "add_generation_prompt": True},
         "continue_final_message"),
        ("calls", {"tool_choice": "maybe"}, "tool_choice"),
        ("calls", {"tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ("calls", {"tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
        ("calls", {"tool_choice": "required", "tools": []}, "tool_choice"),
        ("calls", {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ("calls", {"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ("calls", {"functions": [{"name": "f"}]}, "functions"),
        ("generate", {"format": "yaml"}, "format"),
        ("generate", {"format": {"type": "nothing"}}, "schema"),
        ("generate", {"images": ["aGk="]}, "images"),
        ("generate", {"template": "{{ .System }} {{ .Prompt }}"}, "template"),
        ("generate", {"raw": True, "context": [1]}, "raw"),
        ("generate", {"context": [1.5]}, "context[0]"),
        ("generate", {"context": [99999]}, "vocabulary"),
        ("generate", {"prompt": "a" * 2000}, "context"),
        ("ollama", {"messages": [{"content": "hello"}]}, "messages[0].role"),
        ("ollama", {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ("ollama", {"messages": [SAID | {"images": ["aGk="]}]}, "messages[0].images"),
        ("ollama", {"messages": [SAID], "tools": [{"function": {}}]}, "tools[0].function.name"),
        ("ollama", {"messages": [SAID], "think": "harder"}, "think"),
        ("messages", {"messages": []}, "messages"),
        ("messages", {"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
        ("messages", {"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
        ("messages", {"tool_choice": {"type": "tool", "name": "Write"}, "tools": [READ]},
         "tool_choice"),
        ("messages", {"messages": [SAID | {"content": [IMAGE]}]}, "messages[0].content[0].type"),
        ("responses", {"input": []}, "input"),
        ("responses", {}, "input"),
        ("responses", {"input": "a", "background": True}, "background"),
        ("responses", {"input": "a", "truncation": "middle"}, "truncation"),
        ("responses", {"input": "a", "tool_choice": "required"}, "tool_choice"),
        ("responses", {"input": [{"type": "compaction", "encrypted_content": "x"}]},
         "input[0].type"),
        ("responses", {"input": [{"role": "bystander", "content": "a"}]}, "input[0].role"),
        ("responses", {"input": "a", "top_logprobs": 3}, "top_logprobs"),
        ("responses", {"input": "a", "include": ["message.output_text.logprobs"]}, "include"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].type"),
    ],
)  # fmt: skip
def test_the_field_at_fault_is_named(
    live: LiveServer, parrot: LiveServer, contract: str, fields: dict[str, Any], field: str
) -> None:
    path, usual = USUAL[contract]
    response = (parrot if contract in SPEAK else live).post(path, usual | fields)
    assert response.status_code == 400, response.text
    sentence = complaint(path, response)
    assert (field if field in WORDS else f"`{field}`") in sentence
    error = response.json()["error"]
    if isinstance(error, dict):
        assert error["type"] == "invalid_request_error"
    if contract == "llama":
        assert error["code"] == 400
    if PREFIX_OF[path] in ("/v1/", "/v1/responses"):
        assert error["param"] == field
