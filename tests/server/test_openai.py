"""OpenAI's `/v1/completions`, errors and models, and Mistral's `/v1/fim/completions`."""

from typing import Any

import pytest

from akunu_py.options import Options
from akunu_py.text.fim import FillRequest
from tests.server.live import LiveServer

PROMPT = "one two one two one two one"


def ask(live: LiveServer, **fields: Any) -> Any:
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    return live.ask("/v1/completions", body | fields)


def text_of(live: LiveServer, **fields: Any) -> str:
    return str(ask(live, **fields)["choices"][0]["text"])


def stream(live: LiveServer, **fields: Any) -> list[Any]:
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0} | fields
    *chunks, done = live.events("/v1/completions", body)
    assert done == "[DONE]"
    return chunks


def test_an_answer_has_what_clients_read(live: LiveServer) -> None:
    answer = ask(live)
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert type(answer["created"]) is int
    assert answer["model"] == "tiny"
    (choice,) = answer["choices"]
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), 8)
    assert usage["total_tokens"] == len(PROMPT) + 8
    assert answer["timings"]["predicted_n"] == 8


def test_streamed_and_whole_say_the_same(live: LiveServer) -> None:
    *parts, last = stream(live, max_tokens=24)
    said = "".join(part["choices"][0]["text"] for part in parts)
    assert said == text_of(live, max_tokens=24)
    assert {part["choices"][0]["finish_reason"] for part in parts} == {None}
    assert last["choices"][0] == {
        "index": 0, "text": "", "logprobs": None, "finish_reason": "length"
    }  # fmt: skip
    assert len({part["id"] for part in [*parts, last]}) == 1
    assert "usage" not in last
    assert last["timings"]["predicted_n"] == 24


def test_usage_ends_a_stream_that_asks_for_it(live: LiveServer) -> None:
    *parts, last = stream(live, stream_options={"include_usage": True})
    assert {part["usage"] for part in parts} == {None}
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    assert last["timings"]["predicted_n"] == 8


def test_prompts_are_texts_or_ids_one_or_many(live: LiveServer) -> None:
    ids = live.worker.call(lambda engine: engine.tokenizer.encode(PROMPT))
    expected = text_of(live)
    assert text_of(live, prompt=[PROMPT]) == expected
    assert text_of(live, prompt=ids) == expected
    assert text_of(live, prompt=[ids]) == expected
    assert text_of(live, prompt=[*ids[:2], PROMPT[2:]]) == expected
    several = ask(live, prompt=[PROMPT, "other"])
    assert [choice["index"] for choice in several["choices"]] == [0, 1]
    assert several["choices"][0]["text"] == expected
    assert several["usage"]["prompt_tokens"] == len(PROMPT) + len("other")
    assert several["usage"]["completion_tokens"] == 16


def test_choices_count_their_prompt_once(live: LiveServer) -> None:
    answer = ask(live, n=3, best_of=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({choice["text"] for choice in answer["choices"]}) == 1
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)
    assert answer["usage"]["completion_tokens"] == 24


def test_a_suffix_asks_to_fill_the_gap(live: LiveServer) -> None:
    own = live.worker.call(
        lambda engine: engine.generate(FillRequest(PROMPT, "the end"), Options(8))
    )
    assert text_of(live, suffix="the end") == own.text
    streamed = stream(live, suffix="the end")
    assert "".join(part["choices"][0]["text"] for part in streamed) == own.text


