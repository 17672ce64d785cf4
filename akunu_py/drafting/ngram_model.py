"""Statistical n-gram models: counts that give a distribution for the next token.

A model is built from any stream of tokens, says the exact distribution of the token after a
context, and is saved and loaded as `.npz`. Dense tables serve small vocabularies, sparse ones
those of 50k-150k ids, in memory that grows with what was seen. Source: "Trigram draft for nanoGPT".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from akunu_py.errors import InvalidRequestError

Row = npt.NDArray[np.float64]

MIN_CONTEXT_COUNT: Final = 2
DENSE_BYTES: Final = 512 * 1024 * 1024
_COUNT: Final = np.dtype(np.uint32)


class Counts(Protocol):
    """How often each token followed each context of a fixed length."""

    vocabulary: int
    context_length: int

    def count(self, tokens: Sequence[int]) -> None:
        """Counts every token of a stream after the ones before it."""

    def row(self, context: tuple[int, ...]) -> Row:
        """Counts of every id after `context`, float64 `[vocabulary]`, a copy."""

    def evidence(self, context: tuple[int, ...]) -> int:
        """How often `context` was followed by anything: the row's sum, before smoothing."""

    def arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Every n-gram seen, `[n, context_length + 1]`, and how often, `[n]`."""

    def add(self, ngrams: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> None:
        """Adds what `arrays` of other counts gave."""


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
        self.vocabulary = vocabulary
        self.context_length = context_length
        self._cells = np.zeros((vocabulary,) * (context_length + 1), _COUNT)

    def count(self, tokens: Sequence[int]) -> None:
        stream = _checked_stream(tokens, self.vocabulary)
        length = self.context_length + 1
        if stream.size >= length:
            ngrams = np.lib.stride_tricks.sliding_window_view(stream, length)
            self.add(ngrams, np.ones(len(ngrams), np.int64))

    def row(self, context: tuple[int, ...]) -> Row:
        if not self._knows(context):
            return np.zeros(self.vocabulary)
        return np.array(self._cells[context], np.float64)

    def evidence(self, context: tuple[int, ...]) -> int:
        return int(self._cells[context].sum()) if self._knows(context) else 0

    def arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        seen = np.nonzero(self._cells)
        return np.stack(seen, axis=1).astype(np.int64), self._cells[seen].astype(np.int64)

    def add(self, ngrams: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> None:
        np.add.at(self._cells, tuple(ngrams.T), times.astype(_COUNT))

    def _knows(self, context: tuple[int, ...]) -> bool:
        return all(0 <= token < self.vocabulary for token in context)


class SparseCounts:
    """Counts in dictionaries: memory in proportion to the n-grams seen."""

    def __init__(self, vocabulary: int, context_length: int) -> None:
        self.vocabulary = vocabulary
        self.context_length = context_length
        self._followers: dict[tuple[int, ...], dict[int, int]] = {}
        self._evidence: dict[tuple[int, ...], int] = {}

    def count(self, tokens: Sequence[int]) -> None:
        stream: list[int] = _checked_stream(tokens, self.vocabulary).tolist()
        for index in range(self.context_length, len(stream)):
            context = tuple(stream[index - self.context_length : index])
            self._add_one(context, stream[index], 1)

    def row(self, context: tuple[int, ...]) -> Row:
        row = np.zeros(self.vocabulary)
        if followers := self._followers.get(context):
            row[list(followers)] = list(followers.values())
        return row

    def evidence(self, context: tuple[int, ...]) -> int:
        return self._evidence.get(context, 0)

    def arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        ngrams = [
            (*context, token, times)
            for context, followers in self._followers.items()
            for token, times in followers.items()
        ]
        table = np.array(ngrams, np.int64).reshape(-1, self.context_length + 2)
        return table[:, :-1], table[:, -1]

    def add(self, ngrams: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> None:
        for ngram, count in zip(ngrams.tolist(), times.tolist(), strict=True):
            self._add_one(tuple(ngram[:-1]), ngram[-1], count)

    def _add_one(self, context: tuple[int, ...], token: int, times: int) -> None:
        followers = self._followers.setdefault(context, {})
        followers[token] = followers.get(token, 0) + times
        self._evidence[context] = self._evidence.get(context, 0) + times


class NGramModel:
    """A bigram or trigram model with Laplace smoothing.

    A trigram context that was followed fewer than `min_context_count` times falls back to the
    bigram row, as does a context of a single token; an empty context gives how often each token
    was seen at all.

    Args:
        order: 2 for a bigram model, 3 for a trigram model.
        vocabulary: how many ids there are.
        dense: whether counts are kept in dense arrays.
        smoothing: what Laplace smoothing adds to every count, more than 0.
        min_context_count: evidence below which a trigram row is not trusted.

    Raises:
        InvalidRequestError: for an order or smoothing that cannot be, or a vocabulary too large
            for dense arrays.
    """

    def __init__(
        self,
        order: int,
        vocabulary: int,
        *,
        dense: bool = False,
        smoothing: float = 1.0,
        min_context_count: int = MIN_CONTEXT_COUNT,
    ) -> None:
        if order not in (2, 3):
            raise InvalidRequestError(f"An n-gram model has order 2 or 3, not {order}.")
        if vocabulary < 1 or not smoothing > 0:
            raise InvalidRequestError("An n-gram model needs a vocabulary and positive smoothing.")
        self.order = order
        self.vocabulary = vocabulary
        self.smoothing = smoothing
        self.min_context_count = min_context_count
        self.dense = dense
        make = DenseCounts if dense else SparseCounts
        self._counts: list[Counts] = [make(vocabulary, length) for length in range(order)]

    def count(self, tokens: Sequence[int]) -> None:
        """Counts a stream of tokens; nothing is counted across two calls.

        Raises:
            InvalidRequestError: if an id is outside the vocabulary.
        """
        for counts in self._counts:
            counts.count(tokens)

    def context_length(self, context: Sequence[int]) -> int:
        """How many of the context's last tokens its row rests on: 0, 1 or 2."""
        known = min(len(context), self.order - 1)
        if known == 2 and self._counts[2].evidence(_last(context, 2)) < self.min_context_count:
            return 1
        return known

    def distribution(self, context: Sequence[int], temperature: float = 1.0) -> Row:
        """The distribution of the token after `context`, float64 `[vocabulary]`.

        The row is chosen first, by its evidence; the temperature is applied to it after that.
        """
        length = self.context_length(context)
        row = self._counts[length].row(_last(context, length)) + self.smoothing
        row /= row.sum()
        if temperature != 1.0:
            row = np.exp((np.log(row) - np.log(row.max())) / max(temperature, 1e-6))
            row /= row.sum()
        return row

    def save(self, path: Path) -> None:
        """Writes the model to an `.npz` file."""
        tables: dict[str, Any] = {
            "shape": np.array([self.order, self.vocabulary, self.min_context_count]),
            "smoothing": np.array(self.smoothing),
        }
        for length, counts in enumerate(self._counts):
            tables[f"ngrams_{length}"], tables[f"times_{length}"] = counts.arrays()
        with path.open("wb") as file:
            np.savez_compressed(file, **tables)

    @classmethod
    def load(cls, path: Path, *, dense: bool = False) -> NGramModel:
        """Reads a model that `save` wrote, into dense arrays or sparse ones.

        Raises:
            InvalidRequestError: if the file is not such a model.
        """
        try:
            with np.load(path, allow_pickle=False) as saved:
                order, vocabulary, min_context_count = (int(value) for value in saved["shape"])
                model = cls(
                    order,
                    vocabulary,
                    dense=dense,
                    smoothing=float(saved["smoothing"]),
                    min_context_count=min_context_count,
                )
                for length, counts in enumerate(model._counts):
                    counts.add(saved[f"ngrams_{length}"], saved[f"times_{length}"])
        except (KeyError, ValueError, OSError, IndexError) as error:
            raise InvalidRequestError(
                f"{path} is not an n-gram model of this program: {error}"
            ) from error
        return model


def bigram(vocabulary: int, streams: Iterable[Sequence[int]], *, dense: bool = False) -> NGramModel:
    """A bigram model of some streams of tokens."""
    return _built(NGramModel(2, vocabulary, dense=dense), streams)


def trigram(
    vocabulary: int, streams: Iterable[Sequence[int]], *, dense: bool = False
) -> NGramModel:
    """A trigram model of some streams of tokens."""
    return _built(NGramModel(3, vocabulary, dense=dense), streams)


def _built(model: NGramModel, streams: Iterable[Sequence[int]]) -> NGramModel:
    for stream in streams:
        model.count(stream)
    return model


def _last(context: Sequence[int], length: int) -> tuple[int, ...]:
    return tuple(context[len(context) - length :])


def _checked_stream(tokens: Sequence[int], vocabulary: int) -> npt.NDArray[np.int64]:
    stream = np.asarray(tokens, np.int64)
    if stream.size and not 0 <= stream.min() <= stream.max() < vocabulary:
        raise InvalidRequestError(f"A token is outside the vocabulary of {vocabulary} ids.")
    return stream
