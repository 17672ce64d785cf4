"""Conversation: questions in, turns out; it keeps the messages and knows no terminal.

A turn is one request to the worker, whose thread renders the prompt, encodes it and answers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from akunu_py.errors import InvalidRequestError
from akunu_py.events import Event, EventStream
from akunu_py.options import Options
from akunu_py.round import Finish
from akunu_py.stats import Stats
from akunu_py.text.chat import ChatTranscript
from akunu_py.text.tokenizer import Message
from akunu_py.worker import EngineWorker

if TYPE_CHECKING:
    from akunu_py.engine import Engine


class Conversation:
    """The messages so far, and how the next answer is made.

    The worker may still be loading. `progress` is called with the prompt tokens done and in total.
    Replace `options` and `show_drafts` to change them for the next answers.

    Attributes:
        stats: the stats of every turn since the conversation was started or reset.
    """

    def __init__(
        self,
        worker: EngineWorker,
        options: Options,
        *,
        system: str | None = None,
        show_drafts: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.worker = worker
        self.options = options
        self.show_drafts = show_drafts
        self.messages: Sequence[Message] = _system_messages(system)
        self.stats: list[Stats] = []
        self.progress = progress
        self._last: Turn | None = None

    @property
    def system(self) -> str | None:
        """The system message, if any."""
        said = [message["content"] for message in self.messages if message["role"] == "system"]
        return said[0] if said else None

    def ask(self, question: str) -> "Turn":
        """A turn that asks a question; iterating over it answers it."""
        return Turn(self, self.messages, question, previous=self._last)

    def retry(self) -> "Turn":
        """A turn that asks the last question again; its answer replaces the one before.

        Raises:
            InvalidRequestError: if the conversation does not end with an answer.
        """
        if [message["role"] for message in self.messages[-2:]] != ["user", "assistant"]:
            raise InvalidRequestError("There is no answer yet to try again.")
        turn = Turn(self, self.messages[:-2], self.messages[-2]["content"])
        if self._last is not None:
            turn.transcript = self._last.transcript
        return turn

    def keep(self, turn: "Turn") -> None:
        """Makes a finished turn part of the conversation; `Turn` calls this."""
        self.messages = [
            *turn.messages_before,
            {"role": "user", "content": turn.question},
            {"role": "assistant", "content": turn.text},
        ]
        self._last = turn
        self.stats.append(turn.stats)

    def go_on_from(self, messages: Sequence[Message]) -> None:
        """Replaces all messages, for example with those of a loaded conversation."""
        self.messages = list(messages)
        self._last = None
        self.stats = []

    def reset(self) -> None:
        """Forgets all messages except the system message."""
        self.go_on_from(_system_messages(self.system))

    def set_system(self, text: str | None) -> None:
        """Changes the system message and keeps the others."""
        said = [message for message in self.messages if message["role"] != "system"]
        self.messages = [*_system_messages(text), *said]
        self._last = None


class Turn:
    """A question and its answer; iterating over the turn produces the answer.

    At the end the conversation keeps both, even if the answer was cut short. Only a turn that was
    cancelled before its first token leaves no trace.

    Attributes:
        transcript: the conversation before this turn; None until the worker's thread has made it,
            from that of the `previous` turn or from the messages.
    """

    def __init__(
        self,
        conversation: Conversation,
        messages_before: Sequence[Message],
        question: str,
        *,
        previous: "Turn | None" = None,
    ) -> None:
        self.messages_before = messages_before
        self.question = question
        self.transcript: ChatTranscript | None = None
        self.prompt: list[int] = []
        self.tokens: list[int] = []
        self.text = ""
        self.stats = Stats()
        self.finish: Finish | None = None
        self._conversation = conversation
        self._previous = previous
        self._events: EventStream | None = None
        self._cancelled = False

    def __iter__(self) -> Iterator[Event]:
        talk = self._conversation
        options = replace(talk.options, reports_progress=True)
        with talk.worker.stream(self._encode, options) as self._events:
            if self._cancelled:
                self._events.cancel()
            for event in self._events:
                if event.prompt_done is not None:
                    if talk.progress is not None:
                        talk.progress(event.prompt_done, event.stats.prompt_tokens)
                    continue
                self.tokens.extend(event.tokens)
                self.text += event.text
                self.stats, self.finish = event.stats, event.finish_reason
                yield event
        if self.kept:
            talk.keep(self)

    @property
    def kept(self) -> bool:
        """Whether a finished turn is part of the conversation."""
        return bool(self.tokens) or self.finish is not Finish.CANCELLED

    def cancel(self) -> None:
        """Ends the answer after the current round; a signal handler may call this at any time."""
        self._cancelled = True
        if self._events is not None:
            self._events.cancel()

    def _encode(self, engine: "Engine") -> list[int]:
        if self.transcript is None:
            self.transcript = self._transcript_before(engine)
            self._previous = None  # or each turn would hold all earlier ones
        self.prompt = self.transcript.prompt_for(self.question)
        return self.prompt

    def _transcript_before(self, engine: "Engine") -> ChatTranscript:
        last = self._previous
        if last is None or last.transcript is None:
            transcript = ChatTranscript(engine.tokenizer)
            transcript.replace(list(self.messages_before))
            return transcript
        transcript = last.transcript.copy()
        transcript.add_turn(last.question, last.prompt, last.text, last.tokens)
        return transcript


def _system_messages(text: str | None) -> list[Message]:
    return [{"role": "system", "content": text}] if text else []
