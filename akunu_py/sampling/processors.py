"""Logits processors: penalties, which make earlier tokens less likely, and the filters of a
distribution: top-p, min-p, top-k, XTC and infill.

The result for a row depends only on that row and its position, so it is the same whether a token is
decoded alone or verified with a draft. On a GPU, where steps are pipelined, the rounding of a
top-p's sum is an exception. Penalties remember the tokens by position: a forward pass that begins
before the end of what they remember replaces the rest, like a rollback.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import apply_min_p

from akunu_py.options import Sampling
from akunu_py.sampling.random import uniform

DEFAULT_CANDIDATES: Final = 40
"""llama.cpp's default top-k."""
MAX_CANDIDATES: Final = 128

_CHUNK: Final = 64
"""About the square root of a vocabulary divided by 40 candidates, so that there are about as many
chunks as candidates."""
_NUCLEUS: Final = 256
"""How many likely tokens a top-p looks at first."""

_END_WEIGHT: Final = 3
"""End tokens win if their probability, times this and the number of candidates, exceeds the
probability of the others."""
_MIN_PROB: Final = 0.2
"""Less likely texts are dropped; texts that begin alike count as one."""
_TO_EXCLUDE: Final = 3
"""The stream of random numbers that decide at which positions XTC excludes."""


def filtered(
    logits: mx.array,
    sampling: Sampling,
    exclude: Callable[[mx.array], mx.array] | None = None,
    *,
    pipelined: bool = True,
) -> tuple[mx.array, mx.array | None]:
    """Applies the filters to a model's distribution, before the temperature, as in mlx-lm.

    With a top-k, only the k most likely tokens are looked at. The other filters then keep the same
    tokens as in mlx-lm, which applies the top-k last. XTC needs all tokens, because less likely
    ones take the places of those that it excludes.

    From logits `[rows, vocabulary]`, returns float32 log-probabilities, with filtered tokens at
    minus infinity, and the ids they belong to: both `[rows, candidates]`, or no ids if all tokens
    are candidates. `exclude` is XTC at these positions, if the request has it; `pipelined` says
    whether the next forward pass may begin before this one is read.
    """
    logits = logits.astype(mx.float32)
    total = mx.logsumexp(logits, axis=-1, keepdims=True)
    ids = None
    has_top_k = 0 < sampling.top_k < logits.shape[-1]
    if has_top_k and exclude is None:
        ids = most_likely(logits, sampling.top_k)
        logits = mx.take_along_axis(logits, ids, axis=-1)
    scores = logits - total
    if sampling.top_p < 1:
        waits = waits_for_nucleus(sampling, len(scores), pipelined)
        find_least = _least_by_waiting if waits else _least_by_sorting
        scores = mx.where(scores < find_least(scores, sampling.top_p), -mx.inf, scores)
    if sampling.min_p > 0:
        scores = apply_min_p(scores, sampling.min_p)
    if exclude is not None:
        scores = exclude(scores)
        if has_top_k:
            kept = most_likely(scores, sampling.top_k)
            values = mx.take_along_axis(scores, kept, axis=-1)
            scores = mx.put_along_axis(mx.full(scores.shape, -mx.inf), kept, values, axis=-1)
    return scores, ids


def most_likely(scores: mx.array, count: int) -> mx.array:
    """The ids `[rows, count]` of the largest scores `[rows, vocabulary]`, in any order.

    They are searched in the chunks with the largest maxima, so that a GPU, on which a partition is
    a sort, need not sort the vocabulary.
    """
    rows, vocabulary = scores.shape
    chunks, rest = divmod(vocabulary, _CHUNK)
    if chunks <= 2 * count:
        return mx.argpartition(-scores, kth=count - 1, axis=-1)[:, :count]
    whole = scores[:, : vocabulary - rest].reshape(rows, chunks, _CHUNK)
    best = most_likely(whole.max(axis=-1), count)[:, :, None]
    ids = (best * _CHUNK + mx.arange(_CHUNK, dtype=best.dtype)).reshape(rows, -1)
    values = mx.take_along_axis(whole, best, axis=1).reshape(rows, -1)
    if rest:
        last = mx.arange(vocabulary - rest, vocabulary, dtype=ids.dtype)
        ids = mx.concatenate([ids, mx.broadcast_to(last, (rows, rest))], axis=-1)
        values = mx.concatenate([values, scores[:, -rest:]], axis=-1)
    found = mx.argpartition(-values, kth=count - 1, axis=-1)[:, :count]
    return mx.take_along_axis(ids, found, axis=-1)


def waits_for_nucleus(sampling: Sampling, rows: int, pipelined: bool = True) -> bool:
    """Whether `filtered` waits for the logits because of a top-p over the whole vocabulary. A
    single row on a GPU is sorted instead, because waiting would end pipelining, if there is any."""
    looks_at_all = sampling.top_p < 1 and (not sampling.top_k or sampling.xtc_probability > 0)
    return looks_at_all and (rows > 1 or not pipelined or mx.default_device() == mx.Device(mx.cpu))


