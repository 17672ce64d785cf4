"""OpenAI's contract: what Zed, minuet, Continue, Cline and every client library rely on, and beside
it Mistral's one endpoint for filling gaps."""

from typing import Final

from akunu_py.server.contract import Contract, Endpoint
from akunu_py.server.contracts.openai.chat import chat
from akunu_py.server.contracts.openai.completion import complete
from akunu_py.server.contracts.openai.errors import error_body
from akunu_py.server.contracts.openai.fim import fill
from akunu_py.server.contracts.openai.models import list_models, show_model

OPENAI: Final = Contract(
    name="openai",
    endpoints=(
        Endpoint("POST", "/v1/completions", complete),
        Endpoint("POST", "/v1/fim/completions", fill),
        Endpoint("POST", "/v1/chat/completions", chat),
        Endpoint("POST", "/chat/completions", chat),
        Endpoint("GET", "/v1/models", list_models),
        Endpoint("GET", "/models", list_models),
        Endpoint("GET", "/v1/models/{model:path}", show_model),
    ),
    error_body=error_body,
    prefixes=("/v1/",),
)
