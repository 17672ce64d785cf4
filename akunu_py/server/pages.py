"""The pages for browsers: a chat at `/`, and at `/status` the figures of `/status.json`.

Each is a file of HTML, with its scripts and styles under `/static/`. They contain no secret, so
they need no API key; what they ask the server for does. Their Content-Security-Policy allows these
files and requests to this server only, and lets no script make HTML of text.
"""

from functools import partial
from importlib.resources import files
from typing import Final

from starlette.responses import Response

from akunu_py.server.body import Body
from akunu_py.server.pool import Pool
from akunu_py.server.wire import Answer, PoolEndpoint

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_PARTS: Final = (
    "theme.css", "theme.js", "server.js", "chat.css", "chat.js", "markdown.js", "status.css",
    "status.js",
)  # fmt: skip


def _serve(name: str, _pool: Pool, _body: Body) -> Response:
    content = files(__package__).joinpath("static", name).read_bytes()
    headers = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
    if name.endswith(".html"):
        headers["Content-Security-Policy"] = _POLICY
    return Answer(content, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


def _page(path: str, name: str) -> PoolEndpoint:
    return PoolEndpoint("GET", path, partial(_serve, name), is_open=True)


ENDPOINTS: Final = (
    _page("/", "chat.html"),
    _page("/status", "status.html"),
    *(_page(f"/static/{name}", name) for name in _PARTS),
)