# As in mlx-lm, a top-p drops a token if more likely ones already add up to `top_p`. Both functions
# find the least log-probability that it keeps, `[rows, 1]`.


def _least_by_sorting(scores: mx.array, top_p: float) -> mx.array:
    ordered = mx.sort(scores, axis=-1)
    mass_above = mx.cumsum(mx.exp(ordered), axis=-1, reverse=True, inclusive=False)
    num_dropped = (mass_above >= top_p).sum(axis=-1, keepdims=True)
    return mx.take_along_axis(ordered, num_dropped, axis=-1)


def _least_by_waiting(scores: mx.array, top_p: float) -> mx.array:
    """Looks at a few likely tokens, and at all if these do not add up to enough."""
    few = mx.take_along_axis(scores, most_likely(scores, min(_NUCLEUS, scores.shape[-1])), axis=-1)
    mx.eval(scores, few)
    least = np.full((len(few), 1), -np.inf, np.float32)
    for index, rows in enumerate(zip(np.asarray(few), np.asarray(scores), strict=True)):
        for values in rows:
            ordered = -np.sort(-values)
            last = np.searchsorted(np.cumsum(np.exp(ordered), dtype=np.float64), top_p)
            if last < len(ordered):
                least[index] = ordered[last]
                break
    return mx.array(least)


class XTCFilter:
    """XTC, "exclude top choices": at some positions, drops all likely tokens except the least
    likely one.

    It excludes the same tokens as mlx-lm's `apply_xtc`. There, one random number decides for a
    whole batch; here, each position has its own. `kept` are ids that are never excluded: as in
    mlx-lm, those of a line break and those that end an answer.
    """

    def __init__(self, sampling: Sampling, seed: int, kept: Iterable[int] = ()) -> None:
        self._probability = sampling.xtc_probability
        self._threshold = sampling.xtc_threshold
        self._seed = seed
        self._kept = sorted(kept)

    def apply(self, scores: mx.array, position: int) -> mx.array:
        """Log-probabilities `[rows, vocabulary]` with excluded tokens at minus infinity; row `i`
        predicts the token at `position + i`."""
        excludes = [
            uniform(self._seed, position + row, _TO_EXCLUDE) < self._probability
            for row in range(scores.shape[0])
        ]
        if not any(excludes):
            return scores
        probabilities = mx.softmax(scores, axis=-1)
        likely = mx.where(probabilities > self._threshold, probabilities, mx.inf)
        top = (probabilities > mx.min(likely, axis=-1, keepdims=True)) & mx.array(excludes)[:, None]
        if self._kept:
            top[:, mx.array(self._kept)] = False
        return mx.where(top, -mx.inf, scores)


class InfillFilter:
    """llama.cpp's `infill` sampler, which ends a fill-in-the-middle answer in time.

    It looks at the few tokens that top-k and top-p left. If the end tokens are likely enough, it
    keeps only these. Otherwise, tokens whose texts begin alike count as one, and unlikely ones are
    dropped; if none is left, the answer ends with the first end token. `text_of` returns the bytes
    of a token, empty for special ones. Source: the description of `llama_sampler_init_infill` in
    llama.cpp's `llama.h`.
    """

    def __init__(self, end_tokens: Sequence[int], text_of: Callable[[int], bytes]) -> None:
        self._end_tokens = frozenset(end_tokens)
        self._last_resort = end_tokens[0] if end_tokens else None
        self._text_of = text_of

    def apply(self, scores: mx.array, top_k: int) -> mx.array:
        """The log-probabilities of the remaining tokens, `[rows, vocabulary]`; waits for `scores`,
        which are log-probabilities up to a constant per row. `top_k` is the request's, 0 if
        none."""
        count = min(top_k or DEFAULT_CANDIDATES, MAX_CANDIDATES, scores.shape[-1])
        ids = most_likely(scores, count)
        values = mx.take_along_axis(scores, ids, axis=-1)
        slots = np.array(ids)
        chosen = np.full(slots.shape, -np.inf, dtype=np.float32)
        for row, likely in enumerate(np.exp(np.array(values, dtype=np.float64))):
            left = self.left_of(dict(zip(slots[row].tolist(), likely.tolist(), strict=True)))
            missing = left.keys() - set(slots[row].tolist())
            slots[row, : len(missing)] = list(missing)
            for slot, token in enumerate(slots[row].tolist()):
                if probability := left.get(token):
                    chosen[row, slot] = math.log(probability)
        nothing = mx.full(scores.shape, -mx.inf)
        return mx.put_along_axis(nothing, mx.array(slots), mx.array(chosen), axis=-1)

    def left_of(self, candidates: dict[int, float]) -> dict[int, float]:
        ordered = sorted(candidates.items(), key=lambda pair: (-pair[1], pair[0]))
        shares = _normalised({token: value for token, value in ordered if value > 0})
        ends = {token: value for token, value in shares.items() if token in self._end_tokens}
        if _END_WEIGHT * sum(ends.values()) * len(shares) > 1 - sum(ends.values()):
            return _normalised(ends)
        texts = self._merged({token: shares[token] for token in shares if token not in ends})
        kept = {token: value for token, value in texts.items() if value >= _MIN_PROB}
        if not kept:
            token = next(iter(texts)) if self._last_resort is None else self._last_resort
            return {token: 1.0}
        least = 1 / (len(kept) + 1)
        kept = _normalised(kept | ends)
        return _normalised(
            {token: value for token, value in kept.items() if value >= least or token in ends}
        )

    def _merged(self, candidates: dict[int, float]) -> dict[int, float]:
        """The candidates; two that begin alike become the more likely one, with their sum."""
        texts = {token: self._text_of(token) for token in candidates}
        merged = dict(candidates)
        for short, text in texts.items():
            for long, other in texts.items():
                if short not in merged:
                    break
                if text and long != short and long in merged and other.startswith(text):
                    winner, loser = (long, short) if merged[long] > merged[short] else (short, long)
                    merged[winner] += merged.pop(loser)
        return merged


