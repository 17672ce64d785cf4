"""What llama-server tells about itself: health, properties and slots."""

from typing import Any

from starlette.responses import Response

from akunu_py.options import MOST_SLOTS
from akunu_py.package import __version__
from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call
from akunu_py.server.contracts.llama.request import read_options
from akunu_py.server.contracts.llama.response import generation_settings
from akunu_py.server.contracts.llama.sampling import DEFAULT_SAMPLERS


async def health(call: Call) -> Response:
    """`{"status": "ok"}`, or an error while the model loads."""
    _ = call.service.engine
    return CompactJSONResponse({"status": "ok"})


async def props(call: Call) -> Response:
    """What the model is and how it answers if nothing else is asked for."""
    engine = call.service.engine
    wrapped = engine.tokenizer.wrapped
    return CompactJSONResponse(
        {
            "default_generation_settings": {
                "n_ctx": engine.context_limit,
                "params": generation_settings(engine, read_options(call), DEFAULT_SAMPLERS),
            },
            "total_slots": MOST_SLOTS,
            "model_alias": engine.model.name,
            "model_path": engine.model.name,
            "modalities": {"vision": False, "audio": False},
            "chat_template": _text_or_nothing(getattr(wrapped, "chat_template", None)),
            "bos_token": _text_or_nothing(wrapped.bos_token),
            "eos_token": _text_or_nothing(wrapped.eos_token),
            "build_info": f"akunu-py {__version__}",
        }
    )


async def slots(call: Call) -> Response:
    """The caches of earlier requests, and which of them is at work."""
    engine = call.service.engine
    return CompactJSONResponse(
        [
            {
                "id": slot.id,
                "n_ctx": engine.context_limit,
                "speculative": True,
                "is_processing": slot.busy,
                "n_tokens": slot.tokens,
                "n_bytes": slot.nbytes,
            }
            for slot in engine.slots
        ]
    )


def _text_or_nothing(value: Any) -> str:
    return value if isinstance(value, str) else ""
