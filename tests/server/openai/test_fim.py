"""`/v1/fim/completions`: its request's fields, and what its answers have."""

from typing import Any

from tests.server.live import LiveServer

PATH = "/v1/fim/completions"
BODY = {"prompt": "ab", "suffix": "cde", "max_tokens": 6, "temperature": 0}


def ask(live: LiveServer, **fields: Any) -> Any:
    response = live.post(PATH, BODY | fields)
    assert response.status_code == 200, response.text
    return response.json()


def content_of(live: LiveServer, **fields: Any) -> str:
    return str(ask(live, **fields)["choices"][0]["message"]["content"])


def test_an_answer_is_a_message_that_fills_the_gap(live: LiveServer) -> None:
    answer = ask(live)
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len("ab") + len("cde") + 3
    assert answer["usage"]["completion_tokens"] == 6
    filled = live.post("/v1/completions", BODY).json()["choices"][0]["text"]
    assert choice["message"]["content"] == filled


def test_streamed_and_whole_say_the_same(live: LiveServer) -> None:
    *chunks, done = live.events(PATH, BODY)
    assert done == "[DONE]"
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert "".join(texts) == content_of(live)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 6


def test_without_a_suffix_the_prompt_goes_on(live: LiveServer) -> None:
    answer = ask(live, suffix=None)
    assert answer["usage"]["prompt_tokens"] == len("ab")


def test_the_seed_may_be_called_random(live: LiveServer) -> None:
    drawn = [
        content_of(live, temperature=1, max_tokens=16, **{name: 7})
        for name in ("random_seed", "seed")
    ]
    assert drawn[0] == drawn[1]


def test_stops_and_predictions_are_heard(live: LiveServer) -> None:
    whole = content_of(live, max_tokens=12)
    stopped = content_of(live, max_tokens=12, stop=whole[3:5])
    assert stopped == whole[: whole.index(whole[3:5])]
    predicted = ask(live, max_tokens=12, prediction={"type": "content", "content": whole * 2})
    assert predicted["choices"][0]["message"]["content"] == whole
