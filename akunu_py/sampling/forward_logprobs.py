"""Log-probabilities of the tokens of a forward pass, and of a prompt.

They come from a few arrays that are computed together with the choices of the pass, so that reading
them does not wait a second time.
"""

from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from akunu_py.sampling.processors import most_likely
from akunu_py.tokens import LogprobRequest, PromptLogprobs, TokenLogprob

SCORING_STEP: Final = 128
"""Prompt tokens per forward pass: logits over the whole vocabulary take much memory."""


class ForwardLogprobs:
    """The distribution after each position of one forward pass, from logits `[rows, vocabulary]`.
    The lazy `choices`, `[rows]`, are the tokens it will probably be asked about, None if unknown
    until the pass is read; evaluate `lazy` together with them.
    """

    def __init__(self, logits: mx.array, choices: mx.array | None, wanted: LogprobRequest) -> None:
        self._logits, self._choices, self._wanted = logits, choices, wanted
        self.lazy: list[mx.array] = []
        count = min(wanted.logprobs or 0, logits.shape[-1])
        if count:
            self._ids = most_likely(logits, count)
            self._values = mx.take_along_axis(logits, self._ids, axis=-1).astype(mx.float32)
            self.lazy += [self._ids, self._values]
        if wanted.logprobs is not None:
            self._normaliser = mx.logsumexp(logits.astype(mx.float32), axis=-1)
            self.lazy.append(self._normaliser)
            if choices is not None:
                self._chosen = self._logprobs_of(choices)
                self.lazy.append(self._chosen)

    def logprobs(self, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """One entry per token, in order; empty if the request asked for none."""
        wanted, rows = self._wanted.logprobs, len(tokens)
        if wanted is None:
            return ()
        if self._choices is not None and _first(self._choices, rows).tolist() == list(tokens):
            values = self._chosen
        else:  # the draft was verified by its probabilities
            values = self._logprobs_of(mx.array(list(tokens)))
        alternatives: list[tuple[tuple[int, float], ...]] = [()] * rows
        if wanted:
            ids, logits = self._ranked(rows, wanted)
            likely = (logits - _first(self._normaliser, rows)[:, None]).tolist()
            alternatives = [
                tuple(zip(*row, strict=True)) for row in zip(ids.tolist(), likely, strict=True)
            ]
        return tuple(map(TokenLogprob, tokens, _first(values, rows).tolist(), alternatives))

    def _ranked(self, rows: int, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The most likely ids of the first rows and their logits, the most likely first."""
        ids, values = _first(self._ids, rows), _first(self._values, rows)
        order = np.lexsort((ids, -values), axis=-1)[:, :count]
        return np.take_along_axis(ids, order, axis=-1), np.take_along_axis(values, order, axis=-1)

    def _logprobs_of(self, tokens: mx.array) -> mx.array:
        rows = tokens.size
        values = mx.take_along_axis(self._logits[:rows], tokens[:, None], axis=-1)
        return values[:, 0].astype(mx.float32) - self._normaliser[:rows]


class PromptScorer:
    """Collects the log-probabilities of one prompt's ids, at least 1, and of the most likely
    alternatives, from its prefill.
    """

    def __init__(self, prompt: Sequence[int], alternatives: int) -> None:
        self._prompt = prompt
        self._wanted = LogprobRequest(alternatives)
        self._found: list[TokenLogprob] = []

    @property
    def logprobs(self) -> PromptLogprobs:
        """The log-probabilities found so far."""
        return PromptLogprobs(self._prompt[0], tuple(self._found))

    def take(self, logits: mx.array) -> None:
        """Takes the logits after the next positions, `[rows, vocabulary]`, and waits for them.

        Those after the prompt's last token are ignored.
        """
        start = len(self._found) + 1
        following = self._prompt[start : start + logits.shape[0]]
        if not following:
            return
        scored = ForwardLogprobs(logits[: len(following)], mx.array(list(following)), self._wanted)
        mx.eval(scored.lazy)
        self._found.extend(scored.logprobs(following))


def _first(values: mx.array, count: int) -> npt.NDArray[Any]:
    """The first values of an array; slicing it with MLX would wait for the busy device."""
    return np.asarray(values)[:count]
