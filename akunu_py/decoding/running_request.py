"""RunningRequest: what a request asked for, and its results so far."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

from akunu_py.decoding.draft_session import DraftSession
from akunu_py.model import PrefillProgress
from akunu_py.options import Options
from akunu_py.prompt import Prompt
from akunu_py.request import Event
from akunu_py.sampling.forward_logprobs import PromptScorer
from akunu_py.sampling.sampler import Sampler
from akunu_py.stats import Finish, Round, Stats
from akunu_py.text.stream import TextStream


@dataclass
class RunningRequest:
    """A running request: what it asked for, and its results so far."""

    prompt: Prompt
    options: Options
    sampler: Sampler
    session: DraftSession
    text: TextStream
    progress: PrefillProgress | None
    cancelled: Callable[[], bool] | None
    stats: Stats = field(default_factory=Stats)
    scorer: PromptScorer | None = None

    def event(self, outcome: Round) -> Event:
        """Turns a round into text, cuts it where the text stops, and only then counts it."""
        pieces = []
        for position, token in enumerate(outcome.tokens):
            pieces.append(self.text.feed(token, drafted=position < outcome.accepted))
            if self.text.stopped:
                outcome.cut(position + 1, Finish.STOP)
                break
        if outcome.finish is None and self.cancelled and self.cancelled():
            outcome.finish = Finish.CANCELLED
        if outcome.finish is not None:
            pieces.append(self.text.finish())
            if self.text.stopped:
                outcome.finish = Finish.STOP
        self.stats.add(outcome)
        return Event(outcome, tuple(pieces), copy(self.stats), stop=self.text.stop)
