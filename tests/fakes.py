"""Small stand-ins for the parts around the one under test."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import numpy as np

from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.draft_session import DraftSession, DraftTrimmer
from akunu_py.decoding.loop import Limits, run_alone
from akunu_py.decoding.target import ModelTarget
from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.drafting.chain import Chain, Guesser
from akunu_py.engine import Engine
from akunu_py.events import Completion
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Options
from akunu_py.planning.planner import FixedPlanner, Planner, Situation
from akunu_py.planning.row_class import RowClass
from akunu_py.rounds import Round
from akunu_py.sampling.random import GOLDEN_GAMMA, draw, mix64, uniform
from akunu_py.sampling.sampler import Sampler


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
        self.num_seen = 0
        self.verified: list[tuple[int, int]] = []

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        assert len(prompt) == self._prompt_length
        self.num_seen = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self.num_seen += len(tokens)

    def propose(self, limit: int) -> Draft:
        if self._random.random() < self._silence:
            return NO_DRAFT
        ahead = self._answer[self.num_seen : self.num_seen + limit]
        guesses = [token if self._random.random() >= self._error else token ^ 1 for token in ahead]
        return Draft(tuple(guesses), "oracle", len(guesses))

    def feedback(self, draft: Draft, accepted: int) -> None:
        self.verified.append((len(draft), accepted))


class GuessingDrafter(Drafter):
    """As many guesses of a network as it may draft, without a plan."""

    def __init__(self, guesser: Guesser) -> None:
        self._guesser = guesser
        self.extend = guesser.extend  # type: ignore[method-assign]

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._guesser.begin(prompt)

    def propose(self, limit: int) -> Draft:
        tokens, guess = list[int](), self._guesser.first(limit)
        while guess is not None:
            tokens.append(guess.token)
            guess = self._guesser.after(guess.token) if len(tokens) < limit else None
        if tokens:
            self._guesser.stop()
        return Draft(tuple(tokens), self._guesser.name)


class BigramDrafter(Drafter):
    """Draws each token from a distribution that depends on the token before, and tells it.

    Args:
        text: what the distributions are counted on; every id gets one count more.
        vocabulary: how many ids there are.
        temperature: of the distributions.
        seed: of all draws.
    """

    def __init__(
        self, text: Sequence[int], vocabulary: int, *, temperature: float = 1.0, seed: int = 0
    ) -> None:
        counts = np.ones((vocabulary, vocabulary))
        np.add.at(counts, (np.asarray(text[:-1]), np.asarray(text[1:])), 1)
        rows = counts ** (1 / temperature)
        self._rows = (rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)
        self._seed = seed
        self._tokens: list[int] = []

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._tokens = list(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def propose(self, limit: int) -> Draft:
        drawn, rows, known = list[int](), [], self._tokens[-1]
        seed = mix64(self._seed + len(self._tokens) * GOLDEN_GAMMA)
        while len(drawn) < limit:
            rows.append(self._rows[known])
            known = draw(rows[-1], uniform(seed, len(drawn)))
            drawn.append(known)
        return Draft(tuple(drawn), "bigram", 1, np.stack(rows)) if drawn else NO_DRAFT


def drafted_answer(
    engine: Engine, drafter: Drafter, prompt: str | list[int], options: Options
) -> Completion:
    """An answer whose drafts, of five tokens if the options do not say, come from a drafter."""
    engine.speculation.add_drafter("told", lambda _: drafter)
    most = options.num_draft_tokens or 5
    return engine.generate(prompt, replace(options, drafter="told", num_draft_tokens=most))


def rounds_of(
    model: TargetModel,
    cache: KVCache,
    sampler: Sampler,
    known: int,
    limits: Limits,
    *,
    drafter: Drafter | None = None,
    num_draft_tokens: int = 4,
    planner: Planner | None = None,
    trimmer: DraftTrimmer | None = None,
    chain: Chain | None = None,
    rows: RowClass | int | None = None,
) -> Iterator[Round]:
    """The shipped loop on a model; plain decoding without a drafter or a chain.

    They have begun; they draft a fixed number of tokens if there is no planner.
    """
    session = DraftSession()
    if drafter is not None or chain is not None:
        session = DraftSession(
            drafter,
            planner or FixedPlanner(num_draft_tokens),
            trimmer or DraftTrimmer(limits.end_tokens),
            sampler.constraint,
            chain=chain,
            num_draft_tokens=num_draft_tokens,
        )
    target = ModelTarget(
        model,
        cache,
        sampler,
        session.num_draft_tokens,
        rows=rows,
    )
    return run_alone(target, session, known, limits)


class MoodyPlanner(Planner):
    """Looks when it likes, chooses any length that is allowed, and keeps what it is told.

    Args:
        seed: of its moods.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.saving = 0.5
        self.chosen: list[int] = []
        self.rounds: list[Round] = []

    def pipeline_gain(self, context: int) -> float:
        return 1.0

    def should_propose(self) -> bool:
        return self._random.random() < 0.9

    def choose(self, draft: Draft, now: Situation) -> int:
        assert 0 < len(draft) <= now.limit
        self.chosen.append(self._random.randrange(len(draft) + 1))
        return self.chosen[-1]

    def observe(self, outcome: Round) -> None:
        self.rounds.append(outcome)


class EveryOther(MoodyPlanner):
    """Proposes every other time."""

    def __init__(self) -> None:
        super().__init__(0)
        self._asked = 0

    def should_propose(self) -> bool:
        self._asked += 1
        return self._asked % 2 == 0
