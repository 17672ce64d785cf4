"""Draws the README's picture: one turn of a real chat, as the terminal shows it.

    python -m benchmarks.draw_chat [--model NAME] [--output FILE]

Records the bytes that `chat` writes; rich draws them.
"""

import argparse
import os
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

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

QUESTION = """\
Rename `name` to `label` in:
```python
def add(self, name, count=1):
    if name in self.items:
        raise KeyError(name)
    self.items[name] = count
    return name
```"""
OUTPUT = Path(__file__).parent / "results" / "chat.svg"
COLUMNS = 84


class Recording(StringIO):
    """A terminal that remembers what it was sent."""

    def isatty(self) -> bool:
        """Whether colours make sense here."""
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
    console = Console(record=True, width=COLUMNS, file=StringIO())
    console.print(Text.from_ansi(printed))
    picture = console.export_svg(title="python -m akunu_py chat --show-drafts", theme=MONOKAI)
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    return picture.replace("<svg ", '<svg xml:space="preserve" ', 1)


def main() -> None:
    """Records and draws."""
    parser = argparse.ArgumentParser(description="Draws a chat with its drafted tokens coloured.")
    parser.add_argument("--model", default=BUNDLED_MODEL)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    words = parser.parse_args()
    os.environ["TERM"] = "xterm-256color"  # so that the picture is the same in every terminal
    os.environ.pop("NO_COLOR", None)
    printed = record_turn(ModelOptions(words.model), QUESTION)
    words.output.parent.mkdir(parents=True, exist_ok=True)
    words.output.write_text(draw(printed), encoding="utf-8")
    print(printed)


if __name__ == "__main__":
    main()
