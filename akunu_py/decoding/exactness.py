"""Exactness to the token, although forwards of different sizes are computed by different kernels.

Their logits, and the keys and values that they leave in the cache, differ in the last bits, so two
close logits can change places. `--exact` has two answers.

*Near-ties are decided again* where such differences are small: greedily, by a model in float32. A
margin measured for the loaded model on this machine finds the positions in question. There, all
tokens since the last cache entry written by a single-token forward are computed again, one per
forward. The text is that of single-token forwards. Later requests reuse the prompt alone: what the
cache holds of the answer depends on its drafts.

*All forwards have the same shape* elsewhere. In 16 bits the margin exceeds the gap at almost every
position: a logit between 16 and 32 is a multiple of 0.125. So the answer is divided into blocks of
`BLOCK_ROWS` positions, and every forward computes one whole block: what is known of it, then the
draft, then padding. A position always has the same row of a forward of the same size over the same
number of keys, and what stands after it is masked. So its logits are the same to the bit with any
draft and with none, if a kernel gives the same result twice, and no kernel has to compute rows
alike. Thinking Machines ("Defeating Nondeterminism in LLM Inference", 2025) get there by kernels
with one order of summation for all sizes; MLX has none.
"""

from typing import Final, cast

import mlx.core as mx

from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.states import Checkpoint
from akunu_py.decoding.verification import Verdict
from akunu_py.model.target_model import TargetModel
from akunu_py.sampling.sampler import Sampler

BLOCK_ROWS: Final = 3
"""The rows of every forward where all have the same shape; `benchmarks/exact.py` compares others.

By published costs of M3 to M5, three rows lose less where no draft fits than four do, and copies
gain nearly as much.
"""

SAFETY: Final = 8
"""The margin over the largest difference measured.

A factor of 2, because two logits may move in opposite directions; times 4, because a few hundred
positions do not show the largest possible difference.
"""

_POSITIONS: Final = 48
_PREFIX: Final = 16
_SAMPLE: Final = '''\
def weighted_mean(values, weights):
    """The mean of the values, each counted by its weight."""
    total = sum(weights)
    if total == 0:
        raise ValueError("The weights add up to nothing.")
    return sum(value * weight for value, weight in zip(values, weights)) / total


The harbour was quiet that morning; two boats lay at the pier, and nobody had come for them yet.
'''


def measure_difference(model: TargetModel, num_draft_tokens: int) -> float:
    """The largest difference between logits of batched and of single-token forwards.

    Both decode the same texts, one random and one real, each on the cache that its own forwards
    wrote. So this is the difference along a whole answer, not in one forward.

    Args:
        model: the model, loaded as it will be used.
        num_draft_tokens: the most draft tokens that a forward will verify.
    """
    length = min(_PREFIX + _POSITIONS, model.context_length)
    random = mx.random.randint(0, model.vocabulary_size, (length,), key=mx.random.key(0))
    real = mx.array(model.tokenizer.encode(_SAMPLE)[:length])
    largest = 0.0
    most_rows = num_draft_tokens + 1
    for tokens in (random, real):
        single_logits = _logits_along(model, tokens, 1)
        for rows in sorted({2, (2 + most_rows) // 2, most_rows} - {1}):  # fewest, middle, most
            batched_logits = _logits_along(model, tokens, min(rows, _POSITIONS))
            difference = mx.abs(batched_logits - single_logits).max()
            largest = max(largest, cast(float, difference.item()))
    return largest


def near_ties(logits: mx.array, margin: float) -> mx.array:
    """Which rows have a second logit within `margin` of the best one; lazy, bool `[rows]`."""
    close = logits > mx.max(logits, axis=-1, keepdims=True) - margin
    return close.sum(axis=-1) > 1


class TieBreaker:
    """Decides near-ties of one answer as plain decoding from the same cache would.

    `decide` must be called for every forward that was read, in order.

    Args:
        model: the target.
        cache: the one decoding uses.
        sampler: how tokens are chosen, greedily.
        known: the last token of the prompt, which is not in the cache yet.
        margin: the difference of two logits that counts as a tie; see `SAFETY`. 0 finds no ties.
    """

    def __init__(
        self,
        model: TargetModel,
        cache: KVCache,
        sampler: Sampler,
        known: int,
        margin: float,
    ) -> None:
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._margin = margin
        self._known = known
        # The last tokens whose cache entries no single-token forward wrote, and where they begin.
        self._batched: list[int] = []
        self._begin: Checkpoint | None = None

    def ties_of(self, logits: mx.array) -> mx.array | None:
        """What `decide` needs to know about a forward, lazily; None if no row can be a tie."""
        return near_ties(logits, self._margin) if self._margin > 0 else None

    def before_draft(self) -> None:
        """Must be called before a forward with a draft is submitted."""
        if not self._batched and self._margin > 0 and self._cache.needs_checkpoints:
            self._begin = self._cache.checkpoint(whole=True)

    def decide(
        self, verdict: Verdict, draft_tokens: tuple[int, ...], ties: mx.array | None, start: int
    ) -> tuple[Verdict, int]:
        """The verdict, cut at the first near-tie and decided there by single-token forwards.

        Args:
            verdict: the verdict on the forward over the known token and `draft_tokens`.
            draft_tokens: what it verified.
            ties: what `ties_of` returned for the forward's logits.
            start: the cache's length before the forward.

        Returns:
            The verdict, and how many single-token forwards it took: 0 unless there was a near-tie.
            If there was, the cache has been rolled back to the tokens that the verdict accepts.
        """
        if ties is None:
            return verdict, 0
        # This forward is the very one that plain decoding makes, so it cannot decide differently.
        plain = not (draft_tokens or self._batched)
        unsure = [] if plain else cast(list[bool], ties.tolist())[: verdict.accepted + 1]
        accepted = unsure.index(True) if True in unsure else verdict.accepted
        forwards = 0
        again = [*self._batched, self._known, *draft_tokens[:accepted]]
        if True in unsure:
            forwards = len(again)
            token = self._decode_again(again, start - len(self._batched))
            verdict = Verdict(accepted, token)
        self._batched = [] if plain or forwards else again
        self._known = verdict.next_token
        return verdict, forwards

    def _decode_again(self, tokens: list[int], start: int) -> int:
        """Replaces what the cache holds from `start` on; returns the token that follows."""
        self._cache.rollback(start, self._begin)
        for token in tokens:
            inputs = mx.array([token])
            logits = self._model.forward(inputs, self._cache)
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
        position = start + len(tokens)
        logits = self._sampler.process_logits(logits, position, inputs)
        return cast(int, self._sampler.choose(logits, position).item())


def _logits_along(model: TargetModel, tokens: mx.array, rows: int) -> mx.array:
    """Logits after each token behind the prefix, `rows` tokens per forward; float32."""
    cache = model.make_cache(tokens.size, quantized_start=0)
    prefix = min(_PREFIX, tokens.size // 2)
    model.prefill(tokens[:prefix].tolist(), cache)  # type: ignore[arg-type]
    found = []
    for begin in range(prefix, tokens.size, rows):
        found.append(model.forward(tokens[begin : begin + rows], cache).astype(mx.float32))
        mx.eval(found[-1])
    return mx.concatenate(found)
