"""Draws the README's picture of the status page: a real server, in a real browser.

    python -m benchmarks.draw_status_page [--model NAME] [--dark] [--width PIXELS] [--output FILE]

Needs a Chromium. Starts a server on a free port and asks it a question through the page itself.
"""

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Final

from PIL import Image

from akunu_py.model_files import BUNDLED_MODEL
from benchmarks.chromium import Tab, find_chromium, open_tab
from benchmarks.served import served

RESULTS: Final = Path(__file__).parent / "results"
COLOURS: Final = 128
QUESTION: Final = """Rename `width` to `w` in:
```python
def area(width, height):
    return width * height

def perimeter(width, height):
    return 2 * (width + height)
```"""
_WARM_UPS: Final = 2


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


def _save(picture: bytes, path: Path) -> None:
    """Writes a picture in few colours; the page has no more."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    main()
