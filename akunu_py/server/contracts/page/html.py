"""`/`: the page itself. It has no secret in it, so it needs no key; what it shows does.

The page may run its own script and nothing else, and talk to this server and nobody else: its
Content-Security-Policy has the digests of what stands in the file.
"""

import hashlib
import re
from base64 import b64encode
from functools import cache
from importlib.resources import files
from typing import Final

from starlette.responses import HTMLResponse, Response

from akunu_py.server.contract import Call

_FILE: Final = "page.html"


async def page(_: Call) -> Response:
    """The page, with what the browser is to hold it to."""
    text, policy = _read()
    return HTMLResponse(
        text,
        headers={
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        },
    )


@cache
def _read() -> tuple[str, str]:
    """The page and its policy."""
    text = files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; "
        f"script-src {_digest(text, 'script')}; "
        f"style-src {_digest(text, 'style')}; "
        "img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _digest(text: str, element: str) -> str:
    """What a policy allows the one element of its kind by."""
    found = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    digest = hashlib.sha256(found[0].encode()).digest()
    return f"'sha256-{b64encode(digest).decode()}'"
