"""TerminalScreen: a conversation on a terminal, with line editing, history and completion.

With the bundled model, it first says what the model is for and offers requests to try. A user's own
model is described in one line once it is loaded.
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count, cycle
from textwrap import indent
from types import FrameType
from typing import TYPE_CHECKING, Final

from platformdirs import user_data_path
from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, get_app, run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import is_dumb_terminal

from akunu_py.cli.conversation import Turn
from akunu_py.cli.render import (
    AnswerWriter,
    columns_of,
    on_one_line,
    palette_for,
    prefill_bar,
    printable,
    stats_line,
    wrapped,
)
from akunu_py.cli.screen import CONTEXT_FULL, Screen, Warn
from akunu_py.cli.settings import ChatSettings
from akunu_py.cli.slash_commands import COMMANDS
from akunu_py.errors import AkunuError
from akunu_py.options import BUNDLED_MODEL, Options
from akunu_py.package import make_private
from akunu_py.rounds import Finish

if TYPE_CHECKING:
    from akunu_py.engine import Engine

EXAMPLES: Final = (
    "Rename `x` to `total` in: def f(x): return x + 1",
    "Add a docstring to: def area(w, h): return w * h",
    "Make this function async: def fetch(url): return get(url)",
)
"""Requests that the bundled model answers right, alone and in this order."""

_OPENING: Final = f"{BUNDLED_MODEL} is a small model that edits short Python code. Tab shows one:"
_CLOSING: Final = "To use another model: --model FOLDER or its hub name. /help lists commands."
_MEBI: Final = 1 << 20
_PROMPT: Final = "> "
_CONTINUATION: Final = ". "
_STYLE: Final = Style.from_dict({"prompt": "bold", "placeholder": "ansibrightblack"})
_ERASE_LINE: Final = "\r\x1b[K"
_LEAVING: Final = ("exit", "quit", "exit()", "quit()")
"""They end a Python prompt or a shell, so a line with nothing else is not meant for the model."""
_PATIENCE: Final = 3
"""How many presses of Ctrl-C end the wait for the answer to stop."""
_NOT_KEPT: Final = "interrupted before the first token; the question is not kept"


class TerminalScreen(Screen):
    """Reads from and writes to the terminal; for the main thread. `history` has the lines of
    earlier conversations."""

    def __init__(self, loading: "Future[Engine]", settings: ChatSettings, history: History) -> None:
        super().__init__(loading)
        model = settings.model
        self._model = on_one_line(model.name)
        self._options = settings.options
        self._examples = EXAMPLES if model.is_bundled and not settings.quiet else ()
        self._describes = not model.is_bundled and not settings.quiet
        self._palette = palette_for(sys.stdout)
        self._bar = prefill_bar(sys.stdout)
        self._session: PromptSession[str] = PromptSession(
            [("class:prompt", _PROMPT)],
            history=history,
            multiline=True,
            prompt_continuation=lambda width, _, wraps: [
                ("class:prompt", " " * width if wraps else _CONTINUATION)
            ],
            completer=SlashCompleter(),
            complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
            key_bindings=_key_bindings(self._examples),
            placeholder=self._placeholder,
            style=_STYLE,
        )

    def session(self) -> AbstractContextManager[None]:
        if self._examples:
            self.notice(_OPENING)
            columns = columns_of(sys.stdout)
            for example in self._examples:
                self._write(indent(wrapped(example, columns and columns - 2), "  ") + "\n")
            self.notice(_CLOSING)
            self._write("\n")
        return unseen_keys()

    def read(self) -> str | None:
        while True:
            try:
                if self._loading.done():
                    self._describe_model()
                said = self._session.prompt(pre_run=self._watch_loading)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if not self._session.default_buffer.text:
                    self.notice("Press Ctrl-D to leave.")
                continue
            said = said.encode(errors="replace").decode().strip("\n").rstrip()
            return None if said.strip().lower() in _LEAVING else said

    def await_model(self) -> "Engine":
        if not self._loading.done():
            self._write(self._palette.paint(self._palette.dim, f"loading {self._model} ..."))
            try:
                self._loading.exception()
            finally:
                self._write(_ERASE_LINE)
        self._describe_model()
        return super().await_model()

    def progress(self, done: int, total: int) -> None:
        self._bar(done, total)

    def show_turn(self, turn: Turn, *, show_drafts: bool, warning: Warn) -> None:
        writer = AnswerWriter(sys.stdout, show_drafts=show_drafts, wrap=True)
        try:
            with stopped_by_ctrl_c(turn.cancel):
                for event in turn:
                    self._bar.close()
                    writer.write(event.pieces)
        finally:
            self._bar.close()
            writer.end_line()
        if found := warning(turn):
            self._write(wrapped(found, columns_of(sys.stdout)) + "\n")
        limit = self._loading.result().context_limit
        self.notice(stats_line(turn.stats, turn.finish, limit) if turn.kept else _NOT_KEPT)
        if turn.finish is Finish.CONTEXT:
            self.notice(CONTEXT_FULL)
        self._write("\n")

    def say(self, text: str) -> None:
        self._write(f"{printable(text)}\n\n")

    def notice(self, text: str) -> None:
        text = wrapped(printable(text), columns_of(sys.stdout))
        self._write(self._palette.paint(self._palette.dim, text) + "\n")

    def complain(self, error: AkunuError) -> None:
        text = wrapped(printable(str(error)), columns_of(sys.stdout))
        self._write(self._palette.paint(self._palette.error, text) + "\n\n")

    def interrupted(self) -> None:
        self.notice("Interrupted; press Ctrl-D to leave.")

    def _describe_model(self) -> None:
        engine = self._loading.result()
        if self._describes:
            self._describes = False
            self.notice(describe_model(engine, self._options))

    def _placeholder(self) -> StyleAndTextTuples:
        if get_app().is_done or get_app().layout.is_searching:
            return []
        text = f"loading {self._model} ..."
        if self._loading.done():
            example = "Tab for an example, " if self._examples else ""
            text = f"a message, {example}or /help"
        return [("class:placeholder", text)]

    def _watch_loading(self) -> None:
        if not self._loading.done():
            application = get_app()
            application.create_background_task(self._await_loading(application))

    async def _await_loading(self, application: Application[str]) -> None:
        try:
            await asyncio.wrap_future(self._loading)
        except Exception as error:  # read() raises it
            if application.is_running and not application.is_done:
                application.exit(exception=error)
        else:
            await run_in_terminal(self._describe_model)  # above the prompt
            application.invalidate()

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def describe_model(engine: "Engine", options: Options) -> str:
    """The loaded model in one line: name, size, context, and whether drafting pays."""
    model = engine.model
    facts = (
        model.full_name,
        f"{model.size} parameters, {model.parameter_bytes / _MEBI:,.0f} MiB",
        f"context {engine.context_limit:,} tokens",
        _drafting(engine, options),
    )
    return " · ".join(facts)


def _drafting(engine: "Engine", options: Options) -> str:
    if not options.drafts:
        return "drafting is off"
    if engine.model.why_no_drafts:
        return "no drafting with this model"
    if options.num_draft_tokens is not None:
        return f"up to {options.num_draft_tokens} draft tokens per round"
    if (curve := engine.costs.measured) is None:
        return "drafting where it pays"
    from akunu_py.bench.cost_report import CostReport  # noqa: PLC0415  (not for the first prompt)

    payoff = CostReport({}, {}, curve).payoff
    if payoff.acceptance is None or not payoff.pays:
        return "drafting does not pay here"
    return f"drafting pays from {payoff.acceptance:.0%} acceptance on"


def _key_bindings(examples: Sequence[str] = ()) -> KeyBindings:
    bindings = KeyBindings()
    following = cycle(examples)
    # A dumb terminal cannot take back what it has shown.
    replaced = () if is_dumb_terminal() else examples

    writing = has_focus(DEFAULT_BUFFER)
    begins = Condition(lambda: bool(examples) and get_app().current_buffer.text in ("", *replaced))

    @bindings.add("tab", filter=writing & begins)
    def _take_example(press: KeyPressEvent) -> None:
        press.current_buffer.reset()
        for character in next(following):  # one by one, as a dumb terminal shows only the last
            press.current_buffer.insert_text(character)

    @bindings.add("enter", filter=writing)
    def _send(press: KeyPressEvent) -> None:
        buffer = press.current_buffer
        if not buffer.text.strip():
            buffer.reset()
        elif buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=writing)
    def _begin_line(press: KeyPressEvent) -> None:
        press.current_buffer.newline(copy_margin=False)

    return bindings


class SlashCompleter(Completer):
    """Completes a slash command and its arguments in the first line."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in line:
            return
        name, space, rest = line.partition(" ")
        for command in COMMANDS:
            if not space and command.name.startswith(name):
                yield Completion(command.name, -len(name), display_meta=command.summary)
            elif space and command.name == name:
                if command.takes_file:
                    yield from self._paths.get_completions(Document(rest), event)
                for choice in command.choices:
                    if choice.startswith(rest):
                        yield Completion(choice, -len(rest))


def open_history() -> History:
    """A history in a file that only the user can read; in memory if the file cannot be made."""
    path = user_data_path("akunu-py", appauthor=False) / "chat_history"
    try:
        make_private(path.parent)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return _ForgivingHistory(path)


class _ForgivingHistory(FileHistory):
    """Ignores write errors, because a full disk must not end a chat."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


@contextmanager
def unseen_keys() -> Iterator[None]:
    """A context in which keys are not echoed; all but Ctrl-C go to the next prompt."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def stopped_by_ctrl_c(stop: Callable[[], None]) -> Iterator[None]:
    """A context in which Ctrl-C calls `stop` instead of raising; for the main thread only.

    The third press raises `KeyboardInterrupt`, in case the answer does not stop.
    """
    presses = count(1)

    def interrupted(_: int, __: FrameType | None) -> None:
        if next(presses) >= _PATIENCE:
            raise KeyboardInterrupt
        stop()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
