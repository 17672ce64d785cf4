"""How llama-server tells about errors."""

from typing import Any

from akunu_py.server.errors import Fault


def error_body(fault: Fault) -> dict[str, Any]:
    """`{"error": {"code", "message", "type"}}`."""
    return {"error": {"code": fault.status, "message": fault.message, "type": fault.kind}}
