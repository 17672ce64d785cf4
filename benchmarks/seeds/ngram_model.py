"""Statistical n-gram models, and a drafter that samples from one.

A model is counted on streams of tokens and gives the exact distribution of the token after a
context, in memory that grows with the text. Source: "Trigram draft for nanoGPT".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.errors import InvalidRequestError
from akunu_py.sampling.random import GOLDEN_GAMMA, draw, mix64, uniform

Row = npt.NDArray[np.float64]

MIN_CONTEXT_COUNT: Final = 2
"""A trigram row that was seen less often than this is not used."""

_SMOOTHING: Final = 1.0


class NGramModel:
    """A bigram or trigram model with Laplace smoothing.

    A trigram context that was followed fewer than `MIN_CONTEXT_COUNT` times falls back to the
    bigram row, and so does a context of a single token. An empty context gives how often each
    token was seen at all.

    Args:
        order: 2 for a bigram model, 3 for a trigram model.
        vocabulary: how many ids there are.
        streams: the tokens to count; no n-gram runs from one stream into the next.

    Raises:
        InvalidRequestError: if an id is outside the vocabulary.
    """

    def __init__(self, order: int, vocabulary: int, streams: Iterable[Sequence[int]]) -> None:
        self.order = order
        self.vocabulary = vocabulary
        self._followers: dict[tuple[int, ...], dict[int, int]] = {}
        for stream in streams:
            self._count(stream)

    def _count(self, tokens: Sequence[int]) -> None:
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
            raise InvalidRequestError(
                f"A token is outside the vocabulary of {self.vocabulary} ids."
            )
        for index, token in enumerate(tokens):
            for length in range(min(self.order, index + 1)):
                followers = self._followers.setdefault(tuple(tokens[index - length : index]), {})
                followers[token] = followers.get(token, 0) + 1

    def context_length(self, context: Sequence[int]) -> int:
        """How many of the context's last tokens decide its row: 0, 1 or 2."""
        known = min(len(context), self.order - 1)
        if known == 2:
            followers = self._followers.get(tuple(context[-2:]), {})
            return 2 if sum(followers.values()) >= MIN_CONTEXT_COUNT else 1
        return known

    def distribution(self, context: Sequence[int], temperature: float = 1.0) -> Row:
        """The distribution of the token after `context`, float64 `[vocabulary]`.

        The evidence chooses the row first; then the temperature is applied to it.
        """
        row = np.full(self.vocabulary, _SMOOTHING)
        last = tuple(context[len(context) - self.context_length(context) :])
        if followers := self._followers.get(last):
            row[list(followers)] += list(followers.values())
        row /= row.sum()
        if temperature != 1.0:
            row = np.exp((np.log(row) - np.log(row.max())) / max(temperature, 1e-6))
            row /= row.sum()
        return row


class NGramModelDrafter(Drafter):
    """Samples each token from the model's row for the tokens before it, its own draft included.

    Row `i` of a draft's probabilities is the exact distribution that token `i` was drawn from, as
    rejection sampling needs it. Draws depend on a seed, on where the draft begins and on a
    position, so that a seed drafts the same tokens whatever the draft's length, and each draft has
    draws of its own. The noise is that of "Trading accuracy for parallelism".

    Args:
        model: what to sample from; it is not changed.
        temperature: of the rows, applied after the row is chosen; more than 0.
        noise: how much of the uniform distribution is mixed into every row, 0 to 1.
        seed: of all draws.

    Raises:
        InvalidRequestError: if temperature or noise is outside its range.
    """

    def __init__(
        self, model: NGramModel, *, temperature: float = 1.0, noise: float = 0.0, seed: int = 0
    ) -> None:
        if not temperature > 0:
            raise InvalidRequestError(f"The draft's temperature must exceed 0, not {temperature}.")
        if not 0 <= noise <= 1:
            raise InvalidRequestError(f"The draft's noise must be between 0 and 1, not {noise}.")
        self._model = model
        self._temperature = temperature
        self._noise = noise
        self._seed = seed
        self._context: list[int] = []
        self._position = 0

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._context = []
        self._position = 0
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self._context = self._rolled(self._context, tokens)
        self._position += len(tokens)

    def propose(self, limit: int) -> Draft:
        context = self._context
        match_length = self._model.context_length(context)
        seed = mix64(self._seed + self._position * GOLDEN_GAMMA)
        tokens: list[int] = []
        rows: list[npt.NDArray[np.float32]] = []
        while len(tokens) < limit:
            row = self.row(context)
            token = draw(row, uniform(seed, len(tokens)))
            tokens.append(token)
            rows.append(row)
            context = self._rolled(context, (token,))
        if not tokens:
            return NO_DRAFT
        return Draft(tuple(tokens), f"{self._model.order}-gram model", match_length, np.stack(rows))

    def row(self, context: Sequence[int]) -> npt.NDArray[np.float32]:
        """The distribution that the token after `context` is drawn from."""
        row = self._model.distribution(context, self._temperature)
        row = (1.0 - self._noise) * row + self._noise / self._model.vocabulary
        return row.astype(np.float32)

    def _rolled(self, context: Sequence[int], tokens: Sequence[int]) -> list[int]:
        return [*context, *tokens[1 - self._model.order :]][1 - self._model.order :]
