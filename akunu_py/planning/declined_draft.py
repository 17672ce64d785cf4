"""What would have become of the drafts that a planner declined, and how far promises were kept.

Knows drafts and what was emitted; no costs, no clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.planning.acceptance import AcceptanceModel

_PRIOR: Final = 40.0
"""Tokens that are taken to have been promised, and kept, before anything is known."""
_MEMORY: Final = 400.0
"""Promised tokens after which all that was so far counts half."""
_MOST: Final = 1.1


class PromiseCalibration:
    """The share of the tokens that chosen drafts promised which they kept.

    Every estimate is now and then too high, and who picks the drafts that promise most picks
    those: the fewer drafts pay on a machine, the more so. Old promises fade.
    """

    def __init__(self) -> None:
        self._promised = self._kept = _PRIOR

    @property
    def share(self) -> float:
        """What a promised token is worth; little more than 1 at most."""
        return self._kept / self._promised

    def settle(self, promised: float, kept: int) -> None:
        """Takes in how many drafts of a round were expected to stand, and how many did."""
        if self._promised > _MEMORY:
            self._promised /= 2
            self._kept /= 2
        self._promised += promised
        self._kept = min(self._kept + kept, _MOST * self._promised)


class DeclinedDraft:
    """A declined draft, compared with what is emitted in its place.

    So a planner that verifies nothing still learns whether it should.

    Args:
        acceptance: learns from every token of it.
        calibration: learns from the whole, if the draft was declined for lack of calibration alone.
    """

    def __init__(self, acceptance: AcceptanceModel, calibration: PromiseCalibration) -> None:
        self._acceptance = acceptance
        self._calibration = calibration
        self.begin()

    def __bool__(self) -> bool:
        return bool(self._draft)

    def begin(self) -> None:
        """Starts a request: nothing is followed."""
        self._draft = NO_DRAFT
        self._stood = self._wanted = 0
        self._promised = 0.0

    def watch(self, draft: Draft, *, wanted: int = 0, promised: float = 0.0) -> None:
        """Watches a draft to its first miss.

        Args:
            draft: what was declined.
            wanted: how many of its tokens would have been verified on its word; 0 for none.
            promised: how many of these it expected to stand.
        """
        self._draft, self._stood = draft, 0
        self._wanted, self._promised = wanted, promised

    def follow(self, tokens: Sequence[int]) -> None:
        """Compares it with the tokens that were emitted next."""
        draft = self._draft
        for token, watched in zip(tokens, draft.tokens[self._stood :], strict=False):
            stood = token == watched
            self._acceptance.learn_token(draft, self._stood, stood=stood)
            self._stood += stood
            if not stood or self._stood == len(draft.tokens):
                if self._wanted:
                    self._calibration.settle(self._promised, min(self._stood, self._wanted))
                self.begin()
                return
