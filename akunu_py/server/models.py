"""Endpoints about models, in the APIs of OpenAI and Anthropic, LM Studio, and Ollama: which models
there are and which are loaded, and fetching and deleting them.

No model is loaded for this: the answers come from the files.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from http import HTTPStatus
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from akunu_py.errors import ModelLoadError
from akunu_py.machine.backend import find_backend
from akunu_py.model.library import LocalModel, check_removable, plan, remove, short_count
from akunu_py.server.body import MAX_PATH, Body
from akunu_py.server.errors import (
    RETRY,
    ApiError,
    NotFoundError,
    UnavailableError,
    load_error,
    noted_error,
)
from akunu_py.server.pool import DEFAULT_NAME, Pool, Seat
from akunu_py.server.settings import RECOMMENDED
from akunu_py.server.wire import (
    CHUNK,
    NDJSON,
    JSONAnswer,
    PoolEndpoint,
    json_line,
    start_stream,
)
from akunu_py.text.answer_parser import AnswerFormat
from akunu_py.text.fim import find_format
from akunu_py.text.tokenizer import Tokenizer

_STARTED: Final = datetime.now(UTC)
_LOOK_S: Final = 0.25
_YEAR_S: Final = 365 * 24 * 3600
_FOREVER: Final = "9999-01-01T00:00:00Z"
_DTYPES: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_FETCHING: Final = Lock()
"""Held while a model is fetched: one at a time, because all share the network and the disk."""

T = TypeVar("T")


def timestamp(moment: datetime) -> str:
    """A time in Ollama's form."""
    return moment.isoformat().replace("+00:00", "Z")  # as Go writes it


def tagged(name: str) -> str:
    """A model's name in Ollama's form: always with a tag."""
    return name if ":" in name else f"{name}:latest"


def _offered(pool: Pool) -> Iterator[tuple[str, LocalModel]]:
    for model in pool.models():
        for name in pool.names_of(model):
            yield name, model


def _seat(pool: Pool, model: LocalModel) -> Seat | None:
    return next((seat for seat in pool.seats if seat.service and seat.model == model), None)


def _context(pool: Pool, model: LocalModel) -> int:
    """The most tokens of a prompt and its answer; from its configuration until it is loaded."""
    seat = _seat(pool, model)
    return seat.service.engine.context_limit if seat and seat.service else model.context


def _list_models(pool: Pool, _: Body) -> Response:
    """`/v1/models`, with the fields that clients of OpenAI, Anthropic and llama-server read."""
    entries = [_entry(pool, name, model) for name, model in _offered(pool)]
    ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"], "has_more": False}
    return JSONAnswer({"object": "list", "data": entries} | ends)


def _find_model(pool: Pool, path: Body) -> Response:
    asked = path.text("model", default="", longest=MAX_PATH)
    model = pool.find_on_disk(asked)
    name = asked if asked in pool.names_of(model) else pool.names_of(model)[0]
    return JSONAnswer(_entry(pool, name, model))


def _entry(pool: Pool, name: str, model: LocalModel) -> dict[str, Any]:
    named = [alias for alias in pool.names_of(model) if alias != model.name]
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": int(_STARTED.timestamp()),
        "created_at": timestamp(_STARTED),
        "owned_by": "akunu_py",
        "aliases": named,
        "capabilities": [model.ability],
        "tags": [],
        "meta": {
            "n_vocab": model.vocabulary,
            "n_ctx": _context(pool, model),
            "n_ctx_train": model.context,
            "n_params": model.parameters,
            "size": model.nbytes,
        },
    }


def _list_states(pool: Pool, _: Body) -> Response:
    """LM Studio's `/api/v0/models`."""
    entries = [_state(pool, name, model) for name, model in _offered(pool)]
    return JSONAnswer({"object": "list", "data": entries})


def _find_state(pool: Pool, path: Body) -> Response:
    model = _asked(pool, path)
    return JSONAnswer(_state(pool, pool.names_of(model)[0], model))


def _state(pool: Pool, name: str, model: LocalModel) -> dict[str, Any]:
    owner, _, _ = model.name.rpartition("/")
    state: dict[str, Any] = {
        "id": name,
        "object": "model",
        "type": {"completion": "llm", "embedding": "embeddings"}.get(model.ability, model.ability),
        "publisher": owner or "local",
        "arch": model.architecture,
        "compatibility_type": "mlx",
        "quantization": model.precision,
        "state": "not-loaded",
        "max_context_length": model.context,
    }
    if _seat(pool, model) is not None:
        state |= {"state": "loaded", "loaded_context_length": _context(pool, model)}
    return state


