"""Answers that are known, and what a head guesses in them: simulated, or recorded from the bundled
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from akunu_py.bench import OWN
from akunu_py.bench.replay import KnownAnswer, ReplayCase
from akunu_py.bench.speedup import make_tasks
from akunu_py.bench.workloads import encode_samples, make_workloads
from akunu_py.decoding.draft_session import DraftSession, DraftTrimmer
from akunu_py.decoding.loop import Limits, run_alone
from akunu_py.decoding.target import ModelTarget
from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.base import Draft
from akunu_py.drafting.chain import Chain, Guess, Guesser
from akunu_py.drafting.guessing import HeadGuesser
from akunu_py.engine import Engine
from akunu_py.model.head import Head
from akunu_py.model.target_model import TargetModel
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.planner import FixedPlanner, Situation
from akunu_py.rounds import Round
from akunu_py.sampling.sampler import Sampler
from akunu_py.tokens import Origin
from benchmarks.records import progress_line

OWN_DEPTHS: Final = 8
OWN_TOKENS: Final = 192
LEFT_OUT: Final = 12
_SPREAD: Final = 1.2
"""The sum of the parameters of the beta distribution of probabilities: small, so that most of them
are near 0 or 1."""
_NOISE: Final = 0.1
"""The standard deviation of the reported probability from the true one."""


class KnownGuesses(Guesser):
    """A head that guesses what is known for each place in the answer."""

    name = Origin.HEAD

    def begin(self, prompt: Sequence[int], head_cache: object = None) -> None:
        self._emitted = self._guessed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._emitted += len(tokens)

    def first(self, limit: int) -> Guess | None:
        self._guessed = 0
        return self.guess(self._emitted, 0)

    def after(self, token: int) -> Guess | None:
        self._guessed += 1
        return self.guess(self._emitted, self._guessed)

    def stop(self) -> None:
        """Nothing is kept."""

    def guess(self, emitted: int, ahead: int) -> Guess | None:
        """What it guesses after so many tokens of the answer and so many guesses."""
        raise NotImplementedError


class SimulatedHead(KnownGuesses):
    """Knows the answer, and guesses it with a probability that is drawn for each position."""

    def __init__(self, answer: Sequence[int], right: float, seed: int) -> None:
        self._answer = answer
        self._right = right
        self._seed = seed

    def guess(self, emitted: int, ahead: int) -> Guess | None:
        at = emitted + ahead
        if at >= len(self._answer):
            return None
        draw = Random(f"{self._seed} {at} {len(self._answer)}")
        prob = draw.betavariate(_SPREAD * self._right, _SPREAD * (1.0 - self._right))
        is_right = draw.random() < prob
        reported_prob = max(0.0, min(1.0, draw.gauss(prob, _NOISE)))
        return Guess(
            self._answer[at] if is_right else self._answer[at] ^ 1, reported_prob
        )  # another token


class RecordedHead(KnownGuesses):
    """Guesses what a head guessed when it was asked after every token of the answer."""

    def __init__(self, guesses: Sequence[Sequence[Guess]]) -> None:
        self._guesses = guesses

    def guess(self, emitted: int, ahead: int) -> Guess | None:
        known = self._guesses[emitted] if emitted < len(self._guesses) else ()
        return known[ahead] if ahead < len(known) else None


class Recorder(HeadGuesser):
    """Notes all guesses."""

    def __init__(self, head: Head, sampler: Sampler) -> None:
        super().__init__(head, sampler)
        self.guesses: list[list[Guess]] = []

    def first(self, limit: int) -> Guess | None:
        self.guesses.append([])
        return self._noted(super().first(limit))

    def after(self, token: int) -> Guess | None:
        return self._noted(super().after(token))

    def _noted(self, guess: Guess | None) -> Guess | None:
        if guess is not None:
            self.guesses[-1].append(guess)
        return guess


class SimulatedChain(Chain):
    """Guesses that take the same time each."""

    def _spend(self, seconds: float) -> None:
        self.spent_s += self.guess_s
        self.guesses_s += self.guess_s


class TimedAnswer(KnownAnswer):
    """A known answer whose rounds take longer by the guesses before them."""

    def __init__(self, case: ReplayCase, curve: CostCurve, chain: Chain | None) -> None:
        super().__init__(case, curve, MAX_PLANNED_TOKENS)
        self._chain = chain
        self.total_s = 0.0

    def read(self, pending: Round) -> Round:
        outcome = super().read(pending)
        assert outcome.seconds is not None
        if self._chain is not None:
            outcome.seconds += self._chain.spent_s
        self.total_s += outcome.seconds
        return outcome


Known = tuple[ReplayCase, KnownGuesses]
"""A request, and what a head guesses in its answer."""


class EveryGuess(FixedPlanner):
    """Makes all guesses that may be made, and verifies them, or none, if it only records them."""

    def __init__(self, depths: int, *, only_records: bool = False) -> None:
        super().__init__(depths)
        self.depths = depths
        self._only_records = only_records

    def goes_on(self, *_: object) -> bool:
        return True

    def choose(self, draft: Draft, now: Situation) -> int:
        return 0 if self._only_records else min(now.limit, len(draft))

    def pipeline_gain(self, context: int) -> float:
        return -1.0


def guessed_rounds(
    model: TargetModel,
    case: ReplayCase,
    sampler: Sampler,
    head: HeadGuesser,
    *,
    planner: EveryGuess,
    most: int,
) -> Iterator[Round]:
    """The rounds of an answer of up to `most` tokens, with guesses of the head before each."""
    prompt, depths = list(case.prompt), planner.depths
    cache = model.make_cache(len(prompt) + most + depths)
    model.prefill(prompt[:-1], cache)
    session = DraftSession(
        planner=planner,
        trimmer=DraftTrimmer(case.end_tokens),
        chain=Chain(head, AcceptanceRates()),
        num_draft_tokens=depths,
    )
    session.begin(prompt, head_cache=cache.head)
    target = ModelTarget(model, cache, sampler, depths)
    return run_alone(target, session, prompt[-1], Limits(most, case.end_tokens))


def own_answers(engine: Engine, count: int) -> dict[str, list[Known]]:
    """The model's own answers to requests as in `bench speedup`, with the guesses of its head. The
    first dozen of each kind is left out: constants of the plan were chosen with those answers."""
    model, planner = engine.model, EveryGuess(OWN_DEPTHS, only_records=True)
    assert model.head is not None
    some = encode_samples(engine.tokenizer, make_workloads(LEFT_OUT + count))
    sets = {kind: cases[LEFT_OUT:] for kind, cases in some.items()}
    tasks, show = make_tasks(sets, OWN_TOKENS, (OWN,)), progress_line("own answers")
    found: dict[str, list[Known]] = {}
    for done, task in enumerate(tasks, start=1):
        case = task.case
        sampler = Sampler(task.sampling, case.prompt)
        head = Recorder(model.head, sampler)
        tokens = list[int]()
        for outcome in guessed_rounds(model, case, sampler, head, planner=planner, most=OWN_TOKENS):
            tokens += outcome.tokens
            tokens += [outcome.end_token] if outcome.end_token is not None else []
        own = ReplayCase(case.prompt, tokens, case.end_tokens)
        found.setdefault(task.kind, []).append((own, RecordedHead(head.guesses)))
        show(done, len(tasks))
    return found
