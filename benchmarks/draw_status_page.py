"""Draws a picture of the status page: a real server with several requests, in a real browser.

    python -m benchmarks.draw_status_page [--model NAME] [--dark] [--width PIXELS] [--output FILE]

Needs a Chromium. Starts a server on a free port, asks it a question through the page itself, and
draws the page while the server answers other clients.
"""

import argparse
import io
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from time import sleep
from typing import Any, Final
from urllib.parse import urlsplit

from PIL import Image

from akunu_py.options import BUNDLED_MODEL
from benchmarks.chromium import Tab, find_chromium, open_tab
from benchmarks.served import served

RESULTS: Final = Path(__file__).parent / "results"
COLOURS: Final = 128
QUESTION: Final = """Rename `width` to `w` in:
```python
def perimeter(width, height):
    return 2 * (width + height)
```"""
_WARM_UPS: Final = 2
_LONG: Final = 1900
_LOOK_S: Final = 3.0
"""The page looks at the server every second."""
_OTHERS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTION}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story."}]}),
    ("/infill", {"input_prefix": "def mean(values):\n    ", "input_suffix": "\n    return mean\n"}),
    ("/completion", {"prompt": "class Tally:\n    "}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is a prime?"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is a list?"}]}),
)
"""What the others ask for, each for a long answer; more than are answered together."""


def main() -> None:
    """Draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=BUNDLED_MODEL)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=RESULTS / "status.png")
    settings = parser.parse_args()
    chromium = find_chromium()
    if chromium is None:
        sys.exit("There is no Chromium to draw with; install one.")
    with served(settings.model) as server, open_tab(chromium) as tab:
        tab.show_in(width=settings.width, dark=settings.dark)
        tab.open(server.url)
        tab.wait_for("!document.getElementById('board').hidden")
        for _ in range(_WARM_UPS + 1):
            _ask(tab)
        tab.wait_for("document.querySelector('#spark .curve') !== null")
        with ExitStack() as others:
            for number, (path, body) in enumerate(_OTHERS):
                others.enter_context(_under_way(server.url, path, body | {"seed": number}))
            tab.wait_for("document.querySelectorAll('#sequences progress').length > 4")
            sleep(_LOOK_S)
            picture = tab.take_picture()
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    _save(picture, settings.output)
    print(f"{settings.output}: {settings.output.stat().st_size} bytes")


def _ask(tab: Tab) -> None:
    """Asks the question on the page, and waits until the page shows its figures."""
    tab.run(
        f"""
        document.getElementById("prompt").value = {json.dumps(QUESTION)};
        document.getElementById("how").value = "chat";
        document.getElementById("run").click();
        """
    )
    tab.wait_for("document.getElementById('result').textContent !== ''")
    tab.wait_for("last.queue.processing === 0 && last.costs !== null")


@contextmanager
def _under_way(url: str, path: str, body: dict[str, Any]) -> Iterator[None]:
    """Asks for a long answer, and hangs up at the end."""
    asked = body | {"max_tokens": _LONG, "n_predict": _LONG, "temperature": 1, "ignore_eos": True}
    with closing(HTTPConnection(urlsplit(url).netloc)) as client:
        client.request("POST", path, json.dumps(asked | {"stream": True}))
        yield


def _save(picture: bytes, path: Path) -> None:
    """Writes a picture in few colours; the page has no more."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    main()
