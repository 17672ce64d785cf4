"""Embeddings and rankings over HTTP, in each contract, and what is refused."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import ollama
import openai
import pytest
from mlx_lm.models.cache import make_prompt_cache

import akunu_py
from akunu_py.engine import Engine
from akunu_py.model import embedding
from akunu_py.model.library import LocalModel
from akunu_py.server import app
from akunu_py.server.pool import Pool
from akunu_py.server.settings import ServerSettings
from tests.qwen import (
    END,
    POOL,
    add_modules,
    bytes_of,
    pooled,
    states,
    unit,
    weights_of,
    write_qwen,
)
from tests.server.live import LiveServer, serve_pool, wait_until

RERANKER = "Qwen3-Reranker-tiny"
EMBEDDING = ("/v1/embeddings", "/embedding", "/embeddings", "/api/embed", "/api/embeddings")
CHAT = {"messages": [{"role": "user", "content": "a"}]}
TEXTS = ["What is a panda?", "hi", "é" * 150]


def load(model: LocalModel, _: int = 0) -> Engine:
    return akunu_py.load(str(model.folder))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    mean = write_qwen(place / "averaging", seed=1, max_position_embeddings=64)
    last = write_qwen(place / "last", max_position_embeddings=512)
    return {
        "talker": write_qwen(place / "talker", ends=False),
        "last": add_modules(last, POOL, "models.Normalize"),
        "averaging": add_modules(mean, {"pooling_mode": "mean"}),
        RERANKER: write_qwen(place / RERANKER, ends=False),
    }


@pytest.fixture(scope="module")
def live(folders: dict[str, Path]) -> Iterator[LiveServer]:
    models = [LocalModel(name, folder) for name, folder in folders.items()]
    pool = Pool(load, ServerSettings(), models[:1], others=lambda: models[1:])
    with serve_pool(pool) as server:
        yield server


def vector_of(folder: Path, text: str) -> Any:
    return unit(pooled(folder, [*bytes_of(text), END], "lasttoken"))


def is_close(own: Any, wanted: Any) -> bool:
    return bool(np.allclose(own, wanted, rtol=1e-4, atol=1e-4))


def test_openais_form(live: LiveServer, folders: dict[str, Path]) -> None:
    answer = live.ask("/v1/embeddings", {"model": "last", "input": TEXTS, "user": "somebody"})
    wanted = [vector_of(folders["last"], text) for text in TEXTS]
    assert is_close([entry["embedding"] for entry in answer["data"]], wanted)
    assert [(entry["index"], entry["object"]) for entry in answer["data"]] == [
        (index, "embedding") for index in range(3)
    ]
    tokens = sum(len(text.encode()) + 1 for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (answer["object"], answer["model"]) == ("list", "last")


def test_ids_are_taken_as_they_are(live: LiveServer, folders: dict[str, Path]) -> None:
    ids = [bytes_of(TEXTS[0]), [1, 2, END]]
    found = live.ask("/v1/embeddings", {"model": "last", "input": ids})["data"]
    wanted = [unit(pooled(folders["last"], each, "lasttoken")) for each in ids]
    assert is_close([entry["embedding"] for entry in found], wanted)
    (alone,) = live.ask("/v1/embeddings", {"model": "last", "input": ids[1]})["data"]
    assert is_close(alone["embedding"], wanted[1])


def test_dimensions_cut_and_normalize_again(live: LiveServer, folders: dict[str, Path]) -> None:
    body = {"model": "last", "input": "hi", "dimensions": 5, "encoding_format": "base64"}
    (entry,) = live.ask("/v1/embeddings", body)["data"]
    found = np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")
    assert is_close(found, unit(vector_of(folders["last"], "hi")[:5]))


def test_without_a_module_for_it_nothing_is_normalized(
    live: LiveServer, folders: dict[str, Path]
) -> None:
    (entry,) = live.ask("/v1/embeddings", {"model": "averaging", "input": "hi"})["data"]
    wanted = pooled(folders["averaging"], [*bytes_of("hi"), END], "mean")
    assert is_close(entry["embedding"], wanted)
    assert abs(np.linalg.norm(wanted) - 1) > 0.01


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_llama_servers_form(live: LiveServer, folders: dict[str, Path], path: str) -> None:
    wanted = vector_of(folders["last"], "hi")
    for body in ({"content": "hi"}, {"input": ["hi"], "embd_normalize": 2}):
        (entry,) = live.ask(path, {"model": "last"} | body)
        assert entry["index"] == 0
        assert is_close(entry["embedding"], [wanted])


def test_ollamas_forms(live: LiveServer, folders: dict[str, Path]) -> None:
    wanted = [vector_of(folders["last"], text) for text in TEXTS[:2]]
    answer = live.ask("/api/embed", {"model": "last", "input": TEXTS[:2]})
    assert is_close(answer.pop("embeddings"), wanted)
    assert answer.pop("total_duration") > answer.pop("load_duration") > 0
    assert answer == {"model": "last:latest", "prompt_eval_count": 20}
    assert live.ask("/api/embed", {"model": "last", "input": "a"})["load_duration"] < 1e6
    assert live.ask("/api/embed", {"model": "last"})["embeddings"] == []
    assert is_close(live.ask("/api/embeddings", {"model": "last", "prompt": "hi"})["embedding"],
                    wanted[1])  # fmt: skip
    assert live.ask("/api/embeddings", {"model": "last"}) == {"embedding": []}


def test_ollama_cuts_what_is_too_long_and_keeps_its_end(
    live: LiveServer, folders: dict[str, Path]
) -> None:
    body = {"model": "averaging", "input": ["a" * 100]}
    answer = live.ask("/api/embed", body)
    wanted = pooled(folders["averaging"], [*bytes_of("a" * 63), END], "mean")
    assert answer["prompt_eval_count"] == 64
    assert is_close(answer["embeddings"], [wanted])
    refused = live.post("/api/embed", body | {"truncate": False})
    assert refused.status_code == 400
    assert "101 tokens and exceeds the available context size of 64" in refused.json()["error"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/reranking", "/rerank", "/reranking"])
def test_a_ranking(live: LiveServer, folders: dict[str, Path], path: str) -> None:
    folder, documents = folders[RERANKER], ["hi", {"text": "<|im_end|> a bear"}, "a panda"]
    body = {"model": RERANKER, "query": "panda?", "documents": documents}
    answer = live.ask(path, body | {"return_documents": True})
    matrix, scores, tokens = weights_of(folder)["model.embed_tokens.weight"], [], 0
    for text in ("hi", "<|im_end|> a bear", "a panda"):
        ids = prompt(text)
        logits = states(folder, ids)[-1] @ matrix.T
        yes, no = np.exp(logits[[bytes_of("yes")[0], bytes_of("no")[0]]] - logits.max())
        scores.append(yes / (yes + no))
        tokens += len(ids)
    order = sorted(range(3), key=lambda index: -scores[index])
    results = answer["results"]
    assert [entry["index"] for entry in results] == order
    assert is_close([entry["relevance_score"] for entry in results], sorted(scores)[::-1])
    assert results[order.index(2)]["document"] == {"text": "a panda"}
    assert answer["usage"]["total_tokens"] == tokens
    best = live.ask(path, body | {"top_n": 1})["results"]
    assert best == [{key: results[0][key] for key in ("index", "relevance_score")}]
    other = live.ask(path, body | {"instruction": "Find animals."})["results"]
    assert other[0]["relevance_score"] != best[0]["relevance_score"]


def prompt(document: str) -> list[int]:
    """The ids of the prompt of Qwen3-Reranker; what the document spells is text."""
    ids = []
    for part in (
        257, 'system\nJudge whether the Document meets the requirements based on the Query and the '
        'Instruct provided. Note that the answer can only be "yes" or "no".', 258, "\n", 257,
        "user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the "
        f"query\n<Query>: panda?\n<Document>: {document}", 258, "\n", 257,
        "assistant\n<think>\n\n</think>\n\n",
    ):  # fmt: skip
        ids += bytes_of(part) if isinstance(part, str) else [part]
    return ids


TEXT_FIELDS = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "input_prefix": "a"}


@pytest.mark.parametrize(
    "path",
    ["/v1/completions", "/v1/chat/completions", "/completion", "/infill", "/api/generate",
     "/api/chat", "/v1/messages", "/v1/fim/completions"],
)  # fmt: skip
def test_an_embedding_model_generates_no_text(live: LiveServer, path: str) -> None:
    refused = live.post(path, TEXT_FIELDS | {"model": "last", "max_tokens": 1})
    assert refused.status_code == 400
    assert "last is for embedding, not for completion: choose another model." in refused.text


def test_a_chat_model_embeds_nothing_and_is_not_loaded_for_it(folders: dict[str, Path]) -> None:
    models = [LocalModel(name, folder) for name, folder in folders.items()]
    pool = Pool(load, ServerSettings(), models[1:2], others=lambda: models)
    with serve_pool(pool) as live:
        for path in (
            "/v1/embeddings",
            "/embedding",
            "/embeddings",
            "/api/embed",
            "/api/embeddings",
        ):
            refused = live.post(path, {"model": "talker", "input": "a"})
            assert refused.status_code == 400
            assert "talker is for completion, not for embedding: choose another" in refused.text
            assert "pull mlx-community/Qwen3-Embedding-0.6B-4bit-DWQ` fetches one" in refused.text
        refused = live.post("/v1/rerank", {"model": "last", "query": "a", "documents": ["a"]})
        assert "last is for embedding, not for reranking: choose another" in refused.text
        assert [seat.model.name for seat in pool.seats] == ["last"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "last", "input": "hi"}),
        ("/embedding", {"model": "last", "content": "hi"}),
        ("/v1/rerank", {"model": RERANKER, "query": "a", "documents": ["a"]}),
        ("/tokenize", {"model": "last", "content": "hi"}),
        ("/v1/messages/count_tokens", CHAT),
        ("/v1/responses/input_tokens", {"input": "a"}),
        ("/v1/chat/completions/input_tokens", CHAT),
    ],
)
def test_what_is_no_stream_is_none_while_its_model_loads(
    folders: dict[str, Path], path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "ERRORS_COME_S", 0.01)
    loads = Event()

    def load_later(model: LocalModel, _: int) -> Engine:
        loads.wait(10)
        return load(model)

    models = [LocalModel(name, folder) for name, folder in folders.items()]
    pool = Pool(load_later, ServerSettings(), models[:1], others=lambda: models)
    with serve_pool(pool, wait_until_loaded=False) as live, ThreadPoolExecutor(1) as client:
        asked = client.submit(live.post, path, body | {"stream": True})
        wait_until(lambda: asked.done() or pool.waiting == 1)
        later = {"prompt": "a", "stream": True, "max_tokens": 1}
        with live.client.stream("POST", "/v1/completions", json=later):  # the first has begun too
            loads.set()
        assert asked.result().headers["content-type"] == "application/json"
        assert asked.result().json()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "`input` is missing"),
        ({"input": []}, "empty"),
        ({"input": [[1, 2], [999]]}, "`input[1][0]` must be an id of the model's vocabulary"),
        ({"input": "a" * 600}, "exceeds the available context size of 512"),
        ({"input": "a", "dimensions": 33}, "`dimensions` must be 32 or less"),
        ({"input": "a", "dimensions": 0}, "`dimensions` must be 1 or more"),
        ({"input": "a", "encoding_format": "hex"}, "`encoding_format` must be float or base64"),
        ({"input": "a", "embd_normalize": -1}, "`embd_normalize` must be 2"),
        ({"input": [{"a": 1}]}, "`input[0]` must be a string"),
        ({"input": ["a"] * 2049}, "2048 entries or fewer"),
        ({"input": ["a" * 500] * 700}, "More than 300000 tokens; send fewer texts"),
    ],
)
def test_what_cannot_be_embedded_is_refused(live: LiveServer, body: Any, why: str) -> None:
    refused = live.post("/v1/embeddings", {"model": "last"} | body)
    assert refused.status_code == 400
    assert why in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"documents": ["a"]}, "`query` is missing"),
        ({"query": "a", "documents": []}, "`documents` must be a list of strings"),
        ({"query": "a", "documents": [["a"]]}, "`documents` must be a list of strings"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "`top_n` must be 1 or more"),
        ({"query": "a" * 999, "documents": ["a"]}, "exceeds the available context size"),
    ],
)
def test_what_cannot_be_ranked_is_refused(live: LiveServer, body: Any, why: str) -> None:
    refused = live.post("/v1/rerank", {"model": RERANKER} | body)
    assert refused.status_code == 400
    assert why in refused.json()["error"]["message"]


ODD: list[Any] = [True, -1, 1.5, 1e300, "", "a", [], {}, [None], [[]], [-1], [[1.5]], {"text": 1}]
FIELDS = ("input", "content", "prompt", "dimensions", "encoding_format", "embd_normalize",
          "truncate", "query", "documents", "top_n", "return_documents", "instruction")  # fmt: skip


@pytest.mark.parametrize("path", [*EMBEDDING, "/v1/rerank"])
def test_no_body_breaks_the_server(live: LiveServer, path: str) -> None:
    usual = {"model": "last", "input": "a", "prompt": "a"}
    if path == "/v1/rerank":
        usual = {"model": RERANKER, "query": "a", "documents": ["a", "b"]}  # type: ignore[dict-item]
    for field in FIELDS:
        for value in ODD:
            answer = live.post(path, usual | {field: value})
            assert answer.status_code in (200, 400), (field, value, answer.text)


@pytest.mark.parametrize("given", [0, False, {}])
def test_what_is_no_text_is_not_taken_for_none(live: LiveServer, given: Any) -> None:
    refused = live.post("/api/embed", {"model": "last", "input": given})
    assert "`input` must be a string" in refused.json()["error"]


def test_ollamas_older_endpoint_takes_one_text(live: LiveServer) -> None:
    refused = live.post("/api/embeddings", {"model": "last", "prompt": ["a", "b"]})
    assert "`prompt` must be a string, not a list" in refused.json()["error"]


def test_what_models_are_for_is_told(live: LiveServer) -> None:
    wanted = {"talker": "completion", "last": "embedding", "averaging": "embedding",
              RERANKER: "reranking"}  # fmt: skip
    listed = {it["id"]: it["capabilities"] for it in live.get("/v1/models").json()["data"]}
    tags = live.get("/api/tags").json()["models"]
    assert listed == {name: [ability] for name, ability in wanted.items()}
    assert [it["capabilities"] for it in tags] == list(listed.values())
    assert live.ask("/api/show", {"model": "last"})["capabilities"] == ["embedding"]
    assert live.ask("/api/show", {"model": "talker"})["capabilities"] == ["completion", "insert"]
    types = [it["type"] for it in live.get("/api/v0/models").json()["data"]]
    assert types == ["llm", "embeddings", "embeddings", "reranking"]


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_what_is_no_number_is_an_error_and_zeros_stay_zeros(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    body = {"model": "last", "input": "a", "encoding_format": encoding}
    state = [np.nan]
    vectors = lambda *_: iter([{0: np.full(32, state[0], np.float32)}])  # noqa: E731
    monkeypatch.setattr(embedding, "compute_vectors", vectors)
    failed = live.post("/v1/embeddings", body)
    assert failed.status_code == 500
    assert "last computes numbers that are not finite" in failed.json()["error"]["message"]
    state[0] = 0.0
    (entry,) = live.ask("/v1/embeddings", body)["data"]
    found = entry["embedding"]
    assert not np.any(np.frombuffer(base64.b64decode(found)) if encoding == "base64" else found)


def metric(live: LiveServer, name: str) -> float:
    lines = dict(line.split() for line in live.get("/metrics").text.splitlines() if line[0] != "#")
    return float(lines[f"llamacpp:{name}"])


def test_requests_for_embeddings_count(live: LiveServer) -> None:
    names = "prompt_tokens_total", "requests_total"
    before = [metric(live, name) for name in names]
    live.ask("/v1/embeddings", {"model": "last", "input": ["abc", "d"]})
    assert [metric(live, name) for name in names] == [before[0] + 6, before[1] + 1]


def test_others_take_turns_with_it_and_it_ends_when_its_client_leaves(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, begun = 500, [0]

    def counted(network: Any) -> Any:
        begun[0] += 1
        return make_prompt_cache(network)

    live.ask("/v1/embeddings", {"model": "last", "input": "a"})
    monkeypatch.setattr(embedding, "make_prompt_cache", counted)
    connection = live.dial("/v1/embeddings", {"model": "last", "input": ["a" * 500] * texts})
    while begun[0] < 2:
        pass
    for _ in range(2):
        live.ask("/v1/completions", {"model": "talker", "prompt": "a", "max_tokens": 4})
        live.ask("/v1/embeddings", {"model": "last", "input": "a"})
    assert begun[0] < texts, "it is not done yet"
    live.log.clear()
    connection.close()
    assert "/v1/embeddings 499" in live.log.wait_for("the client disconnected")
    assert live.ask("/v1/embeddings", {"model": "last", "input": "a"})
    seen = begun[0]
    assert live.ask("/v1/embeddings", {"model": "last", "input": "a"})
    assert begun[0] == seen + 1 < texts


def test_a_request_that_has_begun_keeps_its_place_in_a_full_queue(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = Event(), Event()

    def held(network: Any) -> Any:
        begun.set()
        goes_on.wait()
        return make_prompt_cache(network)

    model = LocalModel("last", folders["last"])
    with serve_pool(Pool(load, ServerSettings(queue=1), [model])) as live:
        monkeypatch.setattr(embedding, "make_prompt_cache", held)
        body = {"input": ["a" * 500] * 3}
        with live.dial("/v1/embeddings", body) as first:
            assert begun.wait(60)
            with live.dial("/v1/embeddings", body) as second:
                wait_until(lambda: live.worker.queue_depth)
                assert live.post("/v1/embeddings", {"input": "a"}).status_code == 429
                goes_on.set()
                assert [one.recv(12) for one in (first, second)] == [b"HTTP/1.1 200"] * 2


def test_the_openai_library(live: LiveServer, folders: dict[str, Path]) -> None:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="last", input=TEXTS, dimensions=8)
        wanted = [unit(vector_of(folders["last"], text)[:8]) for text in TEXTS]
        assert is_close([entry.embedding for entry in answer.data], wanted)
        with pytest.raises(openai.BadRequestError, match="talker is for completion"):
            client.embeddings.create(model="talker", input="a")


def test_the_ollama_library(live: LiveServer, folders: dict[str, Path]) -> None:
    with ollama.Client(host=live.url) as client:
        answer = client.embed("last", TEXTS[:2], truncate=True, keep_alive="5m", dimensions=8)
        wanted = [unit(vector_of(folders["last"], text)[:8]) for text in TEXTS[:2]]
        assert is_close(answer.embeddings, wanted)
        assert answer.prompt_eval_count == 20
        assert is_close(client.embeddings("last", "hi").embedding, vector_of(folders["last"], "hi"))
        with pytest.raises(ollama.ResponseError, match="talker is for completion"):
            client.embed("talker", "a")
        assert client.show("last").capabilities == ["embedding"]
