"""llama-server's contract: what llama.vim, llama.vscode, Tabby, Twinny and Continue rely on."""

from typing import Final

from akunu_py.server.contract import Contract, Endpoint
from akunu_py.server.contracts.llama.completion import complete, infill
from akunu_py.server.contracts.llama.errors import error_body
from akunu_py.server.contracts.llama.metrics import metrics
from akunu_py.server.contracts.llama.status import health, props, slots
from akunu_py.server.contracts.llama.text import apply_template, detokenize, tokenize

LLAMA: Final = Contract(
    name="llama",
    endpoints=(
        Endpoint("POST", "/infill", infill),
        Endpoint("POST", "/completion", complete),
        Endpoint("POST", "/completions", complete),
        Endpoint("POST", "/tokenize", tokenize),
        Endpoint("POST", "/detokenize", detokenize),
        Endpoint("POST", "/apply-template", apply_template),
        Endpoint("GET", "/health", health, is_open=True),
        Endpoint("GET", "/v1/health", health, is_open=True),
        Endpoint("GET", "/props", props),
        Endpoint("GET", "/slots", slots),
        Endpoint("GET", "/metrics", metrics),
    ),
    error_body=error_body,
)
