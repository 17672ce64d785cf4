"""How OpenAI tells about errors."""

from typing import Any, Final

from akunu_py.server.errors import Fault

_CODES: Final = {
    "exceed_context_size_error": "context_length_exceeded",
    "authentication_error": "invalid_api_key",
    "rate_limit_error": "rate_limit_exceeded",
    "not_found_error": "not_found",
}
_TYPES: Final = {
    "exceed_context_size_error": "invalid_request_error",
    "not_found_error": "invalid_request_error",
}


def error_body(fault: Fault) -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}`."""
    return {
        "error": {
            "message": fault.message,
            "type": _TYPES.get(fault.kind, fault.kind),
            "param": fault.param,
            "code": _CODES.get(fault.kind),
        }
    }
