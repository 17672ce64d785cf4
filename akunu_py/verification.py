"""Verification: how much of a draft stands, and which token follows it. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided about one round.

    Attributes:
        accepted: how many drafts stand, from the first on.
        next_token: the token after them, which is the target's own.
        is_bonus: True if every draft stood, so that `next_token` came on top; False if it
            corrects the first draft that fell.
    """

    accepted: int
    next_token: int
    is_bonus: bool


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
    return Verdict(accepted, choices[accepted], is_bonus=accepted == len(drafts))
