"""Sequences that decode together, for the tests of batches and of joined caches."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any

import pytest

from akunu_py.decoding.batch import Batch, Member
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Limits
from akunu_py.decoding.target import ModelTarget
from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Sampling
from akunu_py.planning.planner import Planner, Situation
from akunu_py.rounds import Round
from akunu_py.sampling.sampler import Sampler

SMALLEST: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 16, "vocab_size": 64,
    "num_attention_heads": 2, "head_dim": 8,
}  # fmt: skip
"""A model whose forwards take no time."""


@cache
def prompt_of(number: int) -> list[int]:
    draw = Random(number)
    return [draw.randrange(64) for _ in range(1 + 7 * number)]


class Repeating(Drafter):
    """Proposes the same draft each time."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def propose(self, limit: int) -> Draft:
        return self.draft.cut(min(limit, len(self.draft)))


class Told(Planner):
    """Verifies whole drafts, and says that a step ahead gains what it was told."""

    saving = 0.0

    def __init__(self, gain: float) -> None:
        self._gain = gain

    def pipeline_gain(self, context: int) -> float:
        return self._gain

    def should_propose(self) -> bool:
        return True

    def choose(self, draft: Draft, now: Situation) -> int:
        return min(len(draft), now.limit)


def member_of(
    model: TargetModel,
    number: int = 0,
    draft: Draft | Drafter = NO_DRAFT,
    gain: float = -1.0,
    capacity: int = 128,
) -> Member:
    """A greedy sequence; one that is given a draft drafts that each time."""
    prompt = prompt_of(number)
    held = model.make_cache(capacity)
    model.prefill(prompt[:-1], held)
    target = ModelTarget(model, held, Sampler(Sampling()), 8)
    drafter = Repeating(draft) if isinstance(draft, Draft) else draft
    session = DraftSession(drafter, Told(gain), num_draft_tokens=8)
    return Member(target, session, prompt[-1], Limits(100, frozenset()))


def rounds_of(batch: Batch, members: Sequence[Member], times: int = 1) -> list[Round]:
    """What the last of some rounds gives each; none may fail."""
    found = list[Round]()
    for _ in range(times):
        outcomes = batch.advance(members)
        found = [one for one in outcomes if isinstance(one, Round)]
        assert len(found) == len(members), outcomes
    return found


@contextmanager
def joining(after: int, most_padding: float = 99.0) -> Iterator[None]:
    """Caches are joined after so many steps together, whatever their lengths if padding may be as
    much as that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("akunu_py.decoding.batch._JOIN_FROM", 2)
        patch.setattr("akunu_py.decoding.batch._JOIN_AFTER", after)
        patch.setattr("akunu_py.cache.batched._MOST_PADDING", most_padding)
        yield
