"""The bodies of clients of OpenAI's endpoints, and what each reads.

Zed, minuet, Continue, Cline, Tabby and llama.vscode complete and chat, some of them through
Mistral's `/v1/fim/completions`; lm-evaluation-harness scores texts; LangChain and instructor call
tools.
"""

import json
from typing import Any

import pytest

from tests.server.live import LiveServer

PREFIX = "import math\n\n\ndef mean(values):\n    total = "
SUFFIX = "\n    return total / len(values)\n"
FILL = f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"
QWEN_STOPS = [
    "<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<|im_start|>", "<|im_end|>",
]  # fmt: skip


COMPLETIONS, FIM = "/v1/completions", "/v1/fim/completions"


STREAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "Continue": (COMPLETIONS, {
        "model": "qwen2.5-coder", "prompt": FILL, "max_tokens": 48, "temperature": 0.01, "top_p": 1,
        "frequency_penalty": 0, "presence_penalty": 0, "stop": QWEN_STOPS, "stream": True,
    }),
    "Tabby": (COMPLETIONS, {
        "model": "qwen2.5-coder", "prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 32,
        "temperature": 0.1, "stream": True, "presence_penalty": 0.0, "seed": 7,
    }),
    "Continue with Codestral": (FIM, {
        "model": "codestral", "prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 48,
        "temperature": 0.01, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0,
        "stop": ["[PREFIX]", "[SUFFIX]", "\n+++++ ", "\n\n", "/src/", "#- coding: utf-8", "```"],
        "stream": True,
    }),
    "minuet with Codestral": (FIM, {
        "model": "codestral-latest", "prompt": PREFIX, "suffix": SUFFIX, "stream": True,
        "max_tokens": 56, "stop": ["\n\n"],
    }),
    "Tabby with Codestral": (FIM, {
        "prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 32, "temperature": 0.1, "stream": True,
        "random_seed": 7,
    }),
}  # fmt: skip
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "Zed": (COMPLETIONS, {
        "model": "qwen2.5-coder", "prompt": FILL, "max_tokens": 32,
        "stop": ["<|endoftext|>", "<|file_sep|>", "<|fim_pad|>", "<|repo_name|>"],
    }),
    "llama.vscode": (COMPLETIONS, {
        "model": "", "prompt": FILL, "max_tokens": 32, "temperature": 0.1, "top_p": 0.99,
        "stream": False,
    }),
    "Zed with Codestral": (FIM, {
        "model": "codestral-latest", "prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 150,
        "temperature": 0.2, "top_p": 1.0, "stream": False, "stop": None, "random_seed": None,
        "min_tokens": None,
    }),
}  # fmt: skip


@pytest.mark.parametrize("client", STREAMED)
def test_every_chunk_has_a_text(live: LiveServer, client: str) -> None:
    path, body = STREAMED[client]
    said = []
    for _ in range(2 if {"seed", "random_seed"} & body.keys() else 1):
        *chunks, done = live.events(path, body)
        assert done == "[DONE]"
        choices = [chunk["choices"][0] for chunk in chunks]
        texts = [choice["delta"]["content"] if path == FIM else choice["text"]
                 for choice in choices]  # fmt: skip
        assert all(isinstance(text, str) for text in texts)
        said.append("".join(texts))
    assert not any(stop in said[0] for stop in body.get("stop", ()))
    assert len(set(said)) == 1, "a seed repeats the answer"


@pytest.mark.parametrize("client", WHOLE)
def test_every_field_is_there(live: LiveServer, client: str) -> None:
    """Zed reads them strictly."""
    path, body = WHOLE[client]
    response = live.post(path, body)
    assert response.status_code == 200
    answer = response.json()
    assert all(isinstance(answer[name], str) for name in ("id", "object", "model"))
    assert type(answer["created"]) is int
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert type(answer["usage"][name]) is int
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert isinstance(choice["message"]["content"] if path == FIM else choice["text"], str)
    assert choice["finish_reason"] in ("stop", "length")


