"""Ollama's contract: what Continue, Zed, Twinny and the `ollama` clients rely on.

There is one model, which answers under any name. What a client leaves open is as in Ollama, but
for `repeat_penalty`, which is 1 here: code repeats itself on purpose.
"""

from typing import Final

from akunu_py.server.contract import Contract, Endpoint
from akunu_py.server.contracts.ollama.chat import chat
from akunu_py.server.contracts.ollama.errors import error_body
from akunu_py.server.contracts.ollama.generate import generate
from akunu_py.server.contracts.ollama.models import ps, show, tags, version

OLLAMA: Final = Contract(
    name="ollama",
    endpoints=(
        Endpoint("POST", "/api/generate", generate),
        Endpoint("POST", "/api/chat", chat),
        Endpoint("POST", "/api/show", show),
        Endpoint("GET", "/api/tags", tags),
        Endpoint("GET", "/api/ps", ps),
        Endpoint("GET", "/api/version", version),
    ),
    error_body=error_body,
    prefixes=("/api/",),
)
