"""CombinedDrafter: n-grams where they are sure, a draft model where they are not.

The n-grams begin a draft, the draft model may continue it or take its place, and the n-grams copy
on behind what the model has drawn. The planner decides who continues, by cost and by expected
acceptance. Knows neither models nor costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter, DrawingDrafter

MIXED = "mixed"
"""The source of drafts with both copied and drawn tokens."""


class CopyingDrafter(Drafter, Protocol):
    """A drafter that copies tokens, and so takes no time."""

    def propose_after(self, tokens: Sequence[int], limit: int) -> Draft:
        """What it would propose if `tokens` were emitted next, with `accept_probs`."""


class ModelDrafter(Drafter, DrawingDrafter, Protocol):
    """A drafter that draws its tokens from a model."""


class CombinedDrafter:
    """Two drafters of one request as one.

    Args:
        ngrams: copies tokens, in no time; it may outlive the request.
        model: draws tokens.
    """

    def __init__(self, ngrams: CopyingDrafter, model: ModelDrafter) -> None:
        self._ngrams = ngrams
        self._model = model
        self._copied = NO_DRAFT
        self.draw = model.draw
        self.prospects = model.prospects

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._ngrams.begin(prompt, references)
        self._model.begin(prompt, references)

    def extend(self, tokens: Sequence[int]) -> None:
        self._ngrams.extend(tokens)
        self._model.extend(tokens)

    def propose(self, limit: int) -> Draft:
        """What takes no time: for callers that ask for no more."""
        return self.copy(NO_DRAFT, limit)

    def copy(self, draft: Draft, limit: int) -> Draft:
        if not draft:
            self._copied = self._ngrams.propose(limit)
            return self._copied
        copied = self._ngrams.propose_after(draft.tokens, limit)
        return continued(draft, copied.tokens, copied.accept_probs, MIXED)

    def feedback(self, draft: Draft, accepted: int) -> None:
        copied = 0
        for own, verified in zip(self._copied.tokens, draft.tokens, strict=False):
            if own != verified:
                break
            copied += 1
        self._ngrams.feedback(self._copied.cut(copied), min(accepted, copied))
        self._model.feedback(draft, accepted)


def continued(
    draft: Draft, tokens: Sequence[int], accept_probs: Sequence[float], source: str
) -> Draft:
    """A draft with further tokens behind it.

    Args:
        draft: with `accept_probs`, and without probabilities.
        tokens: the further tokens.
        accept_probs: one for each.
        source: of the result, if there are further tokens.
    """
    if not tokens:
        return draft
    return replace(
        draft,
        tokens=(*draft.tokens, *tokens),
        source=source,
        accept_probs=(*draft.accept_probs, *accept_probs),
        suggested_length=None,
    )
