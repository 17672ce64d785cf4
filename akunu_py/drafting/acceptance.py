"""How likely drafted tokens are to be accepted: `AcceptanceRates`, learnt from earlier outcomes,
and the kinds of evidence that `auto` has, with their fitted priors.

There is a rate for each kind of evidence. It starts from a prior, moves with every outcome, and
forgets old outcomes. It knows no tokens: drafters and planners say what evidence a token has. For
`auto`, a token falls into a bucket by its evidence (its source, and how strong that is) and its
position in the draft. How often the token followed the one before it, and what other texts say,
change its odds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from akunu_py.drafting.base import Draft

PRIOR: Final = 0.6
"""The rate of an unknown kind: high enough to be tried on a fast machine."""

PRIOR_WEIGHT: Final = 4.0
"""A prior counts as much as this many outcomes."""

MEMORY: Final = 64.0
"""A rate is the mean of at most this many outcomes, so that older ones fade."""

FORGOTTEN: Final = 0.005
"""Each time a kind is not tried, its rate regains this fraction of its distance from the prior."""

_MIN_PROB, _MAX_PROB = 0.002, 0.998
_MAX_MATCH_LENGTH: Final = 63


class AcceptanceRates:
    """What was learnt about acceptance; it outlives requests, which may share it.

    The rates of kinds that are not among `priors` start at `PRIOR`.
    """

    def __init__(self, priors: Mapping[Hashable, float] = MappingProxyType({})) -> None:
        self._priors = priors
        self._rates = dict(priors)
        self._outcomes: dict[Hashable, float] = {}

    def of(self, kind: Hashable, odds: float = 1.0) -> float:
        """The probability that a token with this kind of evidence is accepted if those before it
        are. Other evidence multiplies its odds."""
        prob = self._rates.get(kind, PRIOR)
        odds *= prob
        return odds / (1.0 - prob + odds)

    def learn(self, kind: Hashable, accepted: bool, odds: float = 1.0) -> None:
        """Learns from the outcome of a token whose predecessors in the draft were all right."""
        outcomes = self._outcomes.get(kind, PRIOR_WEIGHT) + 1.0
        rate = self._rates.get(kind, PRIOR) + (accepted - self.of(kind, odds)) / outcomes
        self._rates[kind] = max(_MIN_PROB, min(_MAX_PROB, rate))
        self._outcomes[kind] = min(outcomes, MEMORY)

    def forget(self, kind: Hashable) -> None:
        """Notes that no token of this kind was tried: a rate below its prior slowly returns there,
        and is tried again some day."""
        prior, outcomes = self._priors.get(kind, PRIOR), self._outcomes.get(kind, PRIOR_WEIGHT)
        if (rate := self._rates.get(kind, PRIOR)) < prior:
            self._rates[kind] = rate + FORGOTTEN * (prior - rate)
            self._outcomes[kind] = outcomes + FORGOTTEN * (PRIOR_WEIGHT - outcomes)

    def accept_probs(self, draft: Draft) -> Sequence[float]:
        """The probability for each token of a draft; the drafter's own estimates, if it has any."""
        if len(draft.accept_probs) == len(draft):
            return [
                prob if _MIN_PROB <= prob <= _MAX_PROB else _within(prob)
                for prob in draft.accept_probs
            ]
        return [self.of(_kind(draft))] * len(draft)

    def learn_draft(self, draft: Draft, accepted: int) -> None:
        """Learns how many tokens were accepted, unless the drafter has estimates of its own."""
        if len(draft.accept_probs) != len(draft):
            for position in range(min(accepted + 1, len(draft))):
                self.learn(_kind(draft), position < accepted)


def _kind(draft: Draft) -> Hashable:
    """The source, and the match length: 0, 1, 2-3, 4-7 ... 32 and more."""
    return draft.source, max(0, min(draft.match_length, _MAX_MATCH_LENGTH)).bit_length()


def _within(prob: float) -> float:
    """A probability that is neither 0 nor 1; NaN counts as the prior."""
    return max(_MIN_PROB, min(_MAX_PROB, prob)) if prob == prob else PRIOR  # noqa: PLR0124


POSITIONS: Final = 6

# The class of each run and of each match length, up to those that share the last one.
_COPY_RUNS: Final = (0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3)
_MATCH_LENGTHS: Final = (0, 0, 1, 2, 3, 3, 4, 4, 4, 5)

_RECALL_LENGTHS: Final = (0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3)

_SUPPORTS: Final = (0.02, 0.1, 0.25, 0.5, 0.75, 1.0)

_COPY: Final = 0
_MATCH: Final = _COPY + 4
_UNSURE_MATCH: Final = _MATCH + 12
_WHOLE_ANSWER: Final = _UNSURE_MATCH + 2
_RESUMED: Final = _WHOLE_ANSWER + 4
_REWRITE: Final = _RESUMED + 6
EVIDENCE: Final = _REWRITE + 2
"""How many kinds of evidence there are in a request and its references."""
TIERS: Final = 2
"""Kinds of other texts: the files of projects, and earlier requests."""
FIRST_REWRITE: Final = POSITIONS * _REWRITE
"""From here on, the buckets are of rewrites and recalls, which bigram affinity does not change."""

# The probabilities below were fitted by `python -m benchmarks.fit_expectations --data DATA`, on the
# even-numbered requests of `benchmarks/replay_data.py` under ember's tokenizer.

