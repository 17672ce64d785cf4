"""Answer: a request under way, from rounds of tokens to events of text."""

from collections.abc import Callable
from dataclasses import replace

from akunu_py.options import Options
from akunu_py.request import Event
from akunu_py.sampling.forward_logprobs import PromptScorer
from akunu_py.sampling.sampler import Sampler
from akunu_py.stats import Finish, Round, Stats
from akunu_py.text.stream import TextStream


class Answer:
    """What a request asked for, and what has come of it so far.

    Args:
        prompt: the ids it goes on from.
        options: what was asked for.
        sampler: how tokens are chosen.
        end_tokens: ids that end it.
        text: turns its tokens into text.
        cancelled: whether nobody wants the rest.

    Attributes:
        stats: running sums.
        scorer: of the prompt, where it is to be scored.
    """

    def __init__(
        self,
        prompt: list[int],
        options: Options,
        *,
        sampler: Sampler,
        end_tokens: frozenset[int],
        text: TextStream,
        cancelled: Callable[[], bool],
    ) -> None:
        self.prompt = prompt
        self.options = options
        self.sampler = sampler
        self.end_tokens = end_tokens
        self.cancelled = cancelled
        self.stats = Stats()
        self.stats.prompt_tokens = len(prompt)
        self._text = text
        self.scorer: PromptScorer | None = None
        if options.scores_prompt:
            self.scorer = PromptScorer(prompt, options.logprobs or 0)

    def book(self, done: Round) -> Event:
        """Turns a round into text, cuts it where that stops, and only then counts it."""
        pieces = []
        for position, token in enumerate(done.tokens):
            pieces.append(self._text.feed(token, drafted=position < done.accepted))
            if self._text.stopped:
                done = done.cut(position + 1, Finish.STOP)
                break
        if done.finish is None and self.cancelled():
            done = replace(done, finish=Finish.CANCELLED)
        if done.finish is not None:
            pieces.append(self._text.finish())
            if self._text.stopped:
                done = replace(done, finish=Finish.STOP)
        self.stats.add(done)
        return Event(
            done.tokens, tuple(pieces), self.stats, done.finish, done.logprobs, done.end_logprob
        )
