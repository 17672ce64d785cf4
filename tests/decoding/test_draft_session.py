"""What a drafter is told of a text, and when."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from akunu_py.cache.kv_cache import PreallocatedKVCache
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.planning.planner import RoundReport
from tests.fakes import MoodyPlanner, draft_session

CACHE = cast(PreallocatedKVCache, SimpleNamespace(room=100, length=50))


class Diary:
    """A drafter that writes down what it is told and when it is asked."""

    def __init__(self) -> None:
        self.entries: list[object] = []

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self.entries.append("begin")

    def extend(self, tokens: Sequence[int]) -> None:
        self.entries.append(list(tokens))

    def propose(self, limit: int) -> Draft:
        self.entries.append("propose")
        return NO_DRAFT

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass


class OddLooks(MoodyPlanner):
    """Looks every other time."""

    def __init__(self) -> None:
        super().__init__(0)
        self._asked = 0

    def should_pipeline(self, context: int) -> bool:
        return True

    def should_propose(self, *, pipelined: bool) -> bool:
        self._asked += 1
        return self._asked % 2 == 0


def report(*tokens: int) -> RoundReport:
    return RoundReport(NO_DRAFT, tokens, 0, 50, None, True)


def test_tokens_that_went_by_unlooked_are_told_before_the_next_proposal() -> None:
    diary = Diary()
    steps = draft_session(diary, planner=OddLooks())
    steps.begin([1, 2])
    for token in (3, 4, 5, 6, 7):
        steps.learn(report(token))
        steps.propose(CACHE, 10, pipelined=True)
    assert diary.entries == ["begin", [3, 4], "propose", [5, 6], "propose"]
    steps.begin([1])
    assert diary.entries[-2:] == [[7], "begin"]
