"""ForwardLogprobs: what a forward says about tokens besides the one it chose, lazily.

The log-probabilities that a request asks for and the alternatives that a drafter learns from come
out of the same few arrays, computed along with the forward's choice so that nothing waits twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from akunu_py.sampling.token_logprob import TokenLogprob


@dataclass(frozen=True)
class LogprobRequest:
    """What is wanted to know of every forward.

    Attributes:
        logprobs: alternatives to report with each token's log-probability; None reports nothing.
        likeliest: how many of the likeliest ids a drafter wants to learn from.
    """

    logprobs: int | None = None
    likeliest: int = 0


class ForwardLogprobs:
    """The model's own distribution after each position of one forward.

    Args:
        logits: `[rows, vocabulary]` as they left the model.
        choices: the tokens that will most likely be asked about, `[rows]`, lazy; None where they
            are not known before the forward was read.
        logprob_request: what will be read; the rest is not computed.
    """

    def __init__(
        self, logits: mx.array, choices: mx.array | None, logprob_request: LogprobRequest
    ) -> None:
        self._logprob_request = logprob_request
        self._logits = logits
        self.lazy: list[mx.array] = []
        count = min(max(logprob_request.likeliest, logprob_request.logprobs or 0), logits.shape[-1])
        if count:
            self._ids = mx.argpartition(-logits, kth=count - 1, axis=-1)[:, :count]
            self._values = mx.take_along_axis(logits, self._ids, axis=-1).astype(mx.float32)
            self.lazy += [self._ids, self._values]
        self._has_alternatives = count > 0
        self._choices = choices
        if logprob_request.logprobs is not None:
            self._normaliser = mx.logsumexp(logits.astype(mx.float32), axis=-1)
            self.lazy.append(self._normaliser)
            if choices is not None:
                self._chosen = self._logprobs_of(choices)
                self.lazy.append(self._chosen)

    def logprobs(self, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """One entry a token, the first row's first; none where none were asked for."""
        wanted = self._logprob_request.logprobs
        if wanted is None:
            return ()
        if self._choices is not None and _first(self._choices, len(tokens)) == list(tokens):
            values = self._chosen
        else:  # the draft was verified otherwise than by choices, or a near-tie decided again
            values = self._logprobs_of(mx.array(list(tokens)))
        found = _first(values, len(tokens))
        alternatives = self._alternatives(len(tokens), wanted) if wanted else [()] * len(tokens)
        return tuple(map(TokenLogprob, tokens, found, alternatives))

    def likeliest(self, rows: int) -> list[list[int]]:
        """The ids that a drafter wants to learn from, by row, the likeliest first."""
        count = self._logprob_request.likeliest
        if not count:
            return []
        ids, order = self._ordered(rows)
        return [row.tolist() for row in np.take_along_axis(ids, order, axis=-1)[:, :count]]

    def _alternatives(self, rows: int, count: int) -> list[tuple[tuple[int, float], ...]]:
        ids, order = self._ordered(rows)
        values = np.asarray(self._values)[:rows] - np.asarray(self._normaliser)[:rows, None]
        ids = np.take_along_axis(ids, order, axis=-1)[:, :count]
        values = np.take_along_axis(values, order, axis=-1)[:, :count]
        return [
            tuple(zip(row, of_row, strict=True))
            for row, of_row in zip(ids.tolist(), values.tolist(), strict=True)
        ]

    def _ordered(self, rows: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The likeliest ids of the first rows, and the order that sorts each row."""
        ids, values = np.asarray(self._ids)[:rows], np.asarray(self._values)[:rows]
        return ids, np.lexsort((ids, -values), axis=-1)

    def _logprobs_of(self, tokens: mx.array) -> mx.array:
        rows = tokens.size
        values = mx.take_along_axis(self._logits[:rows], tokens[:, None], axis=-1)
        return values[:, 0].astype(mx.float32) - self._normaliser[:rows]


def _first(values: mx.array, count: int) -> list[float]:
    """The first values of an array, read without asking the device, which is busy, for a slice."""
    found: list[float] = np.asarray(values)[:count].tolist()
    return found
