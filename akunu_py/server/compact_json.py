"""JSON as the clients read it: on one line and without a space, which llama.vim's patterns need."""

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def compact_json(value: Any) -> bytes:
    """The bytes of a value; an infinite number in it is a defect, and raises ValueError."""
    return _ENCODER.encode(value).encode(errors="replace")


class CompactJSONResponse(Response):
    """Answers with one JSON value."""

    media_type = "application/json"

    def __init__(
        self, value: Any, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(compact_json(value), status_code, headers)
