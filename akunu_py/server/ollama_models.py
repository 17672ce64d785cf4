"""What Ollama reports about models: the one that is served, in lists and in detail."""

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from akunu_py.package import __version__
from akunu_py.server.contract import ApiRequest
from akunu_py.server.errors import NotFoundError
from akunu_py.server.wire import NDJSON, CompactJSONResponse, json_line
from akunu_py.text.fim import FillFormat, find_format

if TYPE_CHECKING:
    from akunu_py.engine import Engine

SPOKEN_VERSION: Final = "0.12.6"
"""The version of Ollama with this API; clients refuse servers that look too old."""

_STARTED: Final = datetime.now(UTC)
_NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)


def served_name(request: ApiRequest) -> str:
    """The model's name with a tag, which every name in Ollama has."""
    return f"{request.model_name}:latest"


def timestamp(moment: datetime) -> str:
    """A moment as Go writes it: RFC 3339, in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def version(_: ApiRequest) -> Response:
    """The version of Ollama's API, and of this server."""
    return CompactJSONResponse({"version": SPOKEN_VERSION, "akunu_py": __version__})


def tags(request: ApiRequest) -> Response:
    """All models: there is one."""
    entry = _entry(request) | {"modified_at": timestamp(_STARTED)}
    return CompactJSONResponse({"models": [entry]})


def ps(request: ApiRequest) -> Response:
    """The models in memory: the same one, which stays there."""
    engine = request.engine
    entry = _entry(request) | {
        "expires_at": timestamp(_NEVER),
        "size_vram": 0 if engine.backend.device == "cpu" else engine.model.parameter_bytes,
        "context_length": engine.context_limit,
    }
    return CompactJSONResponse({"models": [entry]})


def pull(request: ApiRequest) -> Response:
    """Succeeds if the model is the one that is served: it is here already.

    Raises:
        NotFoundError: if it is another one.
    """
    body, name = request.body, request.model_name
    wanted = body.text("model", "name", default="").removesuffix(":latest")
    if wanted not in ("", name):
        raise NotFoundError(
            f"This server has {name} only; start one with `serve --model NAME` for another model."
        )
    done = {"status": "success"}
    if body.flag("stream", default=True):
        return Response(json_line(done), media_type=NDJSON)
    return CompactJSONResponse(done)


def show(request: ApiRequest) -> Response:
    """The model in detail, whatever name the request contains."""
    engine = request.engine
    model, config = engine.model, engine.model.config
    family = _family(engine)
    layout = find_format(engine.tokenizer.token_id)
    info = {
        "general.architecture": family,
        "general.basename": model.name,
        "general.parameter_count": model.parameter_count,
        f"{family}.context_length": engine.context_limit,
        f"{family}.block_count": config.get("num_hidden_layers"),
        f"{family}.embedding_length": config.get("hidden_size"),
        f"{family}.vocab_size": model.vocabulary_size,
    }
    return CompactJSONResponse(
        {
            "modelfile": f"FROM {model.name}\n",
            "parameters": f"num_ctx {engine.context_limit}",
            "template": _template(layout),
            "details": _details(engine),
            "model_info": info,
            "capabilities": _capabilities(engine, layout),
            "modified_at": timestamp(_STARTED),
        }
    )


def _entry(request: ApiRequest) -> dict[str, Any]:
    engine, name = request.engine, served_name(request)
    identity = f"{name} {engine.model.parameter_count} {engine.model.config}"
    return {
        "name": name,
        "model": name,
        "size": engine.model.parameter_bytes,
        "digest": hashlib.sha256(identity.encode()).hexdigest(),
        "details": _details(engine),
    }


def _details(engine: "Engine") -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": _family(engine),
        "families": [_family(engine)],
        "parameter_size": engine.model.size,
        "quantization_level": _quantization(engine.model.config),
    }


def _family(engine: "Engine") -> str:
    return str(engine.model.config.get("model_type", "llama"))


def _quantization(config: dict[str, Any]) -> str:
    """The format of the weights in the model's files."""
    quantization = config.get("quantization")
    if isinstance(quantization, dict) and "bits" in quantization:
        return f"Q{quantization['bits']}"
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "unknown")
    return {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}.get(dtype, dtype)


def _template(layout: FillFormat | None) -> str:
    """The layout of a prompt in Ollama's template language, from which clients see whether the
    model can fill gaps. The chat template is in another language and is not shown here."""
    if layout is None:
        return "{{ .Prompt }}"
    return "{{ if .Suffix }}{{ .Prompt }}{{ .Suffix }}{{ else }}{{ .Prompt }}{{ end }}"


def _capabilities(engine: "Engine", layout: FillFormat | None) -> list[str]:
    format_ = engine.tokenizer.answer_format
    return [
        "completion",
        *(["insert"] if layout is not None else []),
        *(["tools"] if format_.has_tools else []),
        *(["thinking"] if format_.think_start else []),
    ]
