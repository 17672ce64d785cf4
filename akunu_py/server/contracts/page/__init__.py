"""The status page, for people: one file of HTML at `/`, and the figures it polls at `/status`."""

from typing import Final

from akunu_py.server.contract import Contract, Endpoint
from akunu_py.server.contracts.llama.errors import error_body
from akunu_py.server.contracts.page.html import page
from akunu_py.server.contracts.page.status import status

PAGE: Final = Contract(
    name="page",
    endpoints=(
        Endpoint("GET", "/", page, is_open=True),
        Endpoint("GET", "/status", status, is_polled=True),
    ),
    error_body=error_body,
)
