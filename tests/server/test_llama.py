"""llama-server's contract: `/completion`, and what clients ask about the server and about texts."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event as Flag
from typing import Any

import pytest

import akunu_py
from akunu_py.engine import Engine
from tests.server.live import LiveServer, serve, wait_until


def ask(live: LiveServer, **fields: Any) -> Any:
    return live.ask("/completion", {"prompt": "hello", "n_predict": 6, "top_k": 1} | fields)


def test_an_answer_has_what_clients_read(live: LiveServer) -> None:
    answer = ask(live, temperature=0, return_tokens=True)
    assert answer["stop"] is True
    assert answer["stop_type"] == "limit"
    assert answer["tokens_predicted"] == len(answer["tokens"]) == 6
    assert answer["tokens_evaluated"] == 5
    assert answer["truncated"] is False
    assert answer["model"] == "tiny"
    assert answer["prompt"] == "hello"
    settings = answer["generation_settings"]
    assert (settings["n_ctx"], settings["n_predict"], settings["temperature"]) == (1024, 6, 0)


def test_streamed_and_whole_say_the_same(live: LiveServer) -> None:
    whole = ask(live)
    body = {"prompt": "hello", "n_predict": 6, "top_k": 1}
    *parts, last = live.events("/completion", body)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert sum(len(part["tokens"]) for part in parts) == 6
    assert [part["stop"] for part in parts] == [False] * len(parts)
    assert (last["stop"], last["content"]) == (True, "")
    assert last["timings"]["predicted_n"] == 6


def test_fields_are_picked_and_flattened(live: LiveServer) -> None:
    answer = ask(live, response_fields=["content", "timings/prompt_n", "nothing", "truncated"])
    assert list(answer) == ["content", "timings/prompt_n", "truncated"]
    assert ask(live, response_fields=[""]) == {}


def test_only_computed_tokens_are_timed(live: LiveServer) -> None:
    prompt = "a prompt that nobody has sent before"
    fresh, again = ask(live, prompt=prompt), ask(live, prompt=prompt)
    assert fresh["timings"]["prompt_n"] == len(prompt) - fresh["tokens_cached"]
    assert again["timings"]["prompt_n"] == 1
    assert again["tokens_cached"] == again["timings"]["cache_n"] == len(prompt) - 1


def test_a_warm_up_fills_the_cache_and_generates_nothing(live: LiveServer) -> None:
    prompt = "warm this up, please"
    warmed = ask(live, prompt=prompt, n_predict=0)
    assert (warmed["content"], warmed["tokens_predicted"]) == ("", 0)
    assert ask(live, prompt=prompt)["timings"]["prompt_n"] == 1


def test_prompts_are_texts_ids_or_both(live: LiveServer) -> None:
    ids = live.post("/tokenize", {"content": "hello"}).json()["tokens"]
    expected = ask(live)["content"]
    assert ask(live, prompt=ids)["content"] == expected
    assert ask(live, prompt=[*ids[:2], "llo"])["content"] == expected


def test_several_prompts_and_choices_are_several_results(live: LiveServer) -> None:
    answers = ask(live, prompt=["hello", "other"], n_cmpl=2)
    assert [answer["index"] for answer in answers] == [0, 1, 2, 3]
    assert answers[0]["content"] == answers[1]["content"] == ask(live)["content"]
    assert answers[3]["prompt"] == "other"


def test_seeds_of_choices_are_no_seeds_of_other_requests(live: LiveServer) -> None:
    body = {"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 3, "n_predict": 12}
    _, second = ask(live, seed=5, n_cmpl=2, **body)
    assert second["content"] != ask(live, seed=6, **body)["content"]
    reported = second["generation_settings"]["seed"]
    assert second["content"] == ask(live, seed=reported, **body)["content"]


def test_stops_end_the_text(live: LiveServer) -> None:
    whole = ask(live, n_predict=12)["content"]
    stopped = ask(live, n_predict=12, stop=["", whole[4:6]])
    assert stopped["content"] == whole[: whole.index(whole[4:6])]
    assert stopped["stop_type"] == "word"


def test_speculation_can_be_turned_off(live: LiveServer) -> None:
    body = {"prompt": "one two one two one two one", "n_predict": 40}
    texts = set()
    for name, off in (
        ("num_draft_tokens", 0), ("speculative.n_max", 0), ("speculative", {"n_max": 0}),
    ):  # fmt: skip
        answer = ask(live, **body, **{name: off})
        assert "draft_n" not in answer["timings"]
        texts.add(answer["content"])
    drafted = ask(live, **body, num_draft_tokens=4)
    assert 0 <= drafted["timings"].get("draft_n_accepted", 0) <= drafted["tokens_predicted"]
    assert {drafted["content"]} == texts


def test_samplers_that_are_not_named_are_not_applied(live: LiveServer) -> None:
    settings = ask(live, samplers=["top_k"], temperature=0)["generation_settings"]
    assert settings["temperature"] == 1
    assert settings["top_p"] == 1
    assert settings["samplers"] == ["top_k"]
    assert ask(live, samplers=["top_k", "infill"])["stop_type"] in ("eos", "limit")
    assert ask(live, samplers="kt", temperature=0)["generation_settings"]["temperature"] == 0
    excluding = {"temperature": 1, "xtc_probability": 1, "xtc_threshold": 0.2, "seed": 1}
    used = ask(live, samplers="x", **excluding)["generation_settings"]
    assert (used["xtc_probability"], used["xtc_threshold"]) == (1, 0.2)
    for unused in ({"samplers": "k"}, {"xtc_threshold": 0.6}):
        assert ask(live, **excluding | unused)["generation_settings"]["xtc_probability"] == 0
    usual = live.post("/completion", {"prompt": "a", "n_predict": 1}).json()["generation_settings"]
    assert (usual["temperature"], usual["top_k"]) == (0.8, 40)
    assert (usual["top_p"], usual["min_p"]) == (0.95, 0.05)


@pytest.mark.parametrize("bias", [[[65, 1000]], {"65": 1000}])
def test_biases_come_in_pairs_or_by_id(live: LiveServer, bias: Any) -> None:
    answer = ask(live, logit_bias=bias, return_tokens=True)
    assert answer["tokens"] == [65] * 6


def test_false_forbids_a_token(live: LiveServer) -> None:
    first = ask(live, return_tokens=True)["tokens"][0]
    assert ask(live, return_tokens=True, logit_bias=[[first, False]])["tokens"][0] != first


def test_every_token_has_its_probabilities_and_its_chunk(live: LiveServer) -> None:
    answer = ask(live, n_probs=3, temperature=0)
    assert len(answer["completion_probabilities"]) == 6
    first = answer["completion_probabilities"][0]
    assert first["logprob"] <= 0
    assert first["top_logprobs"][0]["id"] == first["id"]
    assert len(first["top_logprobs"]) == 3
    body = {"prompt": "hello", "n_predict": 6, "temperature": 0, "n_probs": 3}
    *parts, last = live.events("/completion", body)
    assert [len(part["tokens"]) for part in parts] == [1] * last["tokens_predicted"]
    assert [len(part["completion_probabilities"]) for part in parts] == [1] * len(parts)
    assert "".join(part["content"] for part in parts) == answer["content"]


def test_an_answer_follows_a_schema_or_a_grammar(live: LiveServer) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    answer = ask(live, json_schema=schema, n_predict=200)
    assert json.loads(answer["content"])["a"] in ("x", "y")
    answer = ask(live, grammar='root ::= "yes" | "no"', n_predict=20)
    assert answer["content"] in ("yes", "no")
    assert answer["stop_type"] == "eos"


def test_a_server_says_that_its_model_is_loading_and_requests_wait(tiny_model_dir: Path) -> None:
    gate = Flag()

    def load() -> Engine:
        gate.wait()
        return akunu_py.load(str(tiny_model_dir))

    with serve(load, wait_until_loaded=False) as loading, ThreadPoolExecutor(1) as pool:
        health = loading.get("/health")
        waits = pool.submit(loading.post, "/completion", {"prompt": "a", "n_predict": 1})
        wait_until(lambda: "requests_deferred 1" in loading.get("/metrics").text)
        gate.set()
        assert waits.result().status_code == 200
        assert loading.get("/health").json() == {"status": "ok"}
    assert health.status_code == 503
    assert health.json() == {
        "error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}
    }


def test_properties(live: LiveServer) -> None:
    props = live.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert props["model_alias"] == "tiny"
    assert props["eos_token"] == "<|im_end|>"
    assert "message" in props["chat_template"]
    assert str(Path.home()) not in str(props)


def test_there_is_a_slot_for_every_request_that_may_run(live: LiveServer) -> None:
    live.settle()
    slots = live.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert live.get("/props").json()["total_slots"] == 4
    assert not any(slot["is_processing"] for slot in slots)
    assert {slot["n_ctx"] for slot in slots} == {1024}
    assert all(slot["batched"] for slot in slots)


def test_metrics_are_prometheus_text(live: LiveServer) -> None:
    def read() -> dict[str, float]:
        live.settle()
        text = live.get("/metrics").text
        lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    before = read()
    answer = live.post(
        "/completion",
        {"prompt": "to be counted, to be counted, to", "n_predict": 24, "top_k": 1,
         "num_draft_tokens": 4},
    ).json()  # fmt: skip
    after = read()
    for name, key in (
        ("prompt_tokens_total", "prompt_n"),
        ("tokens_predicted_total", "predicted_n"),
        ("spec_decode_num_draft_tokens_total", "draft_n"),
        ("spec_decode_num_accepted_tokens_total", "draft_n_accepted"),
    ):
        name = f"llamacpp:{name}"  # noqa: PLW2901
        assert after[name] - before[name] == answer["timings"].get(key, 0), name
    assert after["llamacpp:requests_processing"] == 0
    accepted = sum(
        count for name, count in after.items() if "accepted_tokens_per_pos_total" in name
    )
    assert accepted == after["llamacpp:spec_decode_num_accepted_tokens_total"]


def test_texts_become_ids_and_back(live: LiveServer) -> None:
    tokens = live.post("/tokenize", {"content": "def f():"}).json()["tokens"]
    assert live.post("/detokenize", {"tokens": tokens}).json() == {"content": "def f():"}
    pieces = live.post("/tokenize", {"content": "hi", "with_pieces": True}).json()["tokens"]
    assert [piece["piece"] for piece in pieces] == ["h", "i"]
    special = {"content": "<|im_end|>"}
    assert len(live.post("/tokenize", special).json()["tokens"]) == 1
    assert len(live.post("/tokenize", special | {"parse_special": False}).json()["tokens"]) == 10


@pytest.mark.parametrize("tokens", [["a"], [True], [-1], [10**6], "ab", {}])
def test_invalid_ids_are_refused(live: LiveServer, tokens: object) -> None:
    assert live.post("/detokenize", {"tokens": tokens}).status_code == 400


def test_the_template_is_the_models_own(live: LiveServer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]}
    prompt = live.post("/apply-template", body).json()["prompt"]
    assert prompt == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na\n\nb<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_forbidden_end_is_told_as_null(live: LiveServer) -> None:
    biases = ask(live, ignore_eos=True)["generation_settings"]["logit_bias"]
    assert biases
    assert {entry["bias"] for entry in biases} == {None}
    allowed = [[entry["token"], 0.0] for entry in biases]
    biases += ask(live, ignore_eos=True, logit_bias=allowed)["generation_settings"]["logit_bias"]
    assert {entry["token"]: entry["bias"] for entry in biases} == dict.fromkeys(dict(allowed))
    assert ask(live)["generation_settings"]["logit_bias"] == []


def test_ends_that_the_network_lacks_are_not_forbidden(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akunu_py.server.dialect.fill_end_tokens", lambda _: frozenset({10**6}))
    assert ask(live, ignore_eos=True)["generation_settings"]["logit_bias"]


def test_a_forbidden_end_does_not_end_a_gap(live: LiveServer) -> None:
    gap = {"input_prefix": "def f(", "input_suffix": ")", "n_predict": 4}

    def generated(**fields: Any) -> set[int]:
        asked = (gap | fields | {"seed": seed} for seed in range(160, 175))
        return {live.ask("/infill", one)["tokens_predicted"] for one in asked}

    assert min(generated()) < 4
    assert generated(ignore_eos=True) == {4}


@pytest.mark.parametrize("extra", [{}, {"filename": "a.c"}, {"filename": 1, "text": "a"}])
def test_a_file_around_the_gap_needs_a_text(live: LiveServer, extra: Any) -> None:
    body = {"input_prefix": "a", "input_suffix": "b", "input_extra": [extra]}
    response = live.post("/infill", body)
    assert response.status_code == 400
    assert "input_extra[0]." in response.json()["error"]["message"]


def test_a_template_is_applied_as_in_a_chat(parrot: LiveServer) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    prompt = parrot.post("/apply-template", body).json()["prompt"]
    assert '"look"' in prompt
    assert prompt.endswith("<|im_start|>assistant\n")
    chat = parrot.post("/v1/chat/completions", body | {"verbose": True, "max_tokens": 2}).json()
    assert chat["__verbose"] == {"prompt": prompt}
    closed = parrot.post("/apply-template", body | {"add_generation_prompt": False}).json()
    assert closed["prompt"] == prompt.removesuffix("<|im_start|>assistant\n")
