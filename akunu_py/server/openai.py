"""OpenAI's contract, which Zed, minuet, Continue, Cline and every client library rely on.

It includes Mistral's endpoint for filling gaps. Each endpoint has a file of its own; this one has
the models and the list of endpoints.
"""

from time import time
from typing import Any, Final

from starlette.responses import Response

from akunu_py.server.contract import ApiRequest, Contract, Endpoint, refuse_embeddings
from akunu_py.server.errors import NotFoundError
from akunu_py.server.openai_chat import chat, count_tokens
from akunu_py.server.openai_common import error_body
from akunu_py.server.openai_completions import complete, fill
from akunu_py.server.response_store import delete_response, list_input_items, show_response
from akunu_py.server.responses import count_tokens as count_response_tokens
from akunu_py.server.responses import respond
from akunu_py.server.wire import CompactJSONResponse

_STARTED: Final = int(time())


def list_models(request: ApiRequest) -> Response:
    """A list of one model."""
    return CompactJSONResponse({"object": "list", "data": [_entry(request)]})


def show_model(request: ApiRequest) -> Response:
    """The model, if it has the name in the path."""
    entry = _entry(request)
    if request.path_params["model"] not in (entry["id"], *entry["aliases"]):
        raise NotFoundError(f"There is no such model; this server has {entry['id']}.")
    return CompactJSONResponse(entry)


def _entry(request: ApiRequest) -> dict[str, Any]:
    """A model object, with what llama-server adds to it."""
    engine = request.engine
    return {
        "id": request.model_name,
        "aliases": list(request.settings.aliases),
        "tags": [],
        "object": "model",
        "created": _STARTED,
        "owned_by": "akunu_py",
        "meta": {
            "n_vocab": engine.model.vocabulary_size,
            "n_ctx": engine.context_limit,
            "n_ctx_train": engine.model.context_length,
            "size": engine.model.parameter_bytes,
        },
    }


OPENAI: Final = Contract(
    name="openai",
    endpoints=(
        Endpoint("POST", "/v1/completions", complete),
        Endpoint("POST", "/v1/fim/completions", fill),
        Endpoint("POST", "/v1/chat/completions", chat),
        Endpoint("POST", "/chat/completions", chat),
        Endpoint("POST", "/v1/chat/completions/input_tokens", count_tokens),
        Endpoint("POST", "/chat/completions/input_tokens", count_tokens),
        Endpoint("POST", "/fim/completions", fill),
        Endpoint("POST", "/v1/beta/completions", complete),
        Endpoint("POST", "/v1/embeddings", refuse_embeddings),
        Endpoint("POST", "/v1/rerank", refuse_embeddings),
        Endpoint("POST", "/v1/responses", respond),
        Endpoint("POST", "/responses", respond),
        Endpoint("POST", "/v1/responses/input_tokens", count_response_tokens),
        Endpoint("GET", "/v1/responses/{id}", show_response),
        Endpoint("DELETE", "/v1/responses/{id}", delete_response),
        Endpoint("GET", "/v1/responses/{id}/input_items", list_input_items),
        Endpoint("GET", "/v1/models", list_models),
        Endpoint("GET", "/models", list_models),
        Endpoint("GET", "/v1/models/{model:path}", show_model),
    ),
    error_body=error_body,
    prefixes=("/v1/",),
)
