"""The bodies of editors that speak llama-server's contract, and what each reads.

llama.vim and llama.vscode send `/infill`; Continue, Tabby and Twinny send `/completion`.
"""

import re
from typing import Any

import pytest

from tests.server.live import LiveServer

TIMINGS = [
    f"timings/{part}_{what}"
    for part in ("prompt", "predicted")
    for what in ("n", "ms", "per_token_ms", "per_second")
]
PREFIX = "import math\n\n\ndef area(radius):\n"
SUFFIX = "\n\n\ndef volume(radius, height):\n    return area(radius) * height\n"


def infill_body(**changes: Any) -> dict[str, Any]:
    """What the plugin sends while one types."""
    return {
        "id_slot": 0,
        "input_prefix": PREFIX,
        "input_suffix": SUFFIX,
        "input_extra": [
            {"text": "def circumference(radius):\n    return 2 * math.pi * radius\n",
             "time": [1, 2], "filename": "shapes.py"}
        ],
        "prompt": "    return ",
        "n_predict": 128,
        "stop": [],
        "n_indent": 4,
        "top_k": 40,
        "top_p": 0.90,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 250,
        "response_fields": ["content", *TIMINGS, "truncated", "tokens_cached"],
    } | changes  # fmt: skip


def warm_up_body() -> dict[str, Any]:
    """What the plugin sends to have its extra context cached."""
    return infill_body(
        input_prefix="", input_suffix="", prompt="", n_predict=0, samplers=[], stop=[],
        t_max_prompt_ms=1, t_max_predict_ms=1, response_fields=[""],
    )  # fmt: skip


def instruct_body(instruction: str, **changes: Any) -> dict[str, Any]:
    """What the plugin sends to have selected lines edited."""
    rules = "You are a text-editing assistant. Respond ONLY with the result of applying INSTRUCTION"
    asked = f"{rules}\n\n--- SELECTION\n{SUFFIX}\n\n--- INSTRUCTION\n"
    return {
        "id_slot": 0,
        "messages": [
            {"role": "system", "content": asked},
            {"role": "user", "content": instruction},
        ],
        "min_p": 0.1,
        "temperature": 0.1,
        "samplers": ["min_p", "temperature"],
        "stream": True,
        "cache_prompt": True,
    } | changes


def test_an_answer_is_found_by_the_plugins_pattern(live: LiveServer) -> None:
    response = live.post("/infill", infill_body())
    assert response.status_code == 200
    assert re.search(r'"content"\s*:"', response.text)
    assert response.text.count("\n") == 0


def test_timings_come_flat_under_their_literal_names(live: LiveServer) -> None:
    answer = live.post("/infill", infill_body()).json()
    assert set(answer) == {"content", *TIMINGS, "truncated", "tokens_cached"}
    assert all(isinstance(answer[name], int | float) for name in TIMINGS)
    assert answer["truncated"] is False


def test_a_warm_up_generates_nothing(live: LiveServer) -> None:
    response = live.post("/infill", warm_up_body())
    assert (response.status_code, response.json()) == (200, {})


def test_an_instruction_is_prefilled_before_it_is_complete_and_then_followed(
    live: LiveServer,
) -> None:
    path = "/v1/chat/completions"
    warm_up = instruct_body("", n_predict=0, samplers=[], stream=False, response_fields=[""])
    usage = live.post(path, warm_up).json()["usage"]
    assert usage["completion_tokens"] == 0
    body = instruct_body("Rename radius to r", stream_options={"include_usage": True}, max_tokens=8)
    *chunks, last, done = live.events(path, body)
    assert done == "[DONE]"
    assert all("content" in chunk["choices"][0]["delta"] for chunk in chunks[:-1])
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] / 2


SHAPES = "import math\n\n\ndef area(width, height):\n    return width * height\n\n\n"


def test_a_line_that_is_typed_gets_a_suggestion(live: LiveServer) -> None:
    """As llama.vim sends it for each key in `volume`, until there is text to show."""
    typed = "    return area(width, height) * depth"
    for end in range(1, len(typed) + 1):
        body = infill_body(
            input_prefix=f"{SHAPES}def volume(width, height, depth):\n",
            input_suffix="\n\n\ndef circumference(radius):\n    return 2 * math.pi * radius\n",
            input_extra=[], prompt=typed[:end],
        )  # fmt: skip
        if live.ask("/infill", body)["content"].strip():
            return
    pytest.fail("no key got a suggestion")