def _tags(pool: Pool, _: Body) -> Response:
    begun = {"modified_at": timestamp(_STARTED)}
    return JSONAnswer({"models": [_tag(name, model) | begun for name, model in _offered(pool)]})


def _ps(pool: Pool, _: Body) -> Response:
    entries = []
    for seat in pool.seats:
        if seat.service is None:
            continue
        engine = seat.service.engine
        loaded = {
            "expires_at": _FOREVER if seat.is_pinned else timestamp(_after(seat.left_s)),
            "size": seat.nbytes,
            "size_vram": engine.backend.gpu_bytes(seat.nbytes),
            "context_length": engine.context_limit,
        }
        entries.append(_tag(pool.names_of(seat.model)[0], seat.model) | loaded)
    return JSONAnswer({"models": entries})


def _after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=min(seconds, _YEAR_S))


def _tag(name: str, model: LocalModel) -> dict[str, Any]:
    identity = f"{model.name} {model.nbytes} {model.config}"
    return {
        "name": tagged(name),
        "model": tagged(name),
        "size": model.nbytes,
        "digest": hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest(),
        "capabilities": [model.ability],
        "details": _details(model),
    }


def _details(model: LocalModel) -> dict[str, Any]:
    precision = f"Q{model.bits}" if model.bits else _DTYPES.get(model.precision, model.precision)
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": short_count(model.parameters),
        "quantization_level": precision,
    }


def _show(pool: Pool, body: Body) -> Response:
    model = _asked(pool, body)
    seat = _seat(pool, model)
    if seat and seat.service:
        format_, fills = _formats_of(seat.service.engine.tokenizer)
    else:
        try:
            changed = max(path.stat().st_mtime_ns for path in model.folder.iterdir())
        except (OSError, ValueError):
            raise NotFoundError(f"{model.name} is no longer on this machine.", "model") from None
        format_, fills = _formats_on_disk(model, changed)
    template = "{{ .Prompt }}"  # the chat template is in another language
    if fills:
        template = "{{ if .Suffix }}{{ .Prompt }}{{ .Suffix }}{{ else }}{{ .Prompt }}{{ end }}"
    abilities = {"insert": fills, "tools": format_.knows_calls, "thinking": format_.think_start}
    abilities = abilities if model.ability == "completion" else {}
    family, context = model.architecture, _context(pool, model)
    info = {
        "general.architecture": family,
        "general.basename": model.name,
        "general.parameter_count": model.parameters,
        f"{family}.context_length": context,
        f"{family}.block_count": model.config.get("num_hidden_layers"),
        f"{family}.embedding_length": model.config.get("hidden_size"),
        f"{family}.vocab_size": model.vocabulary,
    }
    defaults = pool.settings.defaults.or_else(model.sampling)
    given = {name: getattr(defaults, name) for name in RECOMMENDED}
    parameters = {"num_ctx": context, **{k: v for k, v in given.items() if v is not None}}
    return JSONAnswer(
        {
            "modelfile": f"FROM {model.name}\n",
            "parameters": "\n".join(f"{name} {value}" for name, value in parameters.items()),
            "template": template,
            "details": _details(model),
            "model_info": info,
            "capabilities": [model.ability, *(name for name, has in abilities.items() if has)],
            "modified_at": timestamp(_STARTED),
        }
    )


def _formats_of(tokenizer: Tokenizer) -> tuple[AnswerFormat, bool]:
    """How a model marks its answers, and whether it fills gaps."""
    return tokenizer.answer_format, find_format(tokenizer.token_id) is not None


@lru_cache
def _formats_on_disk(model: LocalModel, _changed: int) -> tuple[AnswerFormat, bool]:
    """The same, read once, because reading a usual tokenizer takes half a second."""
    find_backend()  # before MLX is imported
    from akunu_py.model.loading import load_tokenizer  # noqa: PLC0415  (imports MLX)

    try:
        return _formats_of(load_tokenizer(model.asked))
    except ModelLoadError as error:
        raise load_error(error, model) from error


def _asked(pool: Pool, body: Body) -> LocalModel:
    return pool.find_on_disk(body.text("model", "name", default="", longest=MAX_PATH))


