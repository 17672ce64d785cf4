"""`chat`: answers questions and runs slash commands until the user leaves.

The prompt appears immediately; the model loads meanwhile, on a thread of its own.
"""

import sys
from typing import TYPE_CHECKING, Final

from akunu_py.cli.conversation import Conversation, Turn
from akunu_py.cli.loading import check_ability, fetch_model, load_engine
from akunu_py.cli.screen import Screen
from akunu_py.cli.settings import ChatSettings
from akunu_py.cli.slash_commands import LeaveChatError, run_command
from akunu_py.edits.shown import doubt_of
from akunu_py.errors import AkunuError, BackendError, ContextOverflowError
from akunu_py.worker import EngineWorker

if TYPE_CHECKING:
    from akunu_py.engine import Engine

_SECONDS_TO_STOP: Final = 3.0


def run(settings: ChatSettings) -> int:
    """Runs a conversation on the terminal or through a pipe; in a pipe, an error ends it."""
    fetch_model(settings.model)
    check_ability(settings.model)
    on_terminal = bool(sys.stdin and sys.stdin.isatty() and sys.stdout.isatty())
    if on_terminal:  # imported before the engine's thread competes for the interpreter
        from akunu_py.cli.terminal import (  # noqa: PLC0415  (a pipe needs no line editor)
            TerminalScreen,
            open_history,
        )
    worker = EngineWorker(lambda: _load(settings, on_terminal=on_terminal))
    try:
        screen = (
            TerminalScreen(worker.loading, settings, open_history())
            if on_terminal
            else Screen(worker.loading)
        )
        doubts = settings.model.is_bundled
        conversation = Conversation(
            worker,
            settings.options,
            system=settings.system_prompt,
            show_drafts=settings.show_drafts,
            progress=screen.progress,
            scores=doubts,
        )
        Chat(conversation, screen, doubts=doubts).run()
    finally:
        worker.close(_SECONDS_TO_STOP)
    return 0


class Chat:
    """Connects a screen and a conversation; warns of doubtful answers if it `doubts`."""

    def __init__(self, conversation: Conversation, screen: Screen, *, doubts: bool) -> None:
        self._conversation = conversation
        self._screen = screen
        self._doubts = doubts
        self._showed_notices = False

    def run(self) -> None:
        with self._screen.session():
            while (said := self._screen.read()) is not None:
                try:
                    self._take(said)
                except LeaveChatError:
                    return
                except KeyboardInterrupt:
                    self._screen.interrupted()
                except ContextOverflowError as error:
                    self._screen.complain(ContextOverflowError(f"{error} /reset starts over."))
                except AkunuError as error:
                    if self._conversation.worker.failed:
                        raise
                    self._screen.complain(error)

    def _take(self, said: str) -> None:
        reply = run_command(self._conversation, said)
        if reply is None:
            self._prepare()
            reply = self._conversation.ask(said)
        if isinstance(reply, str):
            self._screen.say(reply)
            return
        try:
            self._screen.show_turn(
                reply, show_drafts=self._conversation.show_drafts, warning=self._warning
            )
        except RuntimeError as error:
            raise BackendError(f"MLX failed ({error}); the conversation is unchanged.") from error

    def _warning(self, turn: Turn) -> str | None:
        if not self._doubts:
            return None
        said = [one["content"] for one in turn.asked if one["role"] != "system"]
        return doubt_of(said, turn.text, turn.log_probability)

    def _prepare(self) -> None:
        engine = self._screen.await_model()
        if not self._showed_notices:
            self._showed_notices = True
            for notice in engine.notices:
                self._screen.notice(notice)


def _load(settings: ChatSettings, *, on_terminal: bool) -> "Engine":
    options = settings.options
    engine = load_engine(settings.model)
    if on_terminal and options.drafts and not engine.model.why_no_drafts:
        engine.costs.alone()  # requests the measurement
    return engine
