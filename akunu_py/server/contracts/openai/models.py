"""`/v1/models`: the one model there is."""

from time import time
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call
from akunu_py.server.errors import NotFoundError

if TYPE_CHECKING:
    from akunu_py.engine import Engine

_STARTED: Final = int(time())


async def list_models(call: Call) -> Response:
    """A list of one."""
    entry = _entry(call.service.engine)
    return CompactJSONResponse({"object": "list", "data": [entry]})


async def show_model(call: Call) -> Response:
    """The model, if it is called so."""
    entry = _entry(call.service.engine)
    if call.request.path_params["model"] != entry["id"]:
        raise NotFoundError(f"There is no such model here; this server has {entry['id']}.")
    return CompactJSONResponse(entry)


def _entry(engine: "Engine") -> dict[str, Any]:
    """A model object, with what llama-server adds to it."""
    return {
        "id": engine.model.name,
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
