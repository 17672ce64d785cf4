"""DraftModelDrafter: drafts with a second, smaller model that has the same tokenizer.

The only drafter that imports mlx. It has its own cache, which it rolls back to the tokens that were
emitted, and reuses from one request to the next.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import mlx.core as mx
import numpy as np

from akunu_py.cache.model_cache import no_rollback_reason
from akunu_py.cache.prefix_pool import common_prefix_length
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.errors import InvalidRequestError
from akunu_py.model import TargetModel
from akunu_py.options import Sampling
from akunu_py.sampling.random import GOLDEN_GAMMA, mix64
from akunu_py.sampling.sampler import Sampler
from akunu_py.sampling.xtc import XTCFilter

_FIRST_CAPACITY: Final = 2048
_STREAM: Final = 0x9D2C5680


class DraftModel:
    """A model to draft with, and a cache that remembers which tokens it holds.

    Args:
        model: the drafting model.
        target: the model that it drafts for.

    Raises:
        InvalidRequestError: if the two do not share a tokenizer, or the drafting model's cache
            cannot be rolled back.
    """

    def __init__(self, model: TargetModel, target: TargetModel) -> None:
        if reason := why_no_match(model, target):
            raise InvalidRequestError(f"{model.name} cannot draft for {target.name}: {reason}.")
        cache = model.make_cache(min(_FIRST_CAPACITY, model.context_length))
        if not cache.can_roll_back:
            reason = no_rollback_reason(cache)
            raise InvalidRequestError(
                f"{model.name} cannot draft: {reason} Choose another draft model."
            )
        self.model = model
        self.vocabulary = target.vocabulary_size
        self._cache = cache
        self._held: list[int] = []

    def room_after(self, tokens: int) -> int:
        """How many draft tokens fit into the model's context after `tokens` tokens."""
        return self.model.context_length - tokens

    def advance(self, tokens: Sequence[int], agreed: int, num_draft_tokens: int) -> mx.array:
        """Brings the cache up to a context; returns lazy logits `[1, target's vocabulary]`.

        Args:
            tokens: the whole context, at least 1 token.
            agreed: how many of its first tokens are known to be those of the `advance` before;
                only the others are compared with the cache.
            num_draft_tokens: how many tokens will be appended to it.
        """
        kept = agreed + common_prefix_length(self._held[agreed:], tokens[agreed:])
        kept = min(kept, len(tokens) - 1)
        kept -= self._cache.rollback(kept)
        capacity = self._cache.capacity
        while capacity < len(tokens) + num_draft_tokens:
            capacity *= 2
        if capacity > self._cache.capacity:
            self._cache.grow(min(capacity, self.model.context_length))
        del self._held[kept:]
        self.model.prefill(tokens[kept:-1], self._cache)
        self._cache.mark()
        self._held.extend(tokens[kept:])
        return self.append(mx.array([tokens[-1]]))

    def append(self, token: mx.array) -> mx.array:
        """Appends one token, which may be lazy; returns lazy logits `[1, target's vocabulary]`."""
        logits = self.model.forward(token, self._cache)[:, : self.vocabulary]
        missing = self.vocabulary - logits.shape[-1]
        return mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)

    def hold(self, draft_tokens: Sequence[int]) -> None:
        """Notes the draft tokens that `append` has added after the context."""
        self._held.extend(draft_tokens)


class DraftModelDrafter:
    """Drafts for one request, greedily or sampled as the request asks.

    Sampled drafts carry the distributions they were drawn from. Random numbers are keyed by the
    seed, the position where the draft begins and the token's own, in a stream that verification
    does not use, so no draft says anything about the draws of a later one. Only XTC excludes at the
    same positions as the target, because a draft of what is excluded there would be rejected.

    Args:
        source: the model to draft with.
        sampling: the request's sampling options.
        seed: the seed of the request.
        xtc: the XTC filter of the request, if it has one.
    """

    def __init__(
        self, source: DraftModel, sampling: Sampling, seed: int, xtc: XTCFilter | None = None
    ) -> None:
        self._source = source
        self._sampling = sampling
        self._seed = mix64(seed ^ _STREAM)
        self._xtc = xtc
        self._tokens: list[int] = []
        self._agreed = 0

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._tokens = list(prompt)
        self._agreed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)

    def propose(self, limit: int) -> Draft:
        position = len(self._tokens)
        limit = min(limit, self._source.room_after(position))
        if limit <= 0 or not self._tokens:
            return NO_DRAFT
        fresh = replace(self._sampling, seed=mix64(self._seed + position * GOLDEN_GAMMA))
        sampler = Sampler(fresh, self._tokens, xtc=self._xtc)
        logits = self._source.advance(self._tokens, self._agreed, limit)
        self._agreed = position
        inputs = mx.array(self._tokens[-1:])
        drafted: list[mx.array] = []
        rows: list[mx.array] = []
        while True:
            logits = sampler.process_logits(logits, position + len(drafted), inputs)
            inputs = sampler.choose(logits, position + len(drafted))
            drafted.append(inputs)
            if not self._sampling.greedy:
                rows.append(sampler.distributions(logits, position + len(drafted) - 1))
            mx.async_eval(inputs)  # type: ignore[no-untyped-call]
            if len(drafted) == limit:
                break
            logits = self._source.append(inputs)
        tokens: list[int] = mx.concatenate(drafted).tolist()  # type: ignore[assignment]
        self._source.hold(tokens[:-1])
        probabilities = np.array(mx.concatenate(rows)) if rows else None
        return Draft(tuple(tokens), "draft model", position, probabilities)

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass


def why_no_match(draft: TargetModel, target: TargetModel) -> str | None:
    """Why two models do not share a vocabulary; None if they do.

    Special tokens are compared too, but not which of them end a text: the target decides where an
    answer ends, so a draft model with other end tokens (a base model that drafts for a chat
    model) can only miss the very last token.
    """
    theirs, ours = (model.tokenizer.wrapped.get_vocab() for model in (draft, target))
    if len(theirs) != len(ours):
        return f"its tokenizer has {len(theirs)} tokens, and not {len(ours)}"
    for token, number in ours.items():
        if theirs.get(token) != number:
            other = theirs.get(token, "nothing")
            return f"its tokenizer reads {token!r} as {other}, and not as {number}"
    return None
