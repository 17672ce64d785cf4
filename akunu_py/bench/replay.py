"""Replay: what a drafter would have brought on a text that is already known, without a model.

The reference text plays the target (teacher forcing): a round drafts, keeps the drafted tokens
that agree with the reference, and emits one token more, as greedy verification would. Token ids
come in, counts go out; knows drafters and nothing of tokenizers, models or clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from akunu_py.drafting.base import Draft, Drafter


@dataclass(frozen=True, slots=True)
class ReplayCase:
    """One request: the prompt's ids, and the ids that a target would answer with."""

    prompt: Sequence[int]
    reference: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What the rounds of one or more requests came to.

    Attributes:
        forwards: verifying forwards; a request's first token is the prefill's and costs none.
        emitted: tokens that those forwards emitted.
        drafted: tokens drafted and verified.
        accepted: drafted tokens that stood.
    """

    forwards: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: ReplayResult) -> ReplayResult:
        return ReplayResult(
            self.forwards + other.forwards,
            self.emitted + other.emitted,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )

    @property
    def tokens_per_forward(self) -> float:
        """Emitted tokens a forward; 1.0 is plain decoding."""
        return self.emitted / self.forwards if self.forwards else 1.0

    @property
    def mean_accepted(self) -> float:
        """Accepted tokens a forward."""
        return self.accepted / self.forwards if self.forwards else 0.0

    @property
    def mean_drafted(self) -> float:
        """Drafted tokens a forward."""
        return self.drafted / self.forwards if self.forwards else 0.0

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that stood; 0.0 where none was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


def replay_case(
    drafter: Drafter, case: ReplayCase, limit: int, end_tokens: frozenset[int] = frozenset()
) -> ReplayResult:
    """Replays one request with drafts of at most `limit` tokens.

    Drafts are cut after an end token, as the engine cuts them before it verifies. Otherwise the
    drafter is not told where the reference ends: what it drafts beyond counts as drafted.
    """
    reference = case.reference
    drafter.begin(case.prompt)
    drafter.extend(reference[:1])
    position = 1
    result = ReplayResult()
    while position < len(reference):
        draft = _cut_at_end(drafter.propose(limit), end_tokens)
        accepted = 0
        for token, wanted in zip(draft.tokens, reference[position:], strict=False):
            if token != wanted:
                break
            accepted += 1
        drafter.feedback(draft, accepted)
        emitted = reference[position : position + accepted + 1]
        drafter.extend(emitted)
        position += len(emitted)
        result += ReplayResult(1, len(emitted), len(draft), accepted)
    return result


def replay(
    make: Callable[[], Drafter],
    cases: Iterable[ReplayCase],
    limit: int,
    end_tokens: frozenset[int] = frozenset(),
) -> ReplayResult:
    """Replays requests, each on a drafter of its own: what one request alone gives."""
    results = (replay_case(make(), case, limit, end_tokens) for case in cases)
    return sum(results, ReplayResult())


def _cut_at_end(draft: Draft, end_tokens: frozenset[int]) -> Draft:
    for index, token in enumerate(draft.tokens):
        if token in end_tokens:
            return draft.cut(index + 1)
    return draft
