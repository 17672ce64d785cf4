"""Token ids, and what is said about tokens: their origin, log-probabilities, and common parts of
lists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

FIRST_BOUNDARY: Final = 1 << 31
"""Ids from here on end references; no vocabulary is this large.

A drafter that copies keeps the references and the prompt in one list. Each boundary occurs once, so
no match runs across it.
"""

_STRIDE: Final = 256


class Origin(StrEnum):
    """The origin of a draft, as users see it; empty for a token that was not drafted. A draft on
    which a network and a copy agreed counts as the copy."""

    NONE = ""
    COPIES = "copies"  # from the request and its references
    MEMORY = "memory"  # from projects and earlier requests
    HEAD = "head"  # the model's own
    MODEL = "draft model"
    GRAMMAR = "grammar"
    OTHER = "other"  # a drafter of the user's own


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences share from the start."""
    most = min(len(left), len(right))
    shared = 0
    while shared < most and left[shared : shared + _STRIDE] == right[shared : shared + _STRIDE]:
        shared += _STRIDE  # comparing slices is much faster than comparing tokens
    while shared < most and left[shared] == right[shared]:
        shared += 1
    return min(shared, most)


def agreement(tokens: Sequence[int], place: int, recent: Sequence[int]) -> int:
    """How many tokens before a place agree with `recent`, which has the last token first."""
    length = 0
    for token in recent if place >= len(recent) else recent[:place]:
        place -= 1
        if tokens[place] != token:
            break
        length += 1
    return length


def joined(references: Sequence[Sequence[int]], prompt: Sequence[int]) -> list[int]:
    """The references, each followed by a boundary, and then the prompt."""
    tokens: list[int] = []
    for number, reference in enumerate(references):
        tokens.extend(reference)
        tokens.append(FIRST_BOUNDARY + number)
    tokens.extend(prompt)
    return tokens


@dataclass(frozen=True, slots=True)
class LogprobRequest:
    """What to report about every forward pass: alternatives to each token (None: nothing), and
    whether of the distribution that tokens are `drawn` from.
    """

    logprobs: int | None = None
    drawn: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural log-probability of a token, and ids and those of the most likely ones at its
    position, the most likely first; the token itself is among them only if it is that likely.

    The distribution is the model's own: before bias, penalties, constraints, filters and
    temperature, as with vLLM (`raw_logprobs`) and OpenAI; or, if asked for, the one after these, as
    with llama.cpp's `post_sampling_probs`.
    """

    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The first id of a prompt, which nothing predicts, and an entry for each other id."""

    first: int
    following: tuple[TokenLogprob, ...]
