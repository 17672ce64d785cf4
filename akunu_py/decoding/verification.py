"""Verification: how many draft tokens are accepted, and which token follows. Pure functions.

A target's choices or distributions come in with a draft; a verdict goes out. The emitted tokens
have the target's distribution whatever was drafted, on one condition for drafts with probabilities:
whether token `i` is verified may depend only on the tokens before `i`. If a draft were cut or
declined because of the token itself, the remaining tokens would no longer follow `q`.
`DraftSession.propose` keeps to this.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from akunu_py.drafting.base import Draft
from akunu_py.sampling.random import draw

Rows = npt.NDArray[np.floating[Any]]
"""Distributions over the vocabulary, one per row."""

Uniforms = Callable[[int], tuple[float, float]]
"""For the token after the draft's first `i`: two independent numbers in [0, 1)."""


class Verdict(NamedTuple):
    """How many draft tokens are accepted, and the target's own token after them."""

    accepted: int
    next_token: int


def needs_distributions(draft: Draft, *, greedy: bool) -> bool:
    """Which verifier to use for a draft: `accept_or_resample` if true, else `match_choices`.

    Matching emits what plain decoding would have drawn, so a seed gives the same text whatever was
    drafted. A one-hot draft is accepted equally often both ways, and so is any draft if the target
    is greedy. A draft drawn with its own random numbers is accepted more often by rejection
    sampling; a seed then repeats a text only if the drafts are the same.
    """
    return draft.probabilities is not None and not greedy


def match_choices(choices: Sequence[int], draft_tokens: Sequence[int]) -> Verdict:
    """Accepts the longest prefix of the draft that equals the target's own choices.

    With argmax choices, this is greedy verification. With choices drawn from the target's
    distribution, it is sample-and-match: every emitted token was drawn from the target, and a draft
    token `d` is accepted with probability `p(d)`. `choices` are the target's tokens after the known
    one and after each draft token.
    """
    accepted = 0
    while accepted < len(draft_tokens) and choices[accepted] == draft_tokens[accepted]:
        accepted += 1
    return Verdict(accepted, choices[accepted])


def accept_or_resample(
    target: Rows, draft_tokens: Sequence[int], proposal: Rows, uniforms: Uniforms
) -> Verdict:
    """Accepts `d` with probability `min(1, p(d) / q(d))`; replaces the first rejected token by one
    from the positive part of `p - q`, or, if all are accepted, draws the bonus token from `p`.

    `p` is `target`, `[drafted + 1, vocabulary]`; `q` is `proposal`, `[drafted, vocabulary]`, the
    exact distributions the draft was drawn from, with other `uniforms`. Source: Leviathan, Kalman
    and Matias (2023); Chen et al. (2023).
    """
    for index, token in enumerate(draft_tokens):
        to_accept, to_correct = uniforms(index)
        # Not `>=`, so that tokens with NaN from a broken draft model are rejected.
        if not to_accept * float(proposal[index, token]) < target[index, token]:
            return Verdict(index, draw(_residual(target[index], proposal[index]), to_correct))
    _, to_choose = uniforms(len(draft_tokens))
    return Verdict(len(draft_tokens), draw(target[len(draft_tokens)], to_choose))


def _residual(target: Rows, proposal: Rows) -> Rows:
    rest = np.fmax(target - proposal, 0)
    # Nothing is left only if p equals q up to rounding, or q is NaN; then p itself is right.
    return rest if rest.any() else target