def test_an_instruction_is_answered_with_text(live: LiveServer) -> None:
    """llama.vim puts the joined contents in place of the selected lines."""
    events = live.events("/v1/chat/completions", instruct_body("Rename radius to r", max_tokens=16))
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas).strip()


def test_an_unneeded_key_is_ignored_and_a_model_may_be_named(live: LiveServer) -> None:
    body = infill_body(model="qwen2.5-coder", n_predict=2)
    assert live.post("/infill", body, Authorization="Bearer key").status_code == 200


def test_other_files_are_seen(live: LiveServer) -> None:
    body = infill_body(response_fields=None, n_predict=1)
    fewer = live.post("/infill", body | {"input_extra": []}).json()
    assert live.post("/infill", body).json()["tokens_evaluated"] > fewer["tokens_evaluated"] + 10


def test_an_answer_that_stands_in_another_file_is_drafted_from_there(live: LiveServer) -> None:
    """The file is too long for the prompt, so that the model cannot have seen the answer there,
    and the answer is so unlikely a one that nothing else can have drafted it."""
    body = infill_body(
        response_fields=None, n_predict=32, temperature=2, samplers=["temperature"], seed=7,
        t_max_predict_ms=0, ignore_eos=True, num_draft_tokens=4,
    )  # fmt: skip
    other = "".join(f"value_{number} = {number}\n" for number in range(400))

    def ask(beside: str) -> Any:
        extra = [{"filename": "other.py", "text": f"{other}{beside}"}]
        return live.post("/infill", body | {"input_extra": extra}).json()

    alone = ask(beside="")
    answer = ask(beside=f"{PREFIX}{body['prompt']}{alone['content']}")
    assert answer["content"] == alone["content"]
    assert answer["tokens_evaluated"] == alone["tokens_evaluated"] < 100
    assert drafts_accepted(answer) > drafts_accepted(alone) + 5


def drafts_accepted(answer: dict[str, Any]) -> int:
    return int(answer["timings"].get("draft_n_accepted", 0))


def vscode_body(**changes: Any) -> dict[str, Any]:
    return {
        "input_prefix": "def mean(values):\n",
        "input_suffix": "\n",
        "input_extra": [],
        "prompt": "    total = ",
        "n_predict": 24,
        "top_k": 40,
        "top_p": 0.99,
        "stream": False,
        "n_cmpl": 3,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 2500,
    } | changes


def test_several_completions_are_a_list(live: LiveServer) -> None:
    answers = live.post("/infill", vscode_body()).json()
    assert len(answers) == 3
    for answer in answers:
        assert isinstance(answer["content"], str)
        assert isinstance(answer["tokens_cached"], int)
        assert isinstance(answer["truncated"], bool)
        assert answer["generation_settings"]["n_ctx"] == 2048
        assert answer["timings"]["predicted_ms"] >= 0
        assert answer["timings"]["prompt_n"] >= 1
    alone = live.post("/infill", vscode_body(n_cmpl=1)).json()
    assert isinstance(alone["content"], str)


FILL = "<|fim_prefix|>def mean(values):\n    <|fim_suffix|>\n<|fim_middle|>"


COMPLETIONS: dict[str, dict[str, Any]] = {
    "Continue": {
        "n_predict": 24, "frequency_penalty": None, "presence_penalty": None, "min_p": None,
        "mirostat": None, "top_k": None, "top_p": None, "temperature": 0.01,
        "stop": ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
                 "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|im_start|>", "<|im_end|>"],
    },
    "Tabby": {
        "seed": 7, "n_predict": 24, "temperature": 0.1, "stream": True, "penalty_prompt": "",
        "presence_penalty": 0.0,
    },
    "Twinny": {
        "stream": True, "temperature": 0.2, "max_tokens": 24, "n_predict": None,
        "stop": ["<|endoftext|>"],
    },
}  # fmt: skip


@pytest.mark.parametrize("client", COMPLETIONS)
def test_every_event_has_its_text_and_only_the_last_ends(live: LiveServer, client: str) -> None:
    asked = COMPLETIONS[client] | {"prompt": FILL}
    texts = set[str]()
    for _ in range(2 if "seed" in asked else 1):
        events = live.events("/completion", asked)
        assert all(isinstance(event["content"], str) for event in events)
        assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
        assert events[-1]["tokens_predicted"] <= 24
        texts.add("".join(event["content"] for event in events))
    assert len(texts) == 1, "a seed repeats the answer"
    assert texts != {""}
