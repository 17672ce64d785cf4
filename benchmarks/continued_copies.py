"""Would a head that goes on where a copy ends, or is doubted, be faster? A simulation. And how much
slower is a head that makes one guess a round, as one of several steps does?

    python -m benchmarks.continued_copies --data DATA

Beside the drafts of today's plan there is the copy up to its end, or to its first token that is
less likely than a guess, and behind it guesses. They are as good as a head's first ones, and
reading the copied tokens takes the head no time: both flatter it.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

from akunu_py.calibration.cost_store import published_curves
from akunu_py.drafting.base import Draft
from akunu_py.drafting.chain import Chain, Guess
from akunu_py.model.loading import load_tokenizer
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.planner import DraftPlanner, Situation
from akunu_py.tokens import Origin
from benchmarks import heads
from benchmarks.replay_data import read_sets

LIKELY = 0.5
"""A copy is continued if it is likelier than this to be right up to there."""


class Continued(heads.SimulatedChain):
    """Guesses behind a copy, too; beside it only if it `is_asked`."""

    is_asked = True

    def drafts(
        self, copy: Draft, limit: int, goes_on: Callable[[Draft, float], bool]
    ) -> list[Draft]:
        self._made = []
        found = super().drafts(copy, limit, goes_on) if self.is_asked else [copy]
        copied = found[-1]
        if not copied or copied.origin != Origin.COPIES:
            return found
        probs, rate = copied.accept_probs or self._rates.accept_probs(copied), self.rate(0)
        end = next((at for at, prob in enumerate(probs) if at and prob < rate), len(probs))
        if end >= limit or prod(probs[:end]) < LIKELY:
            return found
        head = self._guesser
        assert isinstance(head, heads.SimulatedHead)
        head.first(1)  # places it at what was emitted
        head._guessed = end
        going = replace(copied.cut(end), accept_probs=tuple(probs[:end]))
        while len(going) < limit and goes_on(going, rate):
            guess = self._timed(lambda: head.after(0))
            if guess is None:
                break
            going = replace(
                going,
                tokens=(*going.tokens, guess.token),
                accept_probs=(*going.accept_probs, rate),
            )
        return [*found, going] if len(going) > end else found


class OneGuess(heads.SimulatedHead):
    """Has no second guess."""

    def after(self, token: int) -> Guess | None:
        return None


class ContinuingPlanner(DraftPlanner):
    """Asks beside every copy that ends within the limit, too."""

    def should_guess(self, copy: Draft, now: Situation, chain: Chain) -> bool:
        asked = super().should_guess(copy, now, chain)
        assert isinstance(chain, Continued)
        chain.is_asked = asked
        return asked or (bool(copy) and not now.pipelined and len(copy) < MAX_PLANNED_TOKENS)


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    curves = published_curves()
    ratios: dict[str, list[float]] = {"continued": [], "one guess": []}
    plain, today = heads.SimulatedHead, (heads.SimulatedChain, DraftPlanner)
    sets = read_sets(data, heads.SETS, "odd", load_tokenizer("ember"))
    cells = product(sets.items(), heads.CHIPS, heads.SHARES.items(), heads.RIGHT)
    for (name, cases), chip, (size, share), right in cells:
        speeds = []
        for head, (chain, planner) in (
            (plain, today),
            (plain, (Continued, ContinuingPlanner)),
            (OneGuess, today),
        ):
            heads.SimulatedHead, heads.SimulatedChain = head, chain  # type: ignore[misc]
            vars(heads)["DraftPlanner"] = planner
            speeds.append(heads.replayed(cases[:24], curves[chip].curve, share, right, "both"))
        for what, speed in zip(ratios, speeds[1:], strict=True):
            ratios[what].append(speed / speeds[0])
        print(name, chip, size, right, *(f"{speed:.2f}" for speed in speeds), flush=True)
    for what, of in ratios.items():
        print(
            f"{what}: {min(of):.3f} to {max(of):.3f} of today, {sum(of) / len(of):.3f} in the mean"
        )


if __name__ == "__main__":
    main()
