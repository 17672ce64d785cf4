"""Verification: how much of a draft stands, and which token follows it. Pure functions.

A target's choices, or its distributions, come in with a draft; a verdict goes out. What is emitted
has the target's distribution, whatever was drafted, on one condition: how far a draft with
probabilities is verified may depend on its tokens only up to there. (To drop a token because of
which one it is would verify those that are left more often than they were drawn.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from akunu_py.drafting.base import Draft
from akunu_py.sampling.random import draw

Rows = npt.NDArray[np.floating[Any]]
"""Distributions over the vocabulary, one a row."""

Uniforms = Callable[[int], tuple[float, float]]
"""For the token after the draft's first `i`: two independent numbers in [0, 1)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided about one round.

    Attributes:
        accepted: how many drafts stand, from the first on.
        next_token: the token after them, which is the target's own.
    """

    accepted: int
    next_token: int


def needs_distributions(draft: Draft, *, greedy: bool) -> bool:
    """Which verifier serves a draft: `accept_or_resample` if this is true, else `match_choices`.

    A one-hot draft is matched: it stands as often either way, and matching emits what plain
    decoding would have drawn, so that a seed gives the same text whatever is drafted, by whom, and
    how much at a time. A draft that was drawn from a distribution stands more often by rejection;
    a seed then repeats a text only for the same drafter and the same lengths of drafts, because a
    position that comes after a draft is drawn from the target alone and one within it is not. A
    greedy target matches every draft: both ways accept the same.
    """
    return draft.probabilities is not None and not greedy


def match_choices(choices: Sequence[int], drafts: Sequence[int]) -> Verdict:
    """Accepts the longest prefix of the draft that equals the target's own choices.

    With argmax choices this is greedy verification. With choices drawn from the target's
    distribution it is sample-and-match: what is emitted was always drawn from the target, and a
    draft `d` stands with probability `p(d)`, so the distribution is the target's exactly.

    Args:
        choices: the token that the target chose after the known one and after each draft;
            `len(drafts) + 1` of them.
        drafts: the guesses.
    """
    accepted = 0
    while accepted < len(drafts) and choices[accepted] == drafts[accepted]:
        accepted += 1
    return Verdict(accepted, choices[accepted])


def accept_or_resample(
    target: Rows, drafts: Sequence[int], proposal: Rows | None, uniforms: Uniforms
) -> Verdict:
    """Accepts a draft `d` with probability `min(1, p(d) / q(d))`, and corrects the first to fall.

    The correction is drawn from the positive part of `p - q`; after a draft that stood whole, the
    bonus is drawn from `p`. Source: Leviathan, Kalman and Matias (2023); Chen et al. (2023).

    Args:
        target: `p`, of shape `[len(drafts) + 1, vocabulary]`.
        drafts: the guesses.
        proposal: `q`, of shape `[len(drafts), vocabulary]`, row `i` the exact distribution that
            `drafts[i]` was drawn from; None if each draft was certain to be what it is.
        uniforms: the randomness; it must not have been used to draw the drafts.
    """
    for index, token in enumerate(drafts):
        to_accept, to_correct = uniforms(index)
        likely = 1.0 if proposal is None else float(proposal[index, token])
        if to_accept * likely >= target[index, token]:
            corrected = draw(_residual(target[index], token, proposal, index), to_correct)
            return Verdict(index, corrected)
    _, to_choose = uniforms(len(drafts))
    return Verdict(len(drafts), draw(target[len(drafts)], to_choose))


def _residual(target: Rows, token: int, proposal: Rows | None, index: int) -> Rows:
    """The positive part of `p - q`, not normalised."""
    if proposal is None:
        rest = target.copy()
        rest[token] = 0
    else:
        rest = np.maximum(target - proposal[index], 0)
    # Nothing is left only where p equals q but for rounding; then p itself is right.
    return rest if rest.any() else target
