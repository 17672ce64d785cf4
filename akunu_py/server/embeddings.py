"""Embeddings in the APIs of OpenAI, llama-server and Ollama, and rankings in that of Jina and
Cohere. Each forward pass is a call on the engine's thread, so that other requests take turns.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from akunu_py.errors import AkunuError, InvalidRequestError
from akunu_py.options import Options
from akunu_py.prompt import encode_prompt
from akunu_py.rounds import Stats
from akunu_py.server.body import Body
from akunu_py.server.dialect import read_prompts
from akunu_py.server.models import tagged
from akunu_py.server.service import Service
from akunu_py.server.wire import LOAD_S, JSONAnswer

_MOST_TEXTS: Final = 2048
_MOST_TOKENS: Final = 300_000
"""The limits of a request; both are OpenAI's."""
_LEAST_NORM: Final = 1e-12
"""As in sentence-transformers: a zero vector stays one."""
_INSTRUCTION: Final = "Given a web search query, retrieve relevant passages that answer the query"
_PROMPT: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {}\n<Query>: {}\n<Document>: {}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""From https://huggingface.co/Qwen/Qwen3-Reranker-0.6B."""

Vectors = npt.NDArray[np.float32]


class _Answer(Response):
    """Computes vectors of texts when it is sent; with `predicted`, the logits of these tokens."""

    def __init__(
        self, service: Service, asked: Iterable[Any], write: Callable[..., Any], predicted: Any = ()
    ) -> None:
        from akunu_py.model.embedding import compute_vectors  # noqa: PLC0415  (imports MLX)

        super().__init__()
        engine, texts, pooling = service.engine, list[Sequence[int]](), service.model.pooling
        for one in asked:
            texts.append(encode_prompt(engine.model, one, Options(0), engine.context_limit).tokens)
            if sum(map(len, texts)) > _MOST_TOKENS:
                raise InvalidRequestError(f"More than {_MOST_TOKENS} tokens; send fewer texts.")
        self._service, self._write, self._count = service, write, len(texts)
        self._tokens = sum(map(len, texts))
        self.kept_bytes = 4 * self._tokens
        self._passes = compute_vectors(engine.model, engine.backend, texts, pooling, predicted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, found, metrics = perf_counter(), dict[int, Vectors](), self._service.metrics
        passes, begins = self._passes, True
        while len(found) < self._count:  # the queue limit applies to the first pass only
            found.update(await self._service.call(lambda _: next(passes), queues=begins))
            begins = False
        metrics.answers += 1
        metrics.computed_tokens += self._tokens
        metrics.sums.include(Stats(prefill_s=perf_counter() - begun))
        vectors = np.stack([found[index] for index in range(self._count)])
        if not np.isfinite(vectors).all():
            name = self._service.model.name
            raise AkunuError(f"{name} computes numbers that are not finite; use another precision.")
        answer = await asyncio.to_thread(lambda: JSONAnswer(self._write(vectors, self._tokens)))
        await answer(scope, receive, send)


def _embed(
    service: Service, body: Body, name: str, write: Callable[..., Any], *, is_ollamas: bool = False
) -> Response:
    """Embeds the texts of a field. `dimensions` cuts embeddings before they are normalized. In
    Ollama's requests, texts that are too long are cut, and a request without texts only loads the
    model."""
    width = service.model.config.get("hidden_size")
    size = body.integer("dimensions", default=None, least=1, most=width)
    encoding = body.text("encoding_format", default="float")
    if encoding not in ("float", "base64"):
        body.refuse("encoding_format", "must be float or base64")
    if body.integer("embd_normalize", default=2) != 2:
        body.refuse("embd_normalize", "must be 2; the model says whether it normalizes")
    if is_ollamas and body.any(name) in (None, "", []):
        return JSONAnswer(write([], 0))
    cuts = body.flag("truncate", default=is_ollamas)

    def shown(vectors: Vectors, tokens: int) -> Any:
        cut = vectors[:, :size].astype("<f4")
        if "Normalize" in service.model.modules:
            cut = cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), _LEAST_NORM)
        if encoding == "base64":
            return write([b64encode(one.tobytes()).decode() for one in cut], tokens)
        return write([one.tolist for one in cut], tokens)

    asked = read_prompts(service, body, name, _MOST_TEXTS)
    return _Answer(service, (_cut(service, text) if cuts else text for text in asked), shown)


