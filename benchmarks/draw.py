"""Draws the pictures of the README and of docs/ into `docs/pictures/`.

    python -m benchmarks.draw edit      # the README's edit, as a terminal shows it, and its record
    python -m benchmarks.draw chat      # one turn of a real chat, as the terminal shows it
    python -m benchmarks.draw page      # the page for chats, in a real browser
    python -m benchmarks.draw status    # the status page of a busy server, in a real browser

`edit` runs the command in a terminal, several times, and draws the median; `chat` records the bytes
that `chat` writes; rich draws both. The pages need a Chromium; the status page is drawn while the
server answers several clients.
"""

import io
import json
import os
import pty
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, closing, contextmanager, redirect_stdout
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
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

from akunu_py.bench.measurement import Spread
from akunu_py.cli.conversation import Conversation
from akunu_py.cli.loading import load_engine
from akunu_py.cli.settings import ChatSettings
from akunu_py.cli.terminal import TerminalScreen
from akunu_py.options import BUNDLED_MODEL, ModelOptions, Options
from akunu_py.worker import EngineWorker
from benchmarks.records import options_of, record
from benchmarks.served import served
from tests.server.chromium import Tab, find_chromium, open_tab

DOCS: Final = Path(__file__).parents[1] / "docs"
PICTURES: Final = DOCS / "pictures"
FILE: Final = "merge.py"
RENAME: Final = "Rename `merged` to `result`"
RUNS: Final = 9
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
"""The pages have no more."""
WIDTH: Final = 1000
PHONE: Final = 390
QUESTION: Final = """Rename `width` to `w` in:
```python
def perimeter(width, height):
    return 2 * (width + height)
```"""
_LONG: Final = 1900
_SETTLE_S: Final = 0.5
_LOOKS: Final = 60
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
        screen.show_turn(conversation.ask(question), show_drafts=True, warning=lambda _: None)
    worker.close()
    return recording.getvalue().rstrip("\n")


def run_edit() -> bytes:
    """What `edit` writes to a terminal for the README's edit, whose diff is applied."""
    printed = bytearray()

    def read(terminal: int) -> bytes:
        part = os.read(terminal, 1 << 12)
        printed.extend(part)
        if b"[y/n/e] " in part:
            os.write(terminal, b"y\n")
        return part

    with TemporaryDirectory() as folder, chdir(folder):
        Path(FILE).write_bytes((DOCS / FILE).read_bytes())
        status = pty.spawn([sys.executable, "-m", "akunu_py", "edit", FILE, RENAME], read)
        if status or "result" not in Path(FILE).read_text(encoding="utf-8"):
            sys.exit("The edit failed.")
    return bytes(printed)