def _normalised(values: dict[int, float]) -> dict[int, float]:
    total = sum(values.values())
    return {token: value / total for token, value in values.items()}


_FORWARDS_AHEAD: Final = 8
"""How many tokens a pipelined loop may undo besides those of one forward pass."""


class LogitsProcessor(Protocol):
    """Changes logits depending on the tokens before them."""

    def process(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        """The processed logits; the arguments are those of `Sampler.process_logits`."""


def make_penalties(
    sampling: Sampling, prompt: Sequence[int], generated: int = 0
) -> list[LogitsProcessor]:
    """The penalties of a request, in the order in which mlx-lm applies them; the last `generated`
    tokens of `prompt` were generated."""
    penalties: list[LogitsProcessor] = []
    if sampling.repetition_penalty != 1:
        penalties.append(RepetitionPenalty(sampling, prompt))
    if sampling.presence_penalty or sampling.frequency_penalty:
        penalties.append(CountPenalty(sampling, prompt, generated))
    return penalties


class _TokensBefore:
    """The input tokens of all forward passes, by position; at first the last ones of the prompt (at
    least 1), up to position `end`. The `size` tokens before a row matter; None means all."""

    def __init__(self, kept: Sequence[int], end: int, size: int | None = None) -> None:
        self._tokens = mx.array(list(kept), dtype=mx.int32)
        self._end, self._size = end, size

    def take(self, position: int, inputs: mx.array) -> mx.array:
        """Adds the inputs of a forward pass; returns all tokens up to the last of them."""
        kept = self._tokens.size - (self._end - (position - 1))
        tokens = mx.concatenate([self._tokens[:kept], inputs.astype(mx.int32)])
        if self._size is not None:
            tokens = tokens[-(self._size + inputs.size + _FORWARDS_AHEAD) :]
        self._tokens = tokens
        self._end = position - 1 + inputs.size
        return tokens


class RepetitionPenalty:
    """Makes the tokens of the last few positions less likely, by mlx-lm's rule.

    Their logits are divided by the penalty if they are positive, else multiplied by it. A token
    that occurs more than once is penalised once.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._penalty = sampling.repetition_penalty
        self._size = sampling.repetition_context_size
        self._before = _TokensBefore(prompt[-1 - self._size :], len(prompt), self._size)

    def process(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        rows = inputs.size
        context = self._before.take(position, inputs)
        size = min(self._size, context.size)
        # Row `i` of the windows has the tokens up to `inputs[i]`. A window that begins before the
        # context repeats its first token, which makes no difference.
        last = mx.arange(context.size - rows, context.size)[:, None]
        window = context[mx.maximum(last - mx.arange(size), 0)]
        seen = mx.take_along_axis(logits, window, axis=-1)
        seen = mx.where(seen < 0, seen * self._penalty, seen / self._penalty)
        return mx.put_along_axis(logits, window, seen, axis=-1)


class CountPenalty:
    """OpenAI's presence and frequency penalties, over the generated tokens, not the prompt.

    A token that was generated `n` times loses `presence_penalty + n * frequency_penalty`.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int], generated: int = 0) -> None:
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        self._before = _TokensBefore(prompt[-1 - generated :], len(prompt))

    def process(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        rows, vocabulary = logits.shape
        context = self._before.take(position, inputs)
        # The first token is the last one of the prompt, which was not generated.
        generated = context[1:]
        earlier = max(0, generated.size - rows)
        fresh = rows - (generated.size - earlier)
        counts = mx.zeros((rows, vocabulary)).at[0, generated[:earlier]].add(1.0)
        counts = counts.at[mx.arange(fresh, rows), generated[earlier:]].add(1.0)
        counts = mx.cumsum(counts, axis=0)
        penalty = counts * self._frequency + (counts > 0) * self._presence
        return logits - penalty.astype(logits.dtype)
