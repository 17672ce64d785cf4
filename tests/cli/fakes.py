"""An engine that answers from a script, one character a token."""

import os
import signal
from collections import abc
from collections.abc import Callable, Generator
from collections.abc import Sequence as Tokens
from types import SimpleNamespace
from typing import Any, cast

from akunu_py.drafting.base import Draft
from akunu_py.engine import Engine
from akunu_py.errors import ContextOverflowError
from akunu_py.events import Event, EventStream
from akunu_py.options import Options, Reasoning
from akunu_py.prompt import Asked
from akunu_py.rounds import Finish, Round, Stats
from akunu_py.sequence import Phase, Sequence
from akunu_py.text.stream import Piece
from akunu_py.text.tokenizer import Message
from akunu_py.tokens import Origin
from akunu_py.worker import EngineWorker

ENDLESS, SILENT = "...", ""
"""Answers that end only when they are cancelled."""


class FakeTokenizer:
    reasoning: Reasoning | None = None

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def count(self, text: str, *, most: int) -> int:
        return len(text)

    def decode(self, tokens: Tokens[int]) -> str:
        return "".join(map(chr, tokens))

    def render_chat(self, messages: Tokens[Message], *, open_answer: bool) -> str:
        lines = [f"{message['role']}:{message['content']}\n" for message in messages]
        return "".join(lines) + "assistant:" * open_answer


class FakeEngine:
    """Gives the answers of a script in turn, then says OK.

    Args:
        answers: what to say.
        interrupts: how often to press Ctrl-C during an endless answer.
        context: the maximum of tokens in a prompt.
    """

    def __init__(self, *answers: str, interrupts: int = 0, context: int = 1000) -> None:
        self.model = SimpleNamespace(
            name="fake",
            on_lost=lambda _: None,
            rest=lambda: False,
            why_no_drafts="It is a fake.",
        )
        self.context_limit = context
        self.tokenizer = FakeTokenizer()
        self.notices = ["It is only a fake."]
        self.costs = SimpleNamespace(exactness=lambda _: "exact up to near-ties")
        self.prompts: list[str] = []
        self.options: list[Options] = []
        self._answers = list(answers)
        self._interrupts = interrupts

    def stream(self, asked: Asked, options: Options) -> Generator[Event, None, None]:
        """Answers as an engine does on its own thread."""
        sequence = Sequence(asked, options)
        sequence.reader = EventStream()
        self.encode(sequence)
        list(sequence.reader.ready())
        self.start(sequence)
        assert sequence.forwards
        yield from filter(None, sequence.forwards)

    def measure_costs(self, interrupted: Callable[[], bool]) -> None:
        pass

    def save_prompts(self, *, closing: bool = False) -> bool:
        return False

    def fitting(self, parallel: int) -> int:
        return parallel

    @property
    def runner(self) -> "FakeEngine":
        return self

    def encode(self, sequence: Sequence) -> None:
        reader = sequence.reader
        assert reader
        try:
            text = self._text(sequence.asked)
            if len(text) > self.context_limit:
                raise ContextOverflowError("The prompt does not fit.")
        except Exception as error:
            sequence.phase = Phase.DONE
            reader.end(error)
            return
        sequence.phase = Phase.WAITING
        sequence.stats.prompt_tokens = len(text)
        self.prompts.append(text)
        self.options.append(sequence.options)

    def _text(self, asked: Any) -> str:
        if isinstance(asked, str):
            return asked
        if isinstance(asked[0], dict):
            return self.tokenizer.render_chat(asked, open_answer=True)
        return self.tokenizer.decode(asked)

    def is_being_computed(self, sequence: Sequence, running: tuple[Sequence, ...]) -> bool:
        return False

    def has_room(self, sequence: Sequence) -> bool:
        return True

    def start(self, sequence: Sequence) -> None:
        answer = self._answers.pop(0) if self._answers else "OK"
        sequence.forwards, sequence.phase = self._answer(answer, sequence), Phase.DECODING

    def reserve(self, sequence: Sequence, *, anyway: bool) -> bool:
        return True

    def advance(self, sequences: abc.Sequence[Sequence]) -> None:
        for sequence in sequences:
            assert sequence.forwards
            assert sequence.reader
            event = next(sequence.forwards)
            assert event
            sequence.reader.put(event)
            if event.finish_reason is not None:
                sequence.phase = Phase.DONE
                sequence.reader.end()

    def _answer(self, answer: str, sequence: Sequence) -> Generator[Event, None, None]:
        stats = Stats(prompt_tokens=sequence.stats.prompt_tokens, decode_s=0.5)
        if sequence.options.reports_progress:
            yield Event(Round(), (), stats, prompt_done=stats.prompt_tokens)
        for start in (0, *range(1, len(answer), 2)):  # a plain step, then rounds with one draft
            text = answer[start : start + 2 if start else 1]
            tokens = tuple(map(ord, text))
            done = Round(tokens, Draft(tokens[:1] if start else ()), accepted=int(start > 0))
            stats.add(done)
            pieces = [
                Piece(it, Origin.COPIES if start > 0 and not index else Origin.NONE)
                for index, it in enumerate(text)
            ]
            yield Event(done, tuple(pieces), stats)
        if answer in (ENDLESS, SILENT):
            for _ in range(self._interrupts):
                os.kill(os.getpid(), signal.SIGINT)
            while not sequence.cancelled:
                pass
        finish = Finish.CANCELLED if sequence.cancelled else Finish.EOS
        if stats.generated_tokens >= (sequence.options.max_tokens or len(answer) + 1):
            finish = Finish.LENGTH
        yield Event(Round(finish=finish), (), stats)


def fake_worker(engine: FakeEngine) -> EngineWorker:
    return EngineWorker(lambda: cast(Engine, engine))
