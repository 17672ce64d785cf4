"""Conversation: questions in, turns out; it keeps the messages and knows no terminal.

A turn is one request to the worker, whose thread renders the messages, encodes them and answers. A
saved conversation is written completely or not at all, and overwrites nothing but an older
conversation.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from akunu_py.edits.shown import UNSURE, is_unsure
from akunu_py.edits.text_file import TextFile
from akunu_py.errors import InvalidRequestError, SessionFileError
from akunu_py.events import Event, EventStream
from akunu_py.options import DRAFTERS, Options, Sampling
from akunu_py.package import write_atomically
from akunu_py.rounds import Finish, Stats
from akunu_py.text.tokenizer import Message
from akunu_py.worker import EngineWorker

_FORMAT: Final = "akunu-py conversation"
_VERSION: Final = 1
_ROLES: Final = ("system", "user", "assistant")


class Conversation:
    """The messages so far, and the options of the next answer.

    The worker may still be loading. `progress` is called with the prompt tokens done and in total;
    `scores` asks for the probabilities of answers.
    Replace `options` and `show_drafts` to change them for the next answers. `stats` has the
    statistics of every turn since the start or the last reset. `edited` is the file of the last
    request for an edit.
    """

    def __init__(
        self,
        worker: EngineWorker,
        options: Options,
        *,
        system: str | None = None,
        show_drafts: bool = False,
        progress: Callable[[int, int], None] | None = None,
        scores: bool = False,
    ) -> None:
        self.worker = worker
        self.options = options
        self.show_drafts = show_drafts
        self.messages: Sequence[Message] = system_messages(system)
        self.stats: list[Stats] = []
        self.progress = progress
        self.scores = scores
        self.edited: TextFile | None = None
        self._last: Turn | None = None

    @property
    def system(self) -> str | None:
        said = [message["content"] for message in self.messages if message["role"] == "system"]
        return said[0] if said else None

    def ask(self, question: str) -> "Turn":
        return Turn(self, [*self.messages, {"role": "user", "content": question}])

    def retry(self) -> "Turn":
        """A turn that asks the last question again; its answer replaces the one before."""
        if [message["role"] for message in self.messages[-2:]] != ["user", "assistant"]:
            raise InvalidRequestError("There is no answer yet to try again.")
        return Turn(self, self.messages[:-1])

    def last_answer(self) -> tuple[str, str]:
        """The last question and its answer. Raises an `InvalidRequestError` if there is no answer,
        or it was cut short."""
        if [message["role"] for message in self.messages[-2:]] != ["user", "assistant"]:
            raise InvalidRequestError("There is no answer yet.")
        if self._last is not None and self._last.finish in (Finish.LENGTH, Finish.CONTEXT):
            raise InvalidRequestError("The last answer was cut; ask again with more /max-tokens.")
        if self._last is not None and self._last.finish is Finish.CANCELLED:
            raise InvalidRequestError("The last answer was stopped; /retry asks again.")
        return self.messages[-2]["content"], self.messages[-1]["content"]

    @property
    def unsure(self) -> str | None:
        """A warning if the bundled model is not sure of its last answer."""
        return UNSURE if self._last and is_unsure(self._last.log_probability) else None

    def keep(self, turn: "Turn") -> None:
        self.messages = [*turn.asked, {"role": "assistant", "content": turn.answer}]
        self._last = turn
        self.stats.append(turn.stats)

    def go_on_from(self, messages: Sequence[Message]) -> None:
        self.messages = list(messages)
        self._last = None
        self.stats = []

    def reset(self) -> None:
        self.go_on_from(system_messages(self.system))

    def set_system(self, text: str | None) -> None:
        said = [message for message in self.messages if message["role"] != "system"]
        self.messages = [*system_messages(text), *said]
        self._last = None


class Turn:
    """The messages up to a question, and its answer; iterating over the turn produces the answer.

    At the end, the conversation keeps both, even if the answer was cut short. Only a turn cancelled
    before its first token leaves no trace. The `answer` is the text without its reasoning, and the
    `log_probability` that of the whole text, if the conversation `scores`.
    """

    def __init__(self, conversation: Conversation, asked: Sequence[Message]) -> None:
        self.asked = asked
        self.text = self.answer = ""
        self.log_probability = 0.0
        self.stats = Stats()
        self.finish: Finish | None = None
        self._conversation = conversation
        self._events: EventStream | None = None
        self._cancelled = False

    def __iter__(self) -> Iterator[Event]:
        talk = self._conversation
        reasoning = talk.worker.loading.result().tokenizer.reasoning
        options = replace(talk.options, reports_progress=True, reasoning=reasoning)
        options = replace(options, logprobs=0) if talk.scores else options
        with talk.worker.stream(self.asked, options) as self._events:
            if self._cancelled:
                self._events.cancel()
            for event in self._events:
                if event.prompt_done is not None:
                    if talk.progress is not None:
                        talk.progress(event.prompt_done, event.stats.prompt_tokens)
                    continue
                self.text += event.text
                self.log_probability += event.log_probability
                self.answer += "".join(piece.text[piece.thought :] for piece in event.pieces)
                self.stats, self.finish = event.stats, event.finish_reason
                yield event
        if self.answer != self.text:
            self.answer = self.answer.lstrip()
        if self.kept:
            talk.keep(self)

    @property
    def kept(self) -> bool:
        return self.stats.generated_tokens > 0 or self.finish is not Finish.CANCELLED

    def cancel(self) -> None:
        """Ends the answer after the current round; a signal handler may call this at any time."""
        self._cancelled = True
        if self._events is not None:
            self._events.cancel()


def system_messages(text: str | None) -> list[Message]:
    """The messages that a conversation begins with."""
    return [{"role": "system", "content": text}] if text else []


@dataclass(frozen=True)
class SavedConversation:
    """The content of a file: the model, the messages, and the options of the next answer."""

    model: str
    messages: Sequence[Message]
    options: Options = field(default_factory=Options)


def save_conversation(path: Path, saved: SavedConversation) -> None:
    """Writes a conversation, or raises a `SessionFileError` and leaves an older one intact."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": saved.model,
        "messages": [dict(message) for message in saved.messages],
        "settings": asdict(saved.options),
    }
    text = json.dumps(content, ensure_ascii=False, indent=2)
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a device or a pipe
            return
        if path.exists():
            _refuse_foreign(path)
        write_atomically(path, text)
    except OSError as error:
        raise SessionFileError(
            f"The conversation could not be saved to {path}: {error.strerror}."
        ) from error


