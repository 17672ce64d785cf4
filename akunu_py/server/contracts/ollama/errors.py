"""How Ollama tells about errors."""

from typing import Any

from akunu_py.server.errors import Fault


def error_body(fault: Fault) -> dict[str, Any]:
    """`{"error": SENTENCE}`."""
    return {"error": fault.message}
