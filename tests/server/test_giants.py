"""Texts of megabytes are never encoded whole: prompts that cannot fit are refused immediately, and
texts around a gap are cut to what is near it."""

from typing import Any

import pytest

from akunu_py.engine import Engine
from tests.server.live import LiveServer

GIANT = "a" * (4 << 20)
QUICKLY_ENCODED = 1 << 18


@pytest.fixture(autouse=True)
def _watched(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a long text reaches the model's tokenizer."""

    def watch(engine: Engine) -> None:
        tokenizer = engine.tokenizer.wrapped.backend_tokenizer
        encode = tokenizer.encode

        def watched(text: str, **settings: Any) -> Any:
            assert len(text) < QUICKLY_ENCODED
            return encode(text, **settings)

        monkeypatch.setattr(tokenizer, "encode", watched)

    live.worker.call(watch)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": GIANT}),
        ("/completion", {"prompt": [1, GIANT]}),
        ("/v1/completions", {"prompt": GIANT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": GIANT[:-100]}]}),
        ("/api/generate", {"prompt": GIANT}),
        ("/api/generate", {"prompt": GIANT, "raw": True}),
        ("/api/chat", {"messages": [{"role": "user", "content": GIANT}]}),
    ],
)
def test_a_prompt_that_cannot_fit_is_refused(
    live: LiveServer, path: str, body: dict[str, Any]
) -> None:
    refused = live.post(path, body)
    assert refused.status_code == 400
    assert "tokens, and exceeds the available context size of 1024;" in refused.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/infill", {"input_prefix": GIANT, "input_suffix": GIANT, "n_predict": 2}),
        (
            "/infill",
            {
                "input_prefix": "a",
                "input_suffix": "b",
                "input_extra": [{"filename": "c", "text": GIANT}],
                "n_predict": 2,
            },
        ),
        ("/v1/completions", {"prompt": GIANT, "suffix": GIANT, "max_tokens": 2}),
        ("/v1/fim/completions", {"prompt": GIANT, "suffix": GIANT, "max_tokens": 2}),
    ],
)
def test_around_a_gap_it_is_cut(live: LiveServer, path: str, body: dict[str, Any]) -> None:
    answer = live.post(path, body)
    assert answer.status_code == 200


def test_only_as_much_of_a_prediction_is_encoded_as_fits_the_context(live: LiveServer) -> None:
    body = {"prompt": "b", "max_tokens": 2, "prediction": {"type": "content", "content": GIANT}}
    assert live.post("/v1/completions", body).status_code == 200
