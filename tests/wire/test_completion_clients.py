"""Continue, Tabby and Twinny, where they speak llama-server's `/completion`."""

from tests.server.live import LiveServer

FILL = "<|fim_prefix|>def mean(values):\n    <|fim_suffix|>\n<|fim_middle|>"


def test_continue_reads_content_of_every_event(live: LiveServer) -> None:
    events = live.events(
        "/completion",
        {
            "n_predict": 24,
            "frequency_penalty": None,
            "presence_penalty": None,
            "min_p": None,
            "mirostat": None,
            "stop": ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
                     "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|im_start|>", "<|im_end|>"],
            "top_k": None,
            "top_p": None,
            "temperature": 0.01,
            "prompt": FILL,
        },
    )  # fmt: skip
    assert all(isinstance(event["content"], str) for event in events)
    assert "".join(event["content"] for event in events)


def test_tabby_reads_content_and_stop_of_every_event(live: LiveServer) -> None:
    body = {"seed": 7, "prompt": FILL, "n_predict": 24, "temperature": 0.1, "stream": True,
            "penalty_prompt": "", "presence_penalty": 0.0}  # fmt: skip
    first, second = (live.events("/completion", body) for _ in range(2))
    assert all(isinstance(event["stop"], bool) for event in first)
    assert [event["stop"] for event in first].count(True) == 1
    assert first[-1]["stop"] is True
    texts = ["".join(event["content"] for event in events) for events in (first, second)]
    assert texts[0] == texts[1]


def test_twinny_says_max_tokens(live: LiveServer) -> None:
    events = live.events(
        "/completion",
        {"prompt": FILL, "stream": True, "temperature": 0.2, "max_tokens": 5, "n_predict": None,
         "stop": ["<|endoftext|>"]},
    )  # fmt: skip
    assert events[-1]["tokens_predicted"] <= 5
    assert all("content" in event for event in events)
