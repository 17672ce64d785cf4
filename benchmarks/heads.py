"""What a model's head brings beside copies on Apple's chips, by how often its guesses are right.

    python -m benchmarks.heads --data DATA [--quick]

A simulation: recorded answers are replayed in the shipped loop with published costs of forward
passes, and with a head that is right with a probability which it roughly knows itself: mostly it is
nearly sure or nearly lost, as heads are. A guess costs a share of a step. Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Final

from akunu_py.bench.replay import KnownAnswer, ReplayCase
from akunu_py.calibration.cost_store import published_curves
from akunu_py.decoding.draft_session import DraftSession, DraftTrimmer
from akunu_py.decoding.loop import Limits, run_alone
from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import Drafter, NoDrafter
from akunu_py.drafting.chain import Chain, Guess, Guesser, chain_priors
from akunu_py.drafting.evidence import priors
from akunu_py.model.loading import load_tokenizer
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.planner import DraftPlanner
from akunu_py.round import Round
from akunu_py.tokens import Origin
from benchmarks.records import markdown_table, options_of, progress_line, record
from benchmarks.replay_data import read_sets

CHIPS: Final = ("m4-pro", "m4-pro-8b", "m3-max", "m5-max", "m3-ultra")
SETS: Final = ("edits", "chats")
RIGHT: Final = (0.45, 0.6, 0.8)
SHARES: Final = {"27B": 0.06, "9B": 0.14, "35B-A3B": 0.35}
"""What a guess costs, in steps: a layer and an output matrix of 248,000 tokens, of models with
dense layers and of one with experts."""
CONTESTANTS: Final = ("copies", "head", "both")
_SPREAD: Final = 1.2
_NOISE: Final = 0.1


class SimulatedHead(Guesser):
    """Knows the answer, and guesses it with a probability that is drawn for each position."""

    name = Origin.HEAD

    def __init__(self, right: float, seed: int) -> None:
        self._right = right
        self._seed = seed
        self._answer: Sequence[int] = ()

    def know(self, case: ReplayCase) -> None:
        self._answer = case.reference

    def begin(self, prompt: Sequence[int], read: object = None) -> None:
        self._emitted = self._guessed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._emitted += len(tokens)

    def first(self, limit: int) -> Guess | None:
        self._guessed = 0
        return self._guess()

    def after(self, token: int) -> Guess | None:
        return self._guess()

    def stop(self) -> None:
        """Nothing is kept."""

    def _guess(self) -> Guess | None:
        at = self._emitted + self._guessed
        self._guessed += 1
        if at >= len(self._answer):
            return None
        draw = Random(f"{self._seed} {at} {len(self._answer)}")
        prob = draw.betavariate(_SPREAD * self._right, _SPREAD * (1.0 - self._right))
        is_right = draw.random() < prob
        told = max(0.0, min(1.0, draw.gauss(prob, _NOISE)))
        return Guess(self._answer[at] if is_right else self._answer[at] ^ 1, told)


class SimulatedChain(Chain):
    """Guesses that take the same time each."""

    def _timed(self, guess: Callable[[], Guess | None]) -> Guess | None:
        self.spent_s += self.step_s
        return guess()


class TimedAnswer(KnownAnswer):
    """A known answer whose rounds take longer by the guesses before them."""

    def __init__(self, case: ReplayCase, curve: CostCurve, chain: Chain | None) -> None:
        super().__init__(case, curve, MAX_PLANNED_TOKENS)
        self._chain = chain
        self.total_s = 0.0

    def read(self, pending: object) -> Round:
        outcome = super().read(pending)  # type: ignore[arg-type]
        assert outcome.seconds is not None
        if self._chain is not None:
            outcome.seconds += self._chain.spent_s
        self.total_s += outcome.seconds
        return outcome


@dataclass(frozen=True)
class Cell:
    """A set of requests, a chip, a head and what drafts; `speedup` is over plain decoding."""

    chosen: str
    chip: str
    size: str
    right: float
    contestant: str
    speedup: float


def replayed(
    cases: Sequence[ReplayCase], curve: CostCurve, share: float, right: float, contestant: str
) -> float:
    """The speedup over plain decoding."""
    rates = AcceptanceRates(priors() | chain_priors())
    planner = DraftPlanner(curve, rates)
    copies: Drafter = NoDrafter() if contestant == "head" else AutoDrafter(rates=rates)
    spent = plain = 0.0
    for number, case in enumerate(cases):
        chain = None
        if contestant != "copies":
            head = SimulatedHead(right, number)
            head.know(case)
            step = curve.decode_s(len(case.prompt))
            chain = SimulatedChain(head, rates, step_s=share * step)
        session = DraftSession(
            copies,
            planner,
            DraftTrimmer(case.end_tokens),
            chain=chain,
            num_draft_tokens=MAX_PLANNED_TOKENS,
        )
        session.begin(case.prompt)
        answer = TimedAnswer(case, curve, chain)
        limits = Limits(len(case.reference), frozenset())
        emitted = sum(
            len(one.tokens) for one in run_alone(answer, session, case.prompt[-1], limits)
        )
        spent += answer.total_s
        plain += emitted * curve.decode_s(len(case.prompt) + emitted // 2)
    return plain / spent


def cells(sets: dict[str, list[ReplayCase]], chips: Sequence[str]) -> Iterator[Cell]:
    curves = published_curves()
    every = list(product(sets.items(), chips, SHARES.items(), RIGHT))
    show = progress_line("heads")
    for done, ((chosen, cases), chip, (size, share), right) in enumerate(every, start=1):
        show(done, len(every))
        for contestant in CONTESTANTS:
            speedup = replayed(cases, curves[chip].curve, share, right, contestant)
            yield Cell(chosen, chip, size, right, contestant, speedup)


def table(found: Sequence[Cell], chosen: str) -> str:
    """A row for each chip and head; `copies / head / both` for each share of right guesses."""
    of = {(one.chip, one.size, one.right, one.contestant): one.speedup
          for one in found if one.chosen == chosen}  # fmt: skip
    rows = [
        (chip, size, *(" / ".join(f"{of[chip, size, right, one]:.2f}" for one in CONTESTANTS)
                       for right in RIGHT))
        for chip, size in dict.fromkeys((chip, size) for chip, size, _, _ in of)
    ]  # fmt: skip
    return markdown_table(("chip", "head of", *(f"{right:.0%} right" for right in RIGHT)), rows)


def main() -> None:
    """Print and record what a head brings."""
    parser = options_of(__doc__ or "", name="heads", quick="8 requests of a set", data=True)
    options = parser.parse_args()
    tokenizer = load_tokenizer("ember")
    sets = {
        name: cases[: 8 if options.quick else 24]
        for name, cases in read_sets(options.data, SETS, "odd", tokenizer).items()
    }
    found = list(cells(sets, CHIPS))
    both = [one for one in found if one.contestant == "both"]
    of = {(one.chosen, one.chip, one.size, one.right, one.contestant): one.speedup for one in found}
    better = [
        one.speedup
        / max(of[one.chosen, one.chip, one.size, one.right, other] for other in CONTESTANTS[:2])
        for one in both
    ]
    body = "\n\n".join(
        [
            "Speedup over plain decoding, of copies, of the head, and of both.",
            *(f"{name}, {len(cases)} requests:\n\n{table(found, name)}"
              for name, cases in sets.items()),
            f"Both have at least {min(better):.2f} of the better of the two, "
            f"{sum(better) / len(better):.2f} in the mean, and at least "
            f"{min(one.speedup for one in both):.2f} of plain decoding.",
        ]
    )  # fmt: skip
    record(options.name, "Heads and copies on published costs", body)


if __name__ == "__main__":
    main()
