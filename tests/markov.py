"""A target whose next token depends on the last one alone, by a known table: draws are cheap."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.layers import LayerCache
from akunu_py.model.target_model import TargetModel
from akunu_py.sampling.constraint import Constraint, GrammarPart

Table = npt.NDArray[np.float64]

VOCABULARY = 8


def copied_text() -> Table:
    """Logits of a text that repeats itself, as lookups need it, with one uncertain place."""
    logits = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY))
    for token in range(VOCABULARY - 1):
        logits[token, token + 1] = 9
    logits[-1] = [5.5, 0.2, 1.5, -1, 2.6, -2, 3.0, 0]
    return logits


def free_text(seed: int = 1) -> Table:
    """Logits without a favourite that is always right."""
    return np.random.default_rng(seed).normal(size=(VOCABULARY, VOCABULARY)) * 2


@dataclass
class _Tokenizer:
    """All that a draft model's check looks at."""

    vocabulary: dict[str, int]

    @property
    def wrapped(self) -> "_Tokenizer":
        return self

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary


class MarkovModel:
    """Stands in for a TargetModel; its cache only counts.

    Args:
        table: logits `[vocabulary, vocabulary]`, row `i` those after token `i`.
    """

    name = "markov"
    context_length = 100_000
    padding: Mapping[int, int] = {}
    forwards = 0

    def __init__(self, table: Table) -> None:
        self._table = mx.array(table.astype(np.float32))
        self.vocabulary_size = len(table)
        self.tokenizer = _Tokenizer({str(token): token for token in range(len(table))})

    def make_cache(self, capacity: int, *, quantized_start: int | None = None) -> KVCache:
        return KVCache(lambda capacity: [LayerCache(capacity)], capacity)

    def forward(self, tokens: mx.array, cache: KVCache) -> mx.array:
        for layer in cache.layers:
            assert layer.offset + tokens.size <= layer.capacity
            layer.offset += tokens.size
        cache.advance(tokens.size)
        return self._table[tokens]

    def prefill(self, tokens: Sequence[int], cache: KVCache, **_: Any) -> bool:
        if tokens:
            self.forward(mx.array(list(tokens)), cache)
        return True


def markov_model(table: Table) -> TargetModel:
    return cast(TargetModel, MarkovModel(table))


LETTERS = "abcdefgh"
"""The texts of the tokens, where a test needs any."""


def spelled(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


class _Letters:
    """The tokens as llguidance reads them, and an end token that the model never says."""

    eos_token_id = len(LETTERS)
    bos_token_id = None
    tokens: Sequence[bytes] = [*(letter.encode() for letter in LETTERS), b"<end>"]
    special_token_ids: Sequence[int] = [len(LETTERS)]

    def __call__(self, text: bytes) -> list[int]:
        return [LETTERS.index(chr(byte)) for byte in text]


def letters_constraint(regex: str) -> Constraint:
    """Keeps the answer to a prompt of one token to a regular expression over letters."""
    tokenizer = LLTokenizer(TokenizerWrapper(_Letters()))
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_regex(regex), log_level=0)
    part, size = GrammarPart(matcher, 1), VOCABULARY + 1
    return Constraint(
        lambda _: part, lambda _: b"", None, first=part, start=1, vocabulary=size, predicted=size
    )


def transitions(tokens: Sequence[int]) -> npt.NDArray[np.int64]:
    """How often each token followed each, `[vocabulary, vocabulary]`."""
    counts = np.zeros((VOCABULARY, VOCABULARY), np.int64)
    np.add.at(counts, (np.array(tokens[:-1]), np.array(tokens[1:])), 1)
    return counts


def chi_square_bound(freedom: int) -> float:
    """The 0.9999 quantile of chi-square, after Wilson and Hilferty."""
    spread = 2 / (9 * freedom)
    return freedom * float(1 - spread + 3.719 * np.sqrt(spread)) ** 3


def assert_drawn_from(distributions: Table, tokens: Sequence[int]) -> None:
    """Holds a text against the rows it should be drawn from, by chi-square and total variation.

    Cells expected less than five times are counted together, a row at a time.
    """
    observed = transitions(tokens)
    visits = observed.sum(axis=1, keepdims=True)
    expected = visits * distributions
    assert not observed[distributions == 0].any()

    statistic, freedom = 0.0, 0
    for seen, due in zip(observed, expected, strict=True):
        common = due >= 5
        seen_cells = np.append(seen[common], seen[~common].sum())
        due_cells = np.append(due[common], due[~common].sum())
        tested = due_cells > 0
        statistic += float(((seen_cells - due_cells)[tested] ** 2 / due_cells[tested]).sum())
        freedom += max(int(tested.sum()) - 1, 0)
    assert statistic < chi_square_bound(freedom)

    # Each cell's mean absolute deviation is that of a normal variable; half their sum is the
    # total variation to expect.
    typical = float(np.sqrt(2 / np.pi * expected * (1 - distributions)).sum()) / 2
    assert float(np.abs(observed - expected).sum()) / 2 < 1.7 * typical
