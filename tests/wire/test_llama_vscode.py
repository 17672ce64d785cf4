"""llama.vscode: `POST /infill` without picking fields, for several completions at once."""

from typing import Any

from tests.server.live import LiveServer


def infill_body(**changes: Any) -> dict[str, Any]:
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
    answers = live.post("/infill", infill_body()).json()
    assert len(answers) == 3
    for answer in answers:
        assert isinstance(answer["content"], str)
        assert isinstance(answer["tokens_cached"], int)
        assert isinstance(answer["truncated"], bool)
        assert answer["generation_settings"]["n_ctx"] == 2048
        assert answer["timings"]["predicted_ms"] >= 0
        assert answer["timings"]["prompt_n"] >= 1


def test_one_completion_is_an_object(live: LiveServer) -> None:
    answer = live.post("/infill", infill_body(n_cmpl=1)).json()
    assert isinstance(answer["content"], str)


def test_the_template_and_the_properties_are_asked_for(live: LiveServer) -> None:
    props = live.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert live.get("/health").json() == {"status": "ok"}
