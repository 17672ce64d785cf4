"""Statistical n-gram models, and a drafter that samples from one.

A model is counted on streams of tokens and gives the exact distribution of the token after a
context. Dense counts serve small vocabularies; sparse ones serve those of 50k-150k ids, in memory
that grows with the text. Source: "Trigram draft for nanoGPT".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.errors import InvalidRequestError
from akunu_py.sampling.random import GOLDEN_GAMMA, draw, mix64, uniform

Row = npt.NDArray[np.float64]

DENSE_BYTES: Final = 512 * 1024 * 1024
MIN_CONTEXT_COUNT: Final = 2
"""A trigram row that was seen less often than this is not used."""

_SMOOTHING: Final = 1.0
_COUNT: Final = np.dtype(np.uint32)


class Counts(Protocol):
    """How often each token followed each context of a fixed length."""

    def count(self, tokens: Sequence[int]) -> None:
        """Counts every token of a stream after the ones before it."""

    def row(self, context: tuple[int, ...]) -> Row:
        """Counts of every id after `context`, float64 `[vocabulary]`, a copy."""

    def evidence(self, context: tuple[int, ...]) -> int:
        """How many tokens followed `context`: the sum of its row."""


class DenseCounts:
    """Counts in one array of `vocabulary ** (context_length + 1)` cells.

    Raises:
        InvalidRequestError: if the array would take more than `DENSE_BYTES`.
    """

    def __init__(self, vocabulary: int, context_length: int) -> None:
        size = vocabulary ** (context_length + 1) * _COUNT.itemsize
        if size > DENSE_BYTES:
            raise InvalidRequestError(
                f"Dense {context_length + 1}-gram counts over {vocabulary} ids would take "
                f"{size / 2**30:.1f} GiB; use sparse counts for a vocabulary of this size."
            )
        self._vocabulary = vocabulary
        self._length = context_length + 1
        self._cells = np.zeros((vocabulary,) * self._length, _COUNT)

    def count(self, tokens: Sequence[int]) -> None:
        if len(tokens) >= self._length:
            ngrams = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), self._length)
            np.add.at(self._cells, tuple(ngrams.T), 1)

    def row(self, context: tuple[int, ...]) -> Row:
        if not self._knows(context):
            return np.zeros(self._vocabulary)
        return np.array(self._cells[context], np.float64)

    def evidence(self, context: tuple[int, ...]) -> int:
        return int(self._cells[context].sum()) if self._knows(context) else 0

    def _knows(self, context: tuple[int, ...]) -> bool:
        return all(0 <= token < self._vocabulary for token in context)


class SparseCounts:
    """Counts in dictionaries, whose memory grows with the n-grams seen."""

    def __init__(self, vocabulary: int, context_length: int) -> None:
        self._vocabulary = vocabulary
        self._context_length = context_length
        self._followers: dict[tuple[int, ...], dict[int, int]] = {}
        self._evidence: dict[tuple[int, ...], int] = {}

    def count(self, tokens: Sequence[int]) -> None:
        for index in range(self._context_length, len(tokens)):
            context = tuple(tokens[index - self._context_length : index])
            followers = self._followers.setdefault(context, {})
            followers[tokens[index]] = followers.get(tokens[index], 0) + 1
            self._evidence[context] = self._evidence.get(context, 0) + 1

    def row(self, context: tuple[int, ...]) -> Row:
        row = np.zeros(self._vocabulary)
        if followers := self._followers.get(context):
            row[list(followers)] = list(followers.values())
        return row

    def evidence(self, context: tuple[int, ...]) -> int:
        return self._evidence.get(context, 0)


class NGramModel:
    """A bigram or trigram model with Laplace smoothing.

    A trigram context that was followed fewer than `MIN_CONTEXT_COUNT` times falls back to the
    bigram row, and so does a context of a single token. An empty context gives how often each
    token was seen at all.

    Args:
        order: 2 for a bigram model, 3 for a trigram model.
        vocabulary: how many ids there are.
        dense: whether counts are kept in dense arrays.

    Raises:
        InvalidRequestError: for another order, no vocabulary, or one too large for dense arrays.
    """

    def __init__(self, order: int, vocabulary: int, *, dense: bool = False) -> None:
        if order not in (2, 3):
            raise InvalidRequestError(f"An n-gram model has order 2 or 3, not {order}.")
        if vocabulary < 1:
            raise InvalidRequestError("An n-gram model needs a vocabulary of 1 id or more.")
        self.order = order
        self.vocabulary = vocabulary
        make = DenseCounts if dense else SparseCounts
        self._counts: list[Counts] = [make(vocabulary, length) for length in range(order)]

    def count(self, tokens: Sequence[int]) -> None:
        """Counts a stream of tokens; no n-gram runs from one stream into the next.

        Raises:
            InvalidRequestError: if an id is outside the vocabulary.
        """
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
            raise InvalidRequestError(
                f"A token is outside the vocabulary of {self.vocabulary} ids."
            )
        for counts in self._counts:
            counts.count(tokens)

    def context_length(self, context: Sequence[int]) -> int:
        """How many of the context's last tokens decide its row: 0, 1 or 2."""
        known = min(len(context), self.order - 1)
        if known == 2 and self._counts[2].evidence(_last(context, 2)) < MIN_CONTEXT_COUNT:
            return 1
        return known

    def distribution(self, context: Sequence[int], temperature: float = 1.0) -> Row:
        """The distribution of the token after `context`, float64 `[vocabulary]`.

        The evidence chooses the row first; then the temperature is applied to it.
        """
        length = self.context_length(context)
        row = self._counts[length].row(_last(context, length)) + _SMOOTHING
        row /= row.sum()
        if temperature != 1.0:
            row = np.exp((np.log(row) - np.log(row.max())) / max(temperature, 1e-6))
            row /= row.sum()
        return row


def bigram(vocabulary: int, streams: Iterable[Sequence[int]], *, dense: bool = False) -> NGramModel:
    """A bigram model of some streams of tokens."""
    return _counted(NGramModel(2, vocabulary, dense=dense), streams)


def trigram(
    vocabulary: int, streams: Iterable[Sequence[int]], *, dense: bool = False
) -> NGramModel:
    """A trigram model of some streams of tokens."""
    return _counted(NGramModel(3, vocabulary, dense=dense), streams)


class NGramModelDrafter:
    """Samples each token from the model's row for the tokens before it, its own draft included.

    Row `i` of a draft's probabilities is the exact distribution that token `i` was drawn from, as
    rejection sampling needs it. Draws depend on a seed, on where the draft begins and on a
    position, so that a seed drafts the same tokens whatever the draft's length, and each draft has
    draws of its own. The noise is that of "Trading accuracy for
    parallelism".

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

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass

    def row(self, context: Sequence[int]) -> npt.NDArray[np.float32]:
        """The distribution that the token after `context` is drawn from."""
        row = self._model.distribution(context, self._temperature)
        row = (1.0 - self._noise) * row + self._noise / self._model.vocabulary
        return row.astype(np.float32)

    def _rolled(self, context: Sequence[int], tokens: Sequence[int]) -> list[int]:
        return [*context, *tokens[1 - self._model.order :]][1 - self._model.order :]


def _counted(model: NGramModel, streams: Iterable[Sequence[int]]) -> NGramModel:
    for stream in streams:
        model.count(stream)
    return model


def _last(context: Sequence[int], length: int) -> tuple[int, ...]:
    return tuple(context[len(context) - length :])