def load_conversation(path: Path) -> SavedConversation:
    """Reads a conversation; raises a `SessionFileError` that says why a file has none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SessionFileError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise _foreign(path, "it is not JSON in UTF-8") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise _foreign(path, "it was written by another program")
    if content.get("version") != _VERSION:
        raise _foreign(path, "it was written by another version of this program")
    try:
        messages = [_read_message(message) for message in content["messages"]]
        options = _read_options(content["settings"])
        return SavedConversation(str(content["model"]), messages, options)
    except (KeyError, TypeError, ValueError) as error:
        raise _foreign(path, f"it is damaged ({error})") from error


def _refuse_foreign(path: Path) -> None:
    try:
        load_conversation(path)
    except SessionFileError as error:
        raise SessionFileError(f"{error} Choose another name to save to.") from None


def _foreign(path: Path, reason: str) -> SessionFileError:
    return SessionFileError(f"{path} is not a saved conversation: {reason}.")


def _read_message(message: Any) -> Message:
    role, content = message["role"], message["content"]
    if role not in _ROLES or not isinstance(content, str):
        raise ValueError(f"it has a message of the role {role!r}, or one that is no text")
    content.encode()  # JSON can hold half a character, which no tokenizer accepts
    return {"role": role, "content": content}


def _read_options(saved: Any) -> Options:
    names = ("max_tokens", "stop", "drafter", "num_draft_tokens", "exact", *asdict(Sampling()))
    drafter = saved["drafter"]
    # A file of an older version has fewer settings; the defaults do what that version did.
    settings = saved | saved.get("sampling", {})
    settings |= {
        # A chat may have been saved with a drafter that no longer exists.
        "drafter": drafter if drafter in DRAFTERS else "auto",
        "logit_bias": tuple(map(tuple, settings.get("logit_bias", ()))),
    }
    try:
        return Options(**{name: settings[name] for name in names if name in settings})
    except InvalidRequestError as error:
        raise ValueError(str(error).rstrip(".")) from error