FIRST: Final = (
    # copy: runs of up to 8, 9-11, 12-16, 17 and more
    *(0.61, 0.80, 0.94, 0.97),
    # match: lengths of 1, 2, 3, 4-5, 6-8, 9 and more; all occurrences agree, there is only one
    *(0.36, 0.25),
    *(0.69, 0.50),
    *(0.70, 0.54),
    *(0.78, 0.70),
    *(0.90, 0.78),
    *(0.88, 0.88),
    # unsure match, of any length: half of the occurrences agree, fewer
    *(0.36, 0.30),
    # match of the whole answer so far: all, only one, half, fewer
    *(0.87, 0.93, 0.97, 0.21),
    # resumed: 1 token agrees, or more; at its place, within 3 tokens, further away
    *(0.46, 0.37, 0.24),
    *(0.81, 0.75, 0.44),
    # rewrite: not begun, begun
    *(0.94, 0.99),
)
"""How likely the first token of a draft is to be accepted, for each kind of evidence."""

RECALLED: Final = (
    # lengths of 1-2, 3-5, 6-12, 13 and more; shares of 0.0-0.1 to 0.9-1.0
    *(0.01, 0.02, 0.05, 0.07, 0.10, 0.12, 0.18, 0.21, 0.33, 0.50),
    *(0.02, 0.03, 0.04, 0.10, 0.12, 0.20, 0.36, 0.42, 0.57, 0.73),
    *(0.03, 0.03, 0.06, 0.30, 0.15, 0.34, 0.53, 0.51, 0.67, 0.82),
    *(0.05, 0.59, 0.15, 0.94, 0.39, 0.86, 0.83, 0.90, 0.90, 0.96),
)
"""The same for the most likely token that a project's memory recalls, if the request does not have
the same. This and the two tables below were fitted at every token of held-out function bodies of
seven packages, by `python -m benchmarks.project_memory --fit`."""

SUPPORT_ODDS: Final = (
    *(0.75, 0.81, 1.06, 1.50, 2.98, 6.02),
    *(0.41, 0.59, 0.85, 1.51, 4.08, 10.63),
    *(0.24, 0.43, 0.50, 1.04, 4.90, 10.56),
    *(0.02, 0.08, 0.16, 56.33, 19.12, 24.89),
)
"""The factors by which a recall changes the odds of a request's token: rows by the length of its
match as in `RECALLED`, columns by this token's share there, up to each of `_SUPPORTS`."""

RIVAL_ODDS: Final = (3.51, 4.02, 1.31, 1.38, 0.97, 0.64, 0.15)
"""The factors by which the request changes the odds of a recalled token: if it has no token any
more (`LEFT`), had none from the start (`SILENT`), or has another one, which is right with a
probability of up to 0.2, 0.4, 0.6, 0.8, 1 (`rival_class`). So a recall counts less if the request
itself has seen the last tokens and continues differently."""

AFFINITY_ODDS: Final = (
    *(1.81, 6.00, 16.79),
    *(0.36, 1.17, 1.57),
    *(0.64, 0.72, 1.41),
    *(0.37, 0.40, 0.61),
)
"""The factors by which a bigram affinity (`bigram_affinity_of`) changes the odds: rows by how often
other tokens followed, columns by how often the same one did. Rewrites are exempt, because they
replace what followed so far, and recalls, because they come from other texts."""

LEFT: Final = 0
SILENT: Final = 1
"""The indexes in `RIVAL_ODDS` for a request that has no token any more, or had none at all."""


def copy_evidence(run: int) -> int:
    """The evidence of a copy of `run` tokens."""
    return _COPY + _COPY_RUNS[min(run, 17)]


def match_evidence(length: int, whole_answer: bool) -> tuple[int, int, int, int]:
    """The evidence, by `Consensus`, of what followed occurrences of the last `length` tokens.

    A match of the whole answer so far is short only because the answer is short, and answers to
    similar requests often start alike.
    """
    if whole_answer:
        return _WHOLE_ANSWER, _WHOLE_ANSWER + 1, _WHOLE_ANSWER + 2, _WHOLE_ANSWER + 3
    first = _MATCH + 2 * _MATCH_LENGTHS[min(length, 9)]
    return first, first + 1, _UNSURE_MATCH, _UNSURE_MATCH + 1


def resumed_evidence(length: int, distance: int) -> int:
    """The evidence of a resumed copy, by the fields of a `Resumption`."""
    return _RESUMED + 3 * (length > 1) + min(distance, 2)


def recall_evidence(length: int, share: float, tier: int = 0) -> int:
    """The evidence of a recall: how long its match is, and the share of its most likely token.

    Each of the `TIERS` learns on its own, from the same priors.
    """
    first = EVIDENCE + tier * len(RECALLED)
    return first + 10 * _RECALL_LENGTHS[min(length, 13)] + min(int(10 * share), 9)


def support_class(length: int, share: float) -> int:
    """The class in `SUPPORT_ODDS` of a request's token, by the length of the longest match in other
    texts and the token's share of what follows there; 0 if it never follows."""
    row = len(_SUPPORTS) * _RECALL_LENGTHS[min(length, 13)]
    return row + bisect_left(_SUPPORTS, share)


def rival_class(prob: float) -> int:
    """The class in `RIVAL_ODDS` of a recalled token whose rival has this probability."""
    return 2 + min(int(5 * prob), 4)


def rewrite_evidence(begun: bool) -> int:
    """The evidence of a rewrite; `begun`: its first new token was emitted."""
    return _REWRITE + begun


def bucket(evidence: int, position: int) -> int:
    """The bucket of a drafted token: its evidence, and position 0, 1, 2-3, 4-7, 8-15 or later."""
    # No `min` here: it would take longer than the rest, and this runs for every drafted token.
    bits = position.bit_length()
    return POSITIONS * evidence + (bits if bits < POSITIONS else POSITIONS - 1)


def priors() -> dict[Hashable, float]:
    """The prior of each bucket: the same at all positions."""
    kinds = (*FIRST, *(TIERS * RECALLED))
    return dict(enumerate(first for first in kinds for _ in range(POSITIONS)))
