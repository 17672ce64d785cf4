"""llama-server's contract: what llama.vim, llama.vscode, Tabby, Twinny and Continue rely on."""

from typing import Final

from akunu_py.server.contract import Contract, Endpoint
from akunu_py.server.contracts.llama.completion import complete
from akunu_py.server.contracts.llama.errors import error_body
from akunu_py.server.contracts.llama.status import health

LLAMA: Final = Contract(
    name="llama",
    endpoints=(
        Endpoint("POST", "/completion", complete),
        Endpoint("POST", "/completions", complete),
        Endpoint("GET", "/health", health, is_open=True),
        Endpoint("GET", "/v1/health", health, is_open=True),
    ),
    error_body=error_body,
)
