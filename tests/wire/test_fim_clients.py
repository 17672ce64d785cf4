"""Continue, Zed, minuet and Tabby, where they speak Mistral's `/v1/fim/completions`."""

from tests.server.live import LiveServer

PATH = "/v1/fim/completions"
PREFIX = "import math\n\n\ndef mean(values):\n    total = "
SUFFIX = "\n    return total / len(values)\n"


def test_continue_reads_content_of_every_delta(live: LiveServer) -> None:
    body = {
        "model": "codestral",
        "prompt": PREFIX,
        "suffix": SUFFIX,
        "max_tokens": 48,
        "temperature": 0.01,
        "top_p": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "stop": ["[PREFIX]", "[SUFFIX]", "\n+++++ ", "\n\n", "/src/", "#- coding: utf-8", "```"],
        "stream": True,
    }
    *chunks, done = live.events(PATH, body)
    assert done == "[DONE]"
    assert all(isinstance(chunk["choices"][0]["delta"]["content"], str) for chunk in chunks)


def test_zed_reads_every_field_strictly(live: LiveServer) -> None:
    body = {
        "model": "codestral-latest",
        "prompt": PREFIX,
        "suffix": SUFFIX,
        "max_tokens": 150,
        "temperature": 0.2,
        "top_p": 1.0,
        "stream": False,
        "stop": None,
        "random_seed": None,
        "min_tokens": None,
    }
    answer = live.post(PATH, body).json()
    assert all(isinstance(answer[name], str) for name in ("id", "object", "model"))
    assert type(answer["created"]) is int
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert type(answer["usage"][name]) is int
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] in ("stop", "length")


def test_minuet_asks_as_codestral_has_it(live: LiveServer) -> None:
    body = {
        "model": "codestral-latest",
        "prompt": PREFIX,
        "suffix": SUFFIX,
        "stream": True,
        "max_tokens": 56,
        "stop": ["\n\n"],
    }
    *chunks, done = live.events(PATH, body)
    assert done == "[DONE]"
    assert "\n\n" not in "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)


def test_tabby_needs_a_text_in_every_delta(live: LiveServer) -> None:
    body = {
        "prompt": PREFIX,
        "suffix": SUFFIX,
        "max_tokens": 32,
        "temperature": 0.1,
        "stream": True,
        "random_seed": 7,
    }
    first, second = (live.events(PATH, body)[:-1] for _ in range(2))
    texts = [
        [chunk["choices"][0]["delta"]["content"] for chunk in part] for part in (first, second)
    ]
    assert all(isinstance(text, str) for text in texts[0])
    assert "".join(texts[0]) == "".join(texts[1])
