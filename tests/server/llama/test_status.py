"""What llama-server's clients ask it about itself, and about texts."""

from pathlib import Path
from threading import Event as Flag

import pytest

import akunu_py
from akunu_py.engine import Engine
from tests.server.live import LiveServer, serve


def test_a_server_that_loads_says_so(tiny_model_dir: Path) -> None:
    gate = Flag()

    def load() -> Engine:
        gate.wait()
        return akunu_py.load(str(tiny_model_dir))

    with serve(load, waits=False) as loading:
        responses = [loading.get("/health"), loading.get("/props"),
                     loading.post("/completion", {"prompt": "a"})]  # fmt: skip
        assert loading.get("/metrics").status_code == 200
        gate.set()
        loading.worker.loading.result()
        assert loading.get("/health").json() == {"status": "ok"}
    for response in responses:
        assert response.status_code == 503
        assert response.json() == {
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


def test_the_model_is_listed(live: LiveServer) -> None:
    for path in ("/models", "/v1/models"):
        (entry,) = live.get(path).json()["data"]
        assert entry["id"] == "tiny"
        assert entry["meta"]["n_ctx_train"] == 1024


def test_slots_tell_what_they_hold(live: LiveServer) -> None:
    live.worker.call(lambda engine: engine.reset())
    live.post("/completion", {"prompt": "hello", "n_predict": 2})
    live.settle()
    (slot,) = live.get("/slots").json()
    assert slot["n_tokens"] >= 5
    assert slot["is_processing"] is False


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
def test_what_are_no_ids_is_refused(live: LiveServer, tokens: object) -> None:
    assert live.post("/detokenize", {"tokens": tokens}).status_code == 400


def test_the_template_is_the_models_own(live: LiveServer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]}
    prompt = live.post("/apply-template", body).json()["prompt"]
    assert prompt == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "messages",
    [None, [], "hello", [5], [{"content": "no role"}], [{"role": "user", "content": 5}],
     [{"role": "user", "content": [{"type": "image_url"}]}]],
)  # fmt: skip
def test_messages_that_are_none_are_refused(live: LiveServer, messages: object) -> None:
    assert live.post("/apply-template", {"messages": messages}).status_code == 400
