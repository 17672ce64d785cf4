"""DraftModelDrafter: drafts with a second, smaller model that has the same tokenizer.

The only drafter that imports mlx. It has its own cache, which it rolls back to the tokens that were
emitted, and reuses from one request to the next.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from math import prod
from typing import Final, cast

import mlx.core as mx

from akunu_py.cache.model_cache import no_rollback_reason
from akunu_py.drafting.base import NO_DRAFT, Draft, Prospects
from akunu_py.drafting.combined import MIXED, continued
from akunu_py.drafting.confidence import DrawnAcceptance
from akunu_py.errors import InvalidRequestError
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Sampling
from akunu_py.sampling.filters import XTCFilter
from akunu_py.sampling.sampler import Sampler
from akunu_py.tokens import common_prefix_length

SOURCE: Final = "draft model"
"""The source of drafts that the model drew alone."""

_FIRST_CAPACITY: Final = 2048


class DraftModel:
    """A model to draft with, and a cache that remembers which tokens it holds.

    Args:
        model: the drafting model.
        target: the model that it drafts for.

    Attributes:
        acceptance: what was learnt of its drafts.
        in_use: whether a request drafts with it; whoever got it from `lend` says when not.

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
        self.acceptance = DrawnAcceptance()
        self.in_use = False
        self._cache = cache
        self._held: list[int] = []
        self._others: list[DraftModel] = []

    def lend(self, prompt: Sequence[int]) -> "DraftModel":
        """Itself, or one like it with a cache of its own if another request uses it."""
        free = [one for one in (self, *self._others) if not one.in_use]
        if free:
            lent = max(free, key=lambda one: one.shared(prompt))
        else:
            lent = copy(self)
            lent._cache = self.model.make_cache(min(_FIRST_CAPACITY, self.model.context_length))
            lent._held = []
            self._others.append(lent)
        lent.in_use = True
        return lent

    def room_after(self, tokens: int) -> int:
        """How many draft tokens fit into the model's context after `tokens` tokens."""
        return self.model.context_length - tokens

    def shared(self, tokens: Sequence[int]) -> int:
        """How many of the first tokens the cache holds."""
        return common_prefix_length(self._held, tokens)

    def advance(
        self, tokens: Sequence[int], agreed: int, emitted: int, num_draft_tokens: int
    ) -> mx.array:
        """Brings the cache up to a context; returns lazy logits `[1, target's vocabulary]`.

        Args:
            tokens: the whole context, at least 1 token.
            agreed: how many of its first tokens are known to be those of the `advance` before;
                only the others are compared with the cache.
            emitted: how many of its first tokens will not be rolled back, 1 or more.
            num_draft_tokens: how many tokens will be appended to it.
        """
        with self._empty_if_interrupted():
            kept = agreed + common_prefix_length(self._held[agreed:], tokens[agreed:])
            kept = min(kept, len(tokens) - 1)
            kept -= self._cache.rollback(kept)
            capacity = self._cache.capacity
            while capacity < len(tokens) + num_draft_tokens:
                capacity *= 2
            if capacity > self._cache.capacity:
                self._cache.grow(min(capacity, self.model.context_length))
            del self._held[kept:]
            if kept < emitted:
                # The mark stays where nothing will be rejected while a draft is drawn in parts.
                self.model.prefill(self._known(tokens[kept : emitted - 1]), self._cache)
                self._cache.mark()
                kept = max(kept, emitted - 1)
            self._held.extend(tokens[len(self._held) :])
            return self.append(mx.array(self._known(tokens[kept:])))

    def append(self, tokens: mx.array) -> mx.array:
        """Appends tokens `[n]`, which may be lazy; returns the lazy logits after the last of them,
        `[1, target's vocabulary]`."""
        with self._empty_if_interrupted():
            logits = self.model.forward(tokens, self._cache)[-1:, : self.vocabulary]
        missing = self.vocabulary - logits.shape[-1]
        return mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)

    def hold(self, draft_tokens: Sequence[int]) -> None:
        """Notes the draft tokens that `append` has added after the context."""
        self._held.extend(draft_tokens)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """The tokens, with another one for each that only the target has: MLX does not check ids,
        and reads beyond the embeddings."""
        last = self.model.vocabulary_size - 1
        return [min(token, last) for token in tokens]

    @contextmanager
    def _empty_if_interrupted(self) -> Iterator[None]:
        """Forgets everything if a forward ends early: nobody knows what its layers hold then."""
        try:
            yield
        except BaseException:
            self._cache = self.model.make_cache(self._cache.capacity)
            self._held.clear()
            raise


