"""lm-evaluation-harness, where it scores texts through `/v1/completions`."""

from typing import Any

import pytest

from tests.server.live import LiveServer

CONTEXT, GOOD, BAD = "def area(radius):\n    return ", "radius * radius", "zebra pudding qux"


def harness_body(prompts: Any) -> dict[str, Any]:
    """What `local-completions` sends for a log-forward_logprobs."""
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
    """What it reads: how likely the continuation is, and whether it is the likeliest. The token
    that had to be generated is left out."""
    logprobs = choice["logprobs"]["token_logprobs"][context:-1]
    tops = choice["logprobs"]["top_logprobs"][context:-1]
    greedy = all(own == max(top.values()) for own, top in zip(logprobs, tops, strict=True))
    return sum(logprobs), greedy


def ids_of(live: LiveServer, text: str) -> list[int]:
    return list(live.post("/tokenize", {"content": text}).json()["tokens"])


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


def test_what_the_model_says_itself_is_the_likeliest(live: LiveServer) -> None:
    body = {"prompt": CONTEXT, "max_tokens": 8, "temperature": 0, "logprobs": 1}
    said = live.post("/v1/completions", body).json()["choices"][0]
    ids = live.post("/tokenize", {"content": CONTEXT + said["text"]}).json()["tokens"]
    (choice,) = live.post("/v1/completions", harness_body(ids)).json()["choices"]
    score, greedy = harness_score(choice, len(ids_of(live, CONTEXT)))
    assert greedy
    assert score == pytest.approx(sum(said["logprobs"]["token_logprobs"]), abs=1e-2)
