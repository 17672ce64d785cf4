"""An engine that answers from a script, one character a token."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import cast

from akunu_py.decoding.scheduler import Phase
from akunu_py.drafting.base import Draft
from akunu_py.engine import Engine
from akunu_py.errors import ContextOverflowError
from akunu_py.options import Options
from akunu_py.request import Event
from akunu_py.stats import Finish, Round, Stats
from akunu_py.text.stream import Piece
from akunu_py.text.tokenizer import Message
from akunu_py.worker import EngineWorker

ENDLESS, SILENT = "...", ""
"""Answers that end only when they are cancelled."""


class FakeTokenizer:
    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def render_chat(self, messages: Sequence[Message], *, open_answer: bool) -> str:
        lines = [f"{message['role']}:{message['content']}\n" for message in messages]
        return "".join(lines) + "assistant:" * open_answer


class FakeAnswer:
    """Events that come one at a time."""

    def __init__(self, events: Iterator[Event]) -> None:
        self.stats = Stats()
        self.phase = Phase.DECODING
        self.tokens_left = 0
        self._events = events

    def advance(self, *, may_wait: bool = False) -> Event:
        event = next(self._events)
        if event.finish_reason is not None:
            self.phase = Phase.DONE
        return event


class FakeEngine:
    """Gives the answers of a script in turn, then says OK.

    Args:
        answers: what to say.
        interrupts: how often to press Ctrl-C during an endless answer.
        context: the maximum of tokens in a prompt.
    """

    def __init__(self, *answers: str, interrupts: int = 0, context: int = 1000) -> None:
        self.model = SimpleNamespace(name="fake", on_lost=lambda _: None, rest=lambda: False)
        self.context_limit = context
        self.tokenizer = FakeTokenizer()
        self.notices = ["It is only a fake."]
        self.prompts: list[str] = []
        self.options: list[Options] = []
        self._answers = list(answers)
        self._interrupts = interrupts

    def measure_costs(self, interrupted: Callable[[], bool]) -> None:
        pass

    def save_prompts(self, *, closing: bool = False) -> bool:
        return False

    def fitting(self, parallel: int) -> int:
        return parallel

    def begin(
        self,
        prompt: str | Sequence[int],
        options: Options | None = None,
        *,
        suffix: str | None = None,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> "FakeAnswer":
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        if len(text) > self.context_limit:
            raise ContextOverflowError("The prompt does not fit.")
        self.prompts.append(text)
        self.options.append(options or Options())
        if progress:
            progress(len(text), len(text))
        answer = self._answers.pop(0) if self._answers else "OK"
        return FakeAnswer(self._answer(answer, cancelled))

    def _answer(self, answer: str, cancelled: Callable[[], bool]) -> Iterator[Event]:
        stats = Stats(decode_s=0.5)
        for start in (0, *range(1, len(answer), 2)):  # a plain step, then rounds with one draft
            text = answer[start : start + 2 if start else 1]
            tokens = tuple(map(ord, text))
            done = Round(tokens, Draft(tokens[:1] if start else ()), accepted=int(start > 0))
            stats.add(done)
            pieces = [Piece(it, start > 0 and not index) for index, it in enumerate(text)]
            yield Event(done, tuple(pieces), stats)
        if answer in (ENDLESS, SILENT):
            for _ in range(self._interrupts):
                os.kill(os.getpid(), signal.SIGINT)
            while not cancelled():
                pass
        finish = Finish.CANCELLED if cancelled() else Finish.EOS
        yield Event(Round(finish=finish), (), stats)


def fake_worker(engine: FakeEngine) -> EngineWorker:
    return EngineWorker(lambda: cast(Engine, engine))