def _pull(pool: Pool, body: Body) -> Response:
    """Fetches a model from the hub; leaves models from elsewhere alone."""
    name: str | None = _needed_name(body)
    with suppress(ApiError):
        model = pool.find_on_disk(str(name))
        name = model.name if model.place == "hub" else None
    return _Pull(name, streams=body.flag("stream", default=True))


def _needed_name(body: Body) -> str:
    """The name in a request that must name a model: here, no name does not mean the first one."""
    name = body.text("model", "name", default="", longest=MAX_PATH).removesuffix(":latest")
    if not name:
        body.refuse("model", "must name a model")
    if name == DEFAULT_NAME:
        raise NotFoundError(f"{DEFAULT_NAME} is not the name of a model.", "model")
    return name


def is_fetching() -> bool:
    """Whether a model is being fetched, which continues even if its client disconnects."""
    return _FETCHING.locked()


def _fetch(task: Callable[[], T]) -> "asyncio.Future[T]":
    """Runs a part of a download on its own thread, so that the loop and its threads never wait for
    it."""
    if not _FETCHING.acquire(blocking=False):
        raise UnavailableError("Another model is being fetched; try again when it is here.", RETRY)
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # from now on, it cannot be cancelled

    def work() -> None:
        try:
            found = task()
        except BaseException as error:
            _FETCHING.release()
            result.set_exception(error)
        else:
            _FETCHING.release()
            result.set_result(found)

    Thread(target=work, name="akunu-fetch", daemon=True).start()
    return asyncio.wrap_future(result)


class _Pull(Response):
    """Downloads when it is sent, and reports progress. The download continues if its client
    disconnects, and the next client gets the progress from there."""

    def __init__(self, name: str | None, *, streams: bool) -> None:
        super().__init__(media_type=NDJSON if streams else "application/json")
        del self.headers["content-length"]
        self._name = name
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def tell(status: str, **facts: Any) -> None:
            if self._streams:
                line = json_line({"status": status} | facts)
                await send({"type": CHUNK, "body": line, "more_body": True})

        name, download = self._name, None
        if name is not None:
            download = await _fetch(lambda: plan(name))
        if not self._streams:
            if download is not None:
                await _fetch(download.run)
            await JSONAnswer({"status": "success"})(scope, receive, send)
            return
        await start_stream(scope, send, self.raw_headers)
        await tell("pulling manifest")
        try:
            if download is not None:
                total, running = download.total, _fetch(download.run)
                while not (await asyncio.wait((running,), timeout=_LOOK_S))[0]:
                    completed = download.completed
                    await tell(f"pulling {name}", digest=name, total=total, completed=completed)
                running.result()
                await tell(f"pulling {name}", digest=name, total=total, completed=total)
            await tell("success")
        except Exception as error:
            line = json_line({"error": noted_error(scope, error).message})
            await send({"type": CHUNK, "body": line, "more_body": True})
        await send({"type": CHUNK, "body": b""})


def _delete(pool: Pool, body: Body) -> Response:
    model = pool.find_on_disk(_needed_name(body))
    check_removable(model)
    if model in pool.first:
        sentence = f"{model.name} was given with --model, so the server needs it."
        raise ApiError(HTTPStatus.CONFLICT, sentence)
    return _Delete(pool, model)


class _Delete(Response):
    def __init__(self, pool: Pool, model: LocalModel) -> None:
        super().__init__()
        self._pool = pool
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for seat in [seat for seat in self._pool.seats if seat.model == self._model]:
            await self._pool.unload(seat)
        await asyncio.to_thread(remove, self._model)
        self._pool.models()
        await JSONAnswer({})(scope, receive, send)


OPENAI: Final = (
    PoolEndpoint("GET", "/v1/models", _list_models, is_slow=True),
    PoolEndpoint("GET", "/models", _list_models, is_slow=True),
    PoolEndpoint("GET", "/v1/models/{model:path}", _find_model, is_slow=True),
)
LM_STUDIO: Final = (
    PoolEndpoint("GET", "/api/v0/models", _list_states, is_slow=True),
    PoolEndpoint("GET", "/api/v0/models/{model:path}", _find_state, is_slow=True),
)
OLLAMA: Final = (
    PoolEndpoint("GET", "/api/tags", _tags, is_slow=True),
    PoolEndpoint("GET", "/api/ps", _ps),
    PoolEndpoint("POST", "/api/show", _show, is_slow=True),
    PoolEndpoint("POST", "/api/pull", _pull, is_slow=True),
    PoolEndpoint("DELETE", "/api/delete", _delete, is_slow=True),
)
