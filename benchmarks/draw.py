"""Draws the pictures of the README and of docs/editors.md into `results/`.

    python -m benchmarks.draw chat      # one turn of a real chat, as the terminal shows it
    python -m benchmarks.draw status    # the status page of a busy server, in a real browser

`chat` records the bytes that `chat` writes, and rich draws them. `status` needs a Chromium; it asks
a question on the page and draws the page while the server answers other clients.
"""

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from http.client import HTTPConnection
from time import sleep
from typing import Any, Final
from urllib.parse import urlsplit

from PIL import Image
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import DummyInput
from prompt_toolkit.output import DummyOutput
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from akunu_py.cli.conversation import Conversation
from akunu_py.cli.loading import load_engine
from akunu_py.cli.settings import ChatSettings
from akunu_py.cli.terminal import TerminalScreen
from akunu_py.options import BUNDLED_MODEL, ModelOptions, Options
from akunu_py.worker import EngineWorker
from benchmarks.records import RESULTS, options_of
from benchmarks.served import served
from tests.server.chromium import Tab, find_chromium, open_tab

TURN: Final = """\
Rename `name` to `label` in:
```python
def add(self, name, count=1):
    if name in self.items:
        raise KeyError(name)
    self.items[name] = count
    return name
```"""
COLOURS: Final = 128
WIDTH: Final = 1000
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


COLUMNS = 84


class Recording(io.StringIO):
    """A terminal that remembers what it was sent."""

    def isatty(self) -> bool:
        return True


MAX_ANSWER_TOKENS = 96
"""Tokens; a long answer does not fit a picture."""


def record_turn(model: ModelOptions, question: str) -> str:
    """What `chat` writes to a terminal while one question is asked and answered."""
    worker = EngineWorker(lambda: load_engine(model))
    recording = Recording()
    with (
        create_app_session(input=DummyInput(), output=DummyOutput()),
        redirect_stdout(recording),
    ):
        list(Conversation(worker, Options(max_tokens=16)).ask("Hello."))  # the first is slower
        settings = ChatSettings(quiet=True, model=model)
        screen = TerminalScreen(worker.loading, settings, InMemoryHistory())
        options = Options(max_tokens=MAX_ANSWER_TOKENS)
        conversation = Conversation(worker, options, progress=screen.progress)
        first, *rest = question.splitlines()
        for prompt, line in (("> ", first), *((". ", line) for line in rest)):
            print(f"\x1b[1m{prompt}\x1b[0m{line}")
        screen.show_turn(conversation.ask(question), show_drafts=True)
    worker.close()
    return recording.getvalue().rstrip("\n")


def draw(printed: str) -> str:
    """An SVG of what was printed, without fonts of other sites and with its indentation."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(printed))
    picture = console.export_svg(title="python -m akunu_py chat --show-drafts", theme=MONOKAI)
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    return picture.replace("<svg ", '<svg xml:space="preserve" ', 1)


def draw_chat(model: str) -> None:
    os.environ["TERM"] = "xterm-256color"  # so that the picture is the same in every terminal
    os.environ.pop("NO_COLOR", None)
    printed = record_turn(ModelOptions(model), TURN)
    (RESULTS / "chat.svg").write_text(draw(printed), encoding="utf-8")
    print(printed)


def draw_status(model: str) -> None:
    chromium = find_chromium()
    if chromium is None:
        sys.exit("There is no Chromium to draw with; install one.")
    with served(model) as server, open_tab(chromium) as tab:
        tab.show_in(width=WIDTH, dark=False)
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
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS).save(RESULTS / "status.png", optimize=True)  # the page has no more


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


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("what", choices=("chat", "status"))
    parser.add_argument("--model", default=BUNDLED_MODEL)
    asked = parser.parse_args()
    {"chat": draw_chat, "status": draw_status}[asked.what](asked.model)


if __name__ == "__main__":
    main()