def draw_edit(_model: str) -> None:
    runs = [run_edit().decode().replace("\r\n", "\n") for _ in range(RUNS)]
    gains = [float(re.findall(r"([\d.]+) times as fast", one)[-1]) for one in runs]
    _, shown = sorted(zip(gains, runs, strict=True))[len(runs) // 2]
    shown = shown[shown.rfind("\n", 0, shown.index(FILE)) + 1 :]  # without the bar
    (PICTURES / "edit.svg").write_text(draw(shown, f"akunu-py edit {FILE} '{RENAME}'"))
    lines = (DOCS / FILE).read_text(encoding="utf-8").count("\n")
    record(
        "edit_demo",
        "The README's edit",
        f"A function of {lines} lines, in which a name is replaced, in {len(runs)} runs of the "
        f"command: {Spread.of(gains):.2f} times as fast as without drafts (median, and quartiles). "
        f"The last line of the median, which is drawn:\n\n- {_plain(shown).splitlines()[-1]}",
    )


def _plain(printed: str) -> str:
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", printed).strip()


def draw(printed: str, title: str) -> str:
    """An SVG of what was printed, without fonts of other sites and with its indentation."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(printed))
    picture = console.export_svg(title=title, theme=MONOKAI)
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    return picture.replace("<svg ", '<svg xml:space="preserve" ', 1)


def draw_chat(model: str) -> None:
    os.environ["TERM"] = "xterm-256color"  # so that the picture is the same in every terminal
    os.environ.pop("NO_COLOR", None)
    printed = record_turn(ModelOptions(model), TURN)
    picture = draw(printed, "python -m akunu_py chat --show-drafts")
    (PICTURES / "chat.svg").write_text(picture, encoding="utf-8")
    print(printed)


def draw_page(model: str) -> None:
    with served(model) as server, open_tab(_chromium()) as tab:
        tab.show_in(width=WIDTH, dark=False)
        tab.open(server.url)
        tab.wait_for("document.querySelector('#model option').textContent !== '…'")
        _say(tab, "Make this function async: def fetch(url): return get(url)")
        _wait_until_measured(server.url)
        tab.run("document.getElementById('new').click()")
        tab.wait_for("!document.querySelector('article')")
        _say(tab, f"{RENAME} in:\n```python\n{(DOCS / FILE).read_text(encoding='utf-8')}```")
        for click, name, width, dark in (
            ("log", "page", WIDTH, False),
            ("drafts", "page-drafts", WIDTH, True),
            ("log", "page-phone", PHONE, True),
        ):
            tab.run(f"document.getElementById('{click}').click()")
            tab.show_in(width=width, dark=dark)
            tab.run("document.getElementById('log').scrollTop = 1e9")
            sleep(_SETTLE_S)
            _write(tab.take_picture(), name)


def _say(tab: Tab, text: str) -> None:
    """Sends a message on the page, and waits for the end of the answer."""
    tab.run(
        f"""
        document.getElementById("text").value = {json.dumps(text)};
        document.getElementById("ask").requestSubmit();
        """
    )
    tab.wait_for("!document.getElementById('send').hidden && location.hash !== ''")


def draw_status(model: str) -> None:
    with served(model) as server, open_tab(_chromium()) as tab:
        tab.show_in(width=WIDTH, dark=False)
        tab.open(f"{server.url}/status")
        tab.wait_for("!document.getElementById('board').hidden")
        _ask(server.url, "/v1/chat/completions", _OTHERS[0][1])
        _wait_until_measured(server.url)
        tab.wait_for("document.querySelector('#spark .curve') !== null")
        with ExitStack() as others:
            for number, (path, body) in enumerate(_OTHERS):
                others.enter_context(_under_way(server.url, path, body | {"seed": number}))
            tab.wait_for("document.querySelectorAll('#sequences progress').length > 4")
            sleep(_LOOK_S)
            _write(tab.take_picture(), "status")


def _chromium() -> str:
    return find_chromium() or sys.exit("There is no Chromium to draw with; install one.")


def _write(picture: bytes, name: str) -> None:
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS).save(PICTURES / f"{name}.png", optimize=True)


def _ask(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The answer of a server."""
    with closing(HTTPConnection(urlsplit(url).netloc)) as client:
        client.request("POST" if body else "GET", path, json.dumps(body) if body else None)
        return json.load(client.getresponse())


def _wait_until_measured(url: str) -> None:
    """Waits for the costs of passes, but not for ever: on a busy machine they are not measured."""
    for _ in range(_LOOKS):
        now = _ask(url, "/status.json")
        if now["costs"] and not now["queue"]["processing"]:
            return
        sleep(_SETTLE_S)


@contextmanager
def _under_way(url: str, path: str, body: dict[str, Any]) -> Iterator[None]:
    """Asks for a long answer, and hangs up at the end."""
    asked = body | {"max_tokens": _LONG, "n_predict": _LONG, "temperature": 1, "ignore_eos": True}
    with closing(HTTPConnection(urlsplit(url).netloc)) as client:
        client.request("POST", path, json.dumps(asked | {"stream": True}))
        yield


def main() -> None:
    parser = options_of(__doc__)
    drawn = {"edit": draw_edit, "chat": draw_chat, "page": draw_page, "status": draw_status}
    parser.add_argument("what", choices=drawn)
    parser.add_argument("--model", default=BUNDLED_MODEL)
    asked = parser.parse_args()
    drawn[asked.what](asked.model)


if __name__ == "__main__":
    main()
