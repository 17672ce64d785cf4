"""Conversation: questions in, turns out, and what was said in between; no terminal.

Everything that touches the model's tokenizer or weights happens on the worker's thread.
"""

from collections.abc import Callable, Iterator, Sequence

from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options
from akunu_py.request import Event
from akunu_py.stats import Finish, Stats
from akunu_py.text.chat import ChatTranscript
from akunu_py.text.tokenizer import Message
from akunu_py.worker import EngineWorker, EventStream, Progress


class Conversation:
    """A transcript, how the next answer is to be made, and who makes it.

    Args:
        worker: answers; it may still be loading.
        options: for the next answers.
        system: the system message, if any.
        show_drafts: whether drafted tokens are to be marked.
        progress: told about prompt tokens done and to do, on the worker's thread.

    Attributes:
        worker: as given.
        options: for the next answers; replace it to change them.
        show_drafts: whether drafted tokens are to be marked.
        stats: of every turn since the conversation began afresh.
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
        self.stats: list[Stats] = []
        self._progress = progress
        self._begun_with: list[Message] = _system_messages(system)
        self._transcript: ChatTranscript | None = None
        self._last: tuple[ChatTranscript, str] | None = None

    @property
    def messages(self) -> Sequence[Message]:
        """What was said so far, as `role` and `content`."""
        return self._begun_with if self._transcript is None else self._transcript.messages

    @property
    def system(self) -> str | None:
        """The system message, if any."""
        said = [message["content"] for message in self.messages if message["role"] == "system"]
        return said[0] if said else None

    def ask(self, question: str) -> "Turn":
        """Begins a turn; waits for the model if it is still loading.

        Raises:
            InvalidRequestError: if the model's chat template refuses the conversation.
        """
        return self._ask(self._current(), question)

    def retry(self) -> "Turn":
        """Asks the last question again; the answer before is dropped once there is another.

        Raises:
            InvalidRequestError: if nothing has been asked yet.
        """
        if self._last is None:
            raise InvalidRequestError("There is no answer yet that could be tried again.")
        transcript, question = self._last
        return self._ask(transcript, question)

    def keep(self, turn: "Turn") -> None:
        """Makes a finished turn part of the conversation; `Turn` does this itself."""
        transcript = turn.before.copy()
        self.worker.call(
            lambda _: transcript.add_turn(turn.question, turn.prompt, turn.text, turn.tokens)
        )
        self._transcript = transcript
        self._last = (turn.before, turn.question)
        self.stats.append(turn.stats)

    def go_on_from(self, messages: Sequence[Message]) -> None:
        """Replaces everything that was said, a loaded conversation's messages say."""
        self._begun_with = list(messages)
        self._transcript = self._last = None
        self.stats = []

    def reset(self) -> None:
        """Forgets everything that was said, but for the system message."""
        self.go_on_from(_system_messages(self.system))

    def set_system(self, text: str | None) -> None:
        """Changes the system message; what was said after it stays."""
        said = [message for message in self.messages if message["role"] != "system"]
        stats = self.stats
        self.go_on_from([*_system_messages(text), *said])
        self.stats = stats

    def _current(self) -> ChatTranscript:
        if self._transcript is None:
            transcript = self.worker.call(lambda engine: ChatTranscript(engine.tokenizer))
            transcript.replace(self._begun_with)
            self._transcript = transcript
        return self._transcript

    def _ask(self, transcript: ChatTranscript, question: str) -> "Turn":
        prompt = self.worker.call(lambda _: transcript.prompt_for(question))
        options, progress = self.options, self._progress

        def answer() -> EventStream:
            return self.worker.stream(prompt, options, progress=progress)

        return Turn(self, transcript, question, prompt, answer)


class Turn:
    """A question and its answer; iterate to have it answered.

    At the end the conversation keeps both, even if the answer was cut short; only a turn that was
    cancelled before its first token leaves no trace.

    Args:
        conversation: which the turn belongs to.
        before: everything said before it.
        question: what was asked.
        prompt: the ids that ask it.
        answer: begins the answer.
    """

    def __init__(
        self,
        conversation: Conversation,
        before: ChatTranscript,
        question: str,
        prompt: list[int],
        answer: Callable[[], EventStream],
    ) -> None:
        self.before = before
        self.question = question
        self.prompt = prompt
        self.tokens: list[int] = []
        self.text = ""
        self.stats = Stats()
        self.finish: Finish | None = None
        self._conversation = conversation
        self._answer = answer
        self._events: EventStream | None = None
        self._cancelled = False

    def __iter__(self) -> Iterator[Event]:
        with self._answer() as self._events:
            if self._cancelled:
                self._events.cancel()
            for event in self._events:
                self.tokens.extend(event.tokens)
                self.text += event.text
                self.stats, self.finish = event.stats, event.finish_reason
                yield event
        if self.kept:
            self._conversation.keep(self)

    @property
    def kept(self) -> bool:
        """Whether a finished turn is part of the conversation."""
        return bool(self.tokens) or self.finish is not Finish.CANCELLED

    def cancel(self) -> None:
        """Ends the answer after the round under way; a signal handler may call this any time."""
        self._cancelled = True
        if self._events is not None:
            self._events.cancel()


def _system_messages(text: str | None) -> list[Message]:
    return [{"role": "system", "content": text}] if text else []
