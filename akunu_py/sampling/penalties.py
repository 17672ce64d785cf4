"""Penalties: logits processors that make earlier tokens less likely.

They remember the tokens by position. A forward pass that begins before the end of what they
remember replaces the rest, like a rollback. So drafted tokens are penalised like all others.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import mlx.core as mx

from akunu_py.options import Sampling

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
