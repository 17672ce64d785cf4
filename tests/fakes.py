"""Small stand-ins for the parts around the one under test."""

from collections.abc import Sequence
from random import Random

from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.draft_trimmer import DraftTrimmer
from akunu_py.decoding.exactness import TieBreaker
from akunu_py.decoding.token_buffer import TokenBuffer
from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.planning.planner import FixedPlanner, Planner, RoundReport
from akunu_py.sampling.constraint import Constraint


class OracleDrafter:
    """Knows the answer; guesses a random stretch of it, sometimes wrongly, sometimes not at all.

    Args:
        prompt_length: where the answer starts.
        answer: the tokens that the target will emit.
        seed: of its moods.
        error: how likely each guess is to be wrong.
        silence: how likely it is to propose nothing.
    """

    def __init__(
        self,
        prompt_length: int,
        answer: Sequence[int],
        *,
        seed: int = 0,
        error: float = 0.0,
        silence: float = 0.0,
    ) -> None:
        self._prompt_length = prompt_length
        self._answer = list(answer)
        self._random = Random(seed)
        self._error = error
        self._silence = silence
        self._seen = 0
        self.verified: list[tuple[int, int]] = []

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        assert len(prompt) == self._prompt_length
        self._seen = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._seen += len(tokens)

    def propose(self, limit: int) -> Draft:
        if self._random.random() < self._silence:
            return NO_DRAFT
        ahead = self._answer[self._seen : self._seen + limit]
        guesses = [token if self._random.random() >= self._error else token + 1 for token in ahead]
        return Draft(tuple(guesses), "oracle", len(guesses))

    def feedback(self, draft: Draft, accepted: int) -> None:
        self.verified.append((len(draft), accepted))


def draft_session(
    drafter: Drafter,
    max_drafts: int = 4,
    *,
    planner: Planner | None = None,
    ends: frozenset[int] = frozenset(),
    tie_breaker: TieBreaker | None = None,
    constraint: Constraint | None = None,
) -> DraftSession:
    """What decoding needs around a drafter: a fixed number of drafts, unless told otherwise."""
    return DraftSession(
        drafter,
        planner or FixedPlanner(max_drafts),
        TokenBuffer(max_drafts),
        DraftTrimmer(ends),
        tie_breaker,
        constraint,
    )


class MoodyPlanner:
    """Looks when it likes, chooses any length that is allowed, and keeps what it is told.

    Args:
        seed: of its moods.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.chosen: list[int] = []
        self.reports: list[RoundReport] = []

    def begin(self) -> None:
        pass

    def should_pipeline(self, context: int) -> bool:
        return True

    def should_propose(self, *, pipelined: bool) -> bool:
        return self._random.random() < 0.9

    def choose(self, draft: Draft, *, context: int, limit: int, pipelined: bool) -> int:
        assert 0 < len(draft) <= limit
        self.chosen.append(self._random.randrange(len(draft) + 1))
        return self.chosen[-1]

    def observe(self, report: RoundReport) -> None:
        self.reports.append(report)
