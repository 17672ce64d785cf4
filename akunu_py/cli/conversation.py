"""Conversation: questions in, turns out, and the messages in between; no terminal.

A turn is one task of the worker: its thread renders the prompt, encodes it and answers.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options
from akunu_py.request import Event
from akunu_py.round import Finish
from akunu_py.stats import Stats
from akunu_py.text.chat import ChatTranscript
from akunu_py.text.tokenizer import Message
from akunu_py.worker import EngineWorker, EventStream, Progress

if TYPE_CHECKING:
    from akunu_py.engine import Engine

MakeTranscript = Callable[["Engine"], ChatTranscript]


class Conversation:
    """The messages so far, and how the next answer is made.

    The worker may still be loading; it calls `progress` on its thread with the prompt tokens done
    and in total. Replace `options` and `show_drafts` to change them for the next answers.

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
        progress: Progress | None = None,
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
        if self._last is not None:
            return Turn(self, self.messages, question, self._last.transcript_after)
        return Turn(self, self.messages, question, partial(_begin_transcript, self.messages))

    def retry(self) -> "Turn":
        """A turn that asks the last question again; its answer replaces the one before.

        Raises:
            InvalidRequestError: if the conversation does not end with an answer.
        """
        last = self._last
        if last is not None:
            return Turn(self, last.messages_before, last.question, last.transcript_before)
        roles = [message["role"] for message in self.messages[-2:]]
        if roles != ["user", "assistant"]:
            raise InvalidRequestError("There is no answer yet to try again.")
        before, question = self.messages[:-2], self.messages[-2]["content"]
        return Turn(self, before, question, partial(_begin_transcript, before))

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
        """Forgets all messages but the system message."""
        self.go_on_from(_system_messages(self.system))

    def set_system(self, text: str | None) -> None:
        """Changes the system message and keeps the others."""
        said = [message for message in self.messages if message["role"] != "system"]
        self.messages = [*_system_messages(text), *said]
        self._last = None


class Turn:
    """A question and its answer; iterating over the turn produces the answer.

    At the end the conversation keeps both, even if the answer was cut short. Only a turn that was
    cancelled before its first token leaves no trace. `transcript_before` makes the transcript of
    `messages_before`, on the worker's thread.
    """

    def __init__(
        self,
        conversation: Conversation,
        messages_before: Sequence[Message],
        question: str,
        transcript_before: MakeTranscript,
    ) -> None:
        self.messages_before = messages_before
        self.question = question
        self.prompt: list[int] = []
        self.tokens: list[int] = []
        self.text = ""
        self.stats = Stats()
        self.finish: Finish | None = None
        self._conversation = conversation
        self._make_transcript = transcript_before
        self._events: EventStream | None = None
        self._cancelled = False

    def __iter__(self) -> Iterator[Event]:
        talk = self._conversation
        with talk.worker.stream(self._encode, talk.options, progress=talk.progress) as self._events:
            if self._cancelled:
                self._events.cancel()
            for event in self._events:
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

    def transcript_before(self, engine: "Engine") -> ChatTranscript:
        """The transcript without this turn; for the worker's thread."""
        transcript = self._make_transcript(engine)
        self._make_transcript = lambda _: transcript  # made once; this frees the turn before
        return transcript

    def transcript_after(self, engine: "Engine") -> ChatTranscript:
        """The transcript with this turn, once it is finished; for the worker's thread."""
        transcript = self.transcript_before(engine).copy()
        transcript.add_turn(self.question, self.prompt, self.text, self.tokens)
        return transcript

    def _encode(self, engine: "Engine") -> list[int]:
        self.prompt = self.transcript_before(engine).prompt_for(self.question)
        return self.prompt


def _begin_transcript(messages: Sequence[Message], engine: "Engine") -> ChatTranscript:
    transcript = ChatTranscript(engine.tokenizer)
    transcript.replace(list(messages))
    return transcript


def _system_messages(text: str | None) -> list[Message]:
    return [{"role": "system", "content": text}] if text else []