def test_a_model_without_gaps_says_so(parrot: LiveServer) -> None:
    for streams in (False, True):
        body = {"prompt": "a", "suffix": "b", "stream": streams}
        response = parrot.post("/v1/completions", body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert "fill-in-the-middle" in error["message"]


def test_echo_repeats_the_prompt(live: LiveServer) -> None:
    ids = live.worker.call(lambda engine: engine.tokenizer.encode("é…"))
    expected = text_of(live, prompt="é…")
    assert text_of(live, prompt="é…", echo=True) == "é…" + expected
    assert text_of(live, prompt=ids, echo=True) == "é…" + expected
    assert text_of(live, echo=True, max_tokens=0) == PROMPT
    streamed = stream(live, prompt="é…", echo=True)
    assert "".join(part["choices"][0]["text"] for part in streamed) == "é…" + expected


def test_any_number_of_stops(live: LiveServer) -> None:
    whole = text_of(live, max_tokens=24)
    stops = [f"never {index}" for index in range(12)] + [whole[4:6]]
    answer = ask(live, max_tokens=24, stop=stops)
    assert answer["choices"][0]["text"] == whole[: whole.index(whole[4:6])]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert text_of(live, max_tokens=24, stop=whole[4:6]) == answer["choices"][0]["text"]


def test_drafts_are_counted_after_truncation(live: LiveServer) -> None:
    whole = text_of(live, max_tokens=60)
    for answer in (ask(live, max_tokens=60), ask(live, max_tokens=60, stop=whole[20:24])):
        usage, timings = answer["usage"], answer["timings"]
        details = usage["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] <= usage["completion_tokens"]
        assert timings.get("draft_n_accepted", 0) == details["accepted_prediction_tokens"]
        assert timings.get("draft_n", 0) == sum(details.values())


def test_logprobs_are_the_engines(live: LiveServer) -> None:
    own = live.worker.call(
        lambda engine: engine.generate(PROMPT, Options(max_tokens=8, logprobs=2))
    )
    found = ask(live, logprobs=2)["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["text_offset"]) == 8
    assert found["token_logprobs"] == pytest.approx(
        [entry.logprob for entry in own.logprobs], abs=1e-3
    )
    for token, logprob, top in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
    ):
        assert 2 <= len(top) <= 3
        assert top[token] == logprob
        assert max(top.values()) == logprob  # it is greedy


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_an_echoed_prompt_has_logprobs_too(live: LiveServer, max_tokens: int) -> None:
    options = Options(max_tokens, logprobs=2, scores_prompt=True)
    own = live.worker.call(lambda engine: engine.generate("é…!", options)).prompt_logprobs
    assert own is not None
    fields = {"prompt": "é…!", "echo": True, "logprobs": 2, "max_tokens": max_tokens}
    (choice,) = ask(live, **fields)["choices"]
    found = choice["logprobs"]
    assert {len(values) for values in found.values()} == {6 + max_tokens}, "bytes are tokens here"
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    assert found["token_logprobs"][1:6] == pytest.approx(
        [entry.logprob for entry in own.following], abs=1e-3
    )
    assert choice["text"].startswith("é…!")
    assert found["tokens"][5] == "!"
    assert choice["text"][found["text_offset"][5]] == "!"


@pytest.mark.parametrize("echo", [False, True])
def test_streamed_logprobs_are_the_whole_ones(live: LiveServer, *, echo: bool) -> None:
    fields = {"echo": echo, "logprobs": 1, "max_tokens": 4}
    (whole,) = ask(live, **fields)["choices"]
    joined: dict[str, list[Any]] = {name: [] for name in whole["logprobs"]}
    text = ""
    for chunk in stream(live, **fields):
        text += chunk["choices"][0]["text"]
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert text == whole["text"]
    assert joined["tokens"] == whole["logprobs"]["tokens"]
    assert joined["text_offset"] == whole["logprobs"]["text_offset"]
    own = [logprobs["token_logprobs"][int(echo) :] for logprobs in (joined, whole["logprobs"])]
    assert own[0] == pytest.approx(own[1], abs=1e-3)  # an echoed prompt begins with None


def test_the_token_after_a_scored_prompt_is_reported_even_if_it_is_an_end_token(
    live: LiveServer,
) -> None:
    (end,) = live.worker.call(lambda engine: engine.tokenizer.end_tokens)
    forced = {"prompt": "abc", "logprobs": 1, "logit_bias": {str(end): 1000}}
    (scored,) = ask(live, echo=True, **forced)["choices"]
    assert (scored["text"], scored["finish_reason"]) == ("abc", "stop")
    assert scored["logprobs"]["tokens"] == ["a", "b", "c", "<|im_end|>"]
    assert scored["logprobs"]["token_logprobs"][-1] < 0
    (answer,) = ask(live, **forced)["choices"]
    assert answer["logprobs"]["tokens"] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 2, "frequency_penalty": 1.5},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 12, "min_p": 0.01, "seed": 3},
        {"temperature": 0.7, "seed": 3, "xtc_probability": 0.9, "xtc_threshold": 0.01},
    ],
)
def test_sampling_reaches_the_engine(live: LiveServer, fields: dict[str, Any]) -> None:
    options = Options(16, **fields)
    own = live.worker.call(lambda engine: engine.generate(PROMPT, options))
    assert text_of(live, max_tokens=16, user="somebody", **fields) == own.text
    assert text_of(live, max_tokens=16, **fields | {"seed": 4, "temperature": 1}) != own.text


def test_openais_defaults_hold(live: LiveServer) -> None:
    answer = live.post("/v1/completions", {"prompt": PROMPT}).json()
    assert answer["usage"]["completion_tokens"] <= 16


def test_cached_tokens_are_reported(live: LiveServer) -> None:
    prompt = "a prompt that nobody has completed here before"
    ask(live, prompt=prompt)
    usage = ask(live, prompt=prompt)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == len(prompt) - 1


FIM_PATH = "/v1/fim/completions"
GAP = {"prompt": "ab", "suffix": "cde", "max_tokens": 6, "temperature": 0}


def fill(live: LiveServer, **fields: Any) -> Any:
    return live.ask(FIM_PATH, GAP | fields)


def filled(live: LiveServer, **fields: Any) -> str:
    return str(fill(live, **fields)["choices"][0]["message"]["content"])


def test_an_answer_is_a_message_that_fills_the_gap(live: LiveServer) -> None:
    assert fill(live, suffix=None)["usage"]["prompt_tokens"] == len("ab")
    answer = fill(live)
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len("ab") + len("cde") + 3
    assert answer["usage"]["completion_tokens"] == 6
    filled = live.post("/v1/completions", GAP).json()["choices"][0]["text"]
    assert choice["message"]["content"] == filled


def test_streamed_and_whole_fill_the_same(live: LiveServer) -> None:
    *chunks, done = live.events(FIM_PATH, GAP)
    assert done == "[DONE]"
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert "".join(texts) == filled(live)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 6


def test_the_seed_may_be_called_random_seed(live: LiveServer) -> None:
    drawn = [
        filled(live, temperature=1, max_tokens=16, **{name: 7}) for name in ("random_seed", "seed")
    ]
    assert drawn[0] == drawn[1]


def test_stops_and_predictions_are_applied(live: LiveServer) -> None:
    whole = filled(live, max_tokens=12)
    stopped = filled(live, max_tokens=12, stop=whole[3:5])
    assert stopped == whole[: whole.index(whole[3:5])]
    predicted = fill(live, max_tokens=12, prediction={"type": "content", "content": whole * 2})
    assert predicted["choices"][0]["message"]["content"] == whole


def test_there_is_one_openai_model(live: LiveServer) -> None:
    for path in ("/v1/models", "/models"):
        (entry,) = live.get(path).json()["data"]
        assert (entry["id"], entry["object"]) == ("tiny", "model")
        assert entry["meta"]["n_ctx"] == 1024
    assert live.get("/v1/models/tiny").json() == entry
    assert live.get("/v1/models/owner/other").status_code == 404
