"""llama.vim: `POST /infill`, read by patterns."""

import re
from pathlib import Path
from typing import Any

from akunu_py import stats
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


def test_a_warm_up_says_nothing(live: LiveServer) -> None:
    response = live.post("/infill", warm_up_body())
    assert (response.status_code, response.json()) == (200, {})


def test_an_instruction_is_read_before_it_is_given_and_then_followed(live: LiveServer) -> None:
    path = "/v1/chat/completions"
    warm_up = instruct_body("", n_predict=0, samplers=[], stream=False, response_fields=[""])
    usage = live.post(path, warm_up).json()["usage"]
    assert usage["completion_tokens"] == 0
    body = instruct_body("Rename radius to r", stream_options={"include_usage": True}, max_tokens=8)
    *chunks, last, done = live.events(path, body)
    assert done == "[DONE]"
    assert all("content" in chunk["choices"][0]["delta"] for chunk in chunks[:-1])
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] / 2


def test_a_key_and_a_model_may_come_along(live: LiveServer) -> None:
    body = infill_body(model="qwen", n_predict=2)
    assert live.post("/infill", body, Authorization="Bearer key").status_code == 200


def test_only_the_line_is_computed_again_while_it_is_typed(live: LiveServer) -> None:
    code = Path(stats.__file__).read_text()[:4700]
    gap = code.index("    def add")
    typed = "    def told(self) -> str:"
    changes = {"input_prefix": code[:gap], "input_suffix": code[gap:], "n_predict": 2}
    answers = [
        live.post("/infill", infill_body(prompt=typed[:end], **changes)).json()
        for end in range(4, len(typed), 2)
    ]
    tokens = len(live.post("/tokenize", {"content": code}).json()["tokens"])
    assert 1200 < tokens < 1700
    line = len(live.post("/tokenize", {"content": typed}).json()["tokens"])
    for answer in answers[1:]:
        assert answer["timings/prompt_n"] <= line + 1
        assert answer["tokens_cached"] > 1200


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