CLINE_TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Request to read the contents of a file at the specified path.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "The path of the file"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("tools", [None, [CLINE_TOOL]])
def test_cline_reads_deltas_and_usage(live: LiveServer, tools: Any) -> None:
    body = {
        "model": "qwen2.5-coder",
        "messages": [
            {"role": "system", "content": "You are Cline, a highly skilled software engineer."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<task>\nFix the test\n</task>"},
                    {"type": "text", "text": "<environment_details>\n</environment_details>"},
                ],
            },
        ],
        "temperature": 0,
        "max_tokens": 24,
        "reasoning_effort": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": tools,
        "tool_choice": "auto" if tools else None,
        "parallel_tool_calls": False,
    }
    for turn in range(2):
        *chunks, last, done = live.events("/v1/chat/completions", body)
        assert done == "[DONE]"
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0]["role"] == "assistant"
        assert all(isinstance(delta.get("content", ""), str) for delta in deltas[1:])
        assert last["choices"] == []
        assert last["usage"]["prompt_tokens"] > 0
        assert last["usage"]["completion_tokens"] <= 24
        cached = last["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == last["usage"]["prompt_tokens"] - 1 or turn == 0


CONTEXT, GOOD, BAD = "def area(radius):\n    return ", "radius * radius", "zebra pudding qux"


def harness_body(prompts: Any) -> dict[str, Any]:
    """What `local-completions` sends to score texts."""
    return {
        "model": "ember",
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }


def harness_score(choice: Any, context: int) -> tuple[float, bool]:
    """What it reads: how likely the continuation is, and whether it is the most likely. The token
    that had to be generated is left out."""
    logprobs = choice["logprobs"]["token_logprobs"][context:-1]
    tops = choice["logprobs"]["top_logprobs"][context:-1]
    greedy = all(own == max(top.values()) for own, top in zip(logprobs, tops, strict=True))
    return sum(logprobs), greedy


def ids_of(live: LiveServer, text: str) -> list[int]:
    return list(live.ask("/tokenize", {"content": text})["tokens"])


def test_continuations_are_scored_behind_their_context(live: LiveServer) -> None:
    prompts = [ids_of(live, CONTEXT + continuation) for continuation in (GOOD, BAD)]
    context = len(ids_of(live, CONTEXT))
    choices = live.post("/v1/completions", harness_body(prompts)).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    for choice, prompt in zip(choices, prompts, strict=True):
        assert len(choice["logprobs"]["token_logprobs"]) == len(prompt) + 1
    good, bad = (harness_score(choice, context) for choice in choices)
    assert bad[0] < good[0] < 0
    assert not bad[1]


def test_the_models_own_greedy_text_scores_as_the_most_likely(live: LiveServer) -> None:
    body = {"prompt": CONTEXT, "max_tokens": 8, "temperature": 0, "logprobs": 1}
    said = live.post("/v1/completions", body).json()["choices"][0]
    ids = live.post("/tokenize", {"content": CONTEXT + said["text"]}).json()["tokens"]
    (choice,) = live.post("/v1/completions", harness_body(ids)).json()["choices"]
    score, greedy = harness_score(choice, len(ids_of(live, CONTEXT)))
    assert greedy
    assert score == pytest.approx(sum(said["logprobs"]["token_logprobs"]), abs=1e-2)


CHAT = "/v1/chat/completions"
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
    found: dict[str, Any] = server.ask(CHAT, body(said, **fields))["choices"][0]["message"]
    return found


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
    answer = parrot.post(CHAT, body("Hello", tools=[tool]))
    assert answer.status_code == 400
    assert "The schemas of the tools cannot be used" in answer.json()["error"]["message"]


def test_a_schema_that_refers_to_itself_forever_is_no_defect(parrot: LiveServer) -> None:
    tool = json.loads(json.dumps(WEATHER))
    tool["function"] |= {"strict": False, "parameters": {
        "type": "object", "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"type": [[]]}},
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}},
    }}  # fmt: skip
    assert parrot.post(CHAT, body("Hello", tools=[tool])).status_code == 200
    answer = parrot.post(CHAT, body("Hello", tools=[tool], tool_choice="required"))
    assert answer.status_code in (200, 400)