def _cut(service: Service, text: str | list[int]) -> list[int]:
    """The ids of a text as far as they fit, keeping a token that ends all texts."""
    tokenizer, limit = service.engine.tokenizer, service.engine.context_limit
    if isinstance(text, str):
        text = tokenizer.encode(text[: limit * tokenizer.longest_piece])
    ends = [token for token in text[-1:] if token in tokenizer.special_tokens]
    return text if len(text) <= limit else text[: limit - len(ends)] + ends


def embed_openai(service: Service, body: Body) -> Response:
    """`/v1/embeddings`."""

    def write(shown: list[Any], tokens: int) -> Any:
        data = [{"object": "embedding", "index": i, "embedding": it} for i, it in enumerate(shown)]
        return _listed(service, {"data": data}, tokens)

    return _embed(service, body, "input", write)


def _listed(service: Service, entries: dict[str, Any], tokens: int) -> dict[str, Any]:
    usage = {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    return {"object": "list", "model": service.model_name} | entries | usage


def embed_llama(service: Service, body: Body) -> Response:
    """`/embedding` and `/embeddings`; entries are lists with one vector."""
    name = "content" if body.has("content") else "input"
    return _embed(service, body, name, lambda shown, _: [
        {"index": index, "embedding": [one]} for index, one in enumerate(shown)
    ])  # fmt: skip


def embed_ollama(service: Service, body: Body) -> Response:
    """`/api/embed`."""
    begun = perf_counter() - LOAD_S.get()
    return _embed(service, body, "input", lambda shown, tokens: {
        "model": tagged(service.model_name), "embeddings": shown,
        "load_duration": round(1e9 * LOAD_S.get()),
        "total_duration": round(1e9 * (perf_counter() - begun)), "prompt_eval_count": tokens,
    }, is_ollamas=True)  # fmt: skip


def embed_one(service: Service, body: Body) -> Response:
    """`/api/embeddings`, the older endpoint, which takes one text."""
    body.text("prompt", default="")
    write = lambda shown, _: {"embedding": shown[0] if shown else []}  # noqa: E731
    return _embed(service, body, "prompt", write, is_ollamas=True)


def rank(service: Service, body: Body) -> Response:
    """Ranks documents by the probability that they answer a query, the best first."""
    tokenizer, limit = service.engine.tokenizer, service.engine.context_limit
    body.require("query", "documents")
    given = body.values("documents", most=_MOST_TEXTS)
    documents: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in given]
    if not documents or not all(isinstance(text, str) for text in documents):
        body.refuse("documents", "must be a list of strings, or of objects with a `text`")
    most = body.integer("top_n", default=len(documents), least=1)
    returns = body.flag("return_documents", default=False)
    question = [body.text("instruction", default=_INSTRUCTION), body.text("query", default="")]

    def ids(document: str) -> list[int]:
        prompt = _PROMPT.format(*map(tokenizer.as_text, (*question, document)))
        return tokenizer.encode(prompt, special_tokens=False, most=limit)

    def write(logits: Vectors, tokens: int) -> Any:
        scores = 1 / (1 + np.exp(logits[:, 1].astype(float) - logits[:, 0]))
        results = [
            {"index": at, "relevance_score": float(scores[at])}
            | ({"document": {"text": documents[at]}} if returns else {})
            for at in np.argsort(-scores, kind="stable")[:most].tolist()
        ]
        return _listed(service, {"results": results}, tokens)

    answers = [tokenizer.encode(word, special_tokens=False)[0] for word in ("yes", "no")]
    return _Answer(service, map(ids, documents), write, answers)
