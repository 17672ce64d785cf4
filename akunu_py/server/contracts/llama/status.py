"""What llama-server tells about itself."""

from starlette.responses import Response

from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call


async def health(call: Call) -> Response:
    """`{"status": "ok"}`, or an error while the model loads."""
    _ = call.service.engine
    return CompactJSONResponse({"status": "ok"})