class DraftModelDrafter:
    """Drafts for one request, greedily or sampled as the request asks.

    At each position it draws with the target's own random numbers, so both models draw the same
    token if they agree, and mostly if they nearly do: with a probability of at least
    `(1 - d) / (1 + d)` for a total variation of `d`, where rejection sampling would reach `1 - d`.
    But so a draft is matched like any other, and has no part in what is emitted. Source: Daliri,
    Musco and Suresh, "Coupling without Communication and Drafter-Invariant Speculative Decoding"
    (2024).

    Args:
        source: the model to draft with.
        sampling: the request's sampling options.
        seed: the seed of the request's sampler.
        xtc: its XTC filter, if it has one.
    """

    def __init__(
        self, source: DraftModel, sampling: Sampling, seed: int, xtc: XTCFilter | None = None
    ) -> None:
        self._source = source
        self._sampling = replace(sampling, seed=seed)
        self._xtc = xtc
        self._tokens: list[int] = []

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._source.acceptance.begin()
        self._tokens, self._prompt_length = list(prompt), len(prompt)
        self._agreed = self._source.shared(self._tokens)
        self._position = -1  # where the present draft begins
        self._guess: tuple[int, ...] = ()
        self._confidence: dict[int, float] = {}  # of the drawn tokens in the guess, by index

    def extend(self, tokens: Sequence[int]) -> None:
        if self._guess:
            # Also what was drawn and not verified is compared with what came.
            begin = len(self._tokens) - self._position
            for index, (guess, token) in enumerate(
                zip(self._guess[begin:], tokens, strict=False), start=begin
            ):
                self._learn(index, accepted=guess == token)
                if guess != token:
                    self._guess = ()
                    break
        self._tokens.extend(tokens)

    def propose(self, limit: int) -> Draft:
        limit = len(self.prospects(NO_DRAFT, limit).accept_probs)
        return self.draw(NO_DRAFT, limit) if limit else NO_DRAFT

    def copy(self, draft: Draft, limit: int) -> Draft:
        """It copies nothing."""
        return draft

    def prospects(self, draft: Draft, limit: int) -> Prospects:
        position = len(self._tokens)
        limit = min(limit, self._source.room_after(position + len(draft)))
        if limit <= 0 or not position:
            return Prospects()
        drawn, read = 0, self._agreed
        if draft and position == self._position:
            drawn, read = len(self._confidence), position + len(self._guess)
        unread = position + len(draft) - read
        return Prospects(self._source.acceptance.ahead(drawn, limit), unread)

    def draw(self, draft: Draft, count: int, min_reach: float = 0.0) -> Draft:
        emitted = len(self._tokens)
        if emitted != self._position or not draft:
            self._position, self._confidence = emitted, {}
        context = [*self._tokens, *draft.tokens]
        generated = len(context) - self._prompt_length
        sampler = Sampler(self._sampling, context, generated=generated, xtc=self._xtc)
        logits = self._source.advance(context, min(self._agreed, emitted), emitted, count)
        self._agreed = emitted
        inputs = mx.array(context[-1:])
        drawn: list[mx.array] = []
        confidences: list[mx.array] = []
        accept_probs: list[float] = []
        reach = prod(draft.accept_probs)
        while True:
            position = len(context) + len(drawn)
            logits = sampler.process_logits(logits, position, inputs)
            inputs = sampler.choose(logits, position)
            drawn.append(inputs)
            if self._sampling.greedy:
                confidences.append(mx.exp(logits.max() - mx.logsumexp(logits)))
            else:
                confidences.append(mx.take(sampler.distributions(logits, position), inputs))
            mx.async_eval(inputs, confidences[-1])  # type: ignore[no-untyped-call]
            if len(drawn) > 1 and min_reach:
                # The token before: this one is computed meanwhile.
                accept_probs.append(self._accept_prob(confidences[-2]))
                reach *= accept_probs[-1]
            if len(drawn) == count or reach < min_reach:
                break
            logits = self._source.append(inputs)
        tokens: list[int] = mx.concatenate(drawn).tolist()  # type: ignore[assignment]
        self._source.hold(tokens[:-1])
        for confidence in confidences[len(accept_probs) :]:
            accept_probs.append(self._accept_prob(confidence))
        for index, confidence in enumerate(confidences, start=len(draft)):
            self._confidence[index] = cast(float, confidence.item())
        self._guess = (*draft.tokens, *tokens)
        source = SOURCE if len(self._confidence) == len(self._guess) else MIXED
        return continued(draft, tokens, accept_probs, source)

    def feedback(self, draft: Draft, accepted: int) -> None:
        """`extend` tells more: it also compares what was drawn and not verified."""

    def _accept_prob(self, confidence: mx.array) -> float:
        return self._source.acceptance.of(cast(float, confidence.item()))

    def _learn(self, index: int, *, accepted: bool) -> None:
        """Learns from the token at an index of the guess, if it was drawn."""
        if index in self._confidence:
            drawn = sum(other < index for other in self._confidence)
            self._source.acceptance.learn(drawn, self._confidence[index], accepted)


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
