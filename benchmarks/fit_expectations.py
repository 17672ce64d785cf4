"""Fits the numbers of `akunu_py/drafting/acceptance.py`, and prints them ready to paste.

    python -m benchmarks.fit_expectations --data DATA [--check]

`auto` drafts at every position of the even-numbered requests, and each draft is compared with the
reference up to its first miss. Then each number is set so that as many tokens are expected to be
accepted, where it applies, as were; this is repeated until the numbers no longer change. Which
source is drafted from depends on the numbers too, so all of it is done `PASSES` times.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from akunu_py.bench.replay import ReplayCase
from akunu_py.drafting import acceptance, auto
from akunu_py.drafting.acceptance import EVIDENCE, FIRST_REWRITE, POSITIONS, AcceptanceRates, priors
from akunu_py.model.loading import load_tokenizer
from akunu_py.options import MAX_PLANNED_TOKENS
from benchmarks.records import markdown_table, options_of, record
from benchmarks.replay_data import DATA_SETS, read_sets

PASSES: Final = 5
SWEEPS: Final = 40
AFFINITIES: Final = 12
BORROWED: Final = 4.0
"""Each kind of evidence is taken to have had so many more outcomes, half of them accepted."""

Outcome = tuple[int, int, bool]
"""A bucket, a bigram affinity, and whether the token was accepted."""
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Bounds = tuple[float, float]


@dataclass
class Numbers:
    """The fitted tables, as arrays."""

    first: Floats
    affinity: Floats

    def rounded(self) -> Numbers:
        return Numbers(*(np.round(table, 2) for table in (self.first, self.affinity)))

    def paste(self) -> str:
        tables = {"FIRST": self.first, "AFFINITY_ODDS": self.affinity}
        return "\n".join(f"{name} = {table.tolist()}" for name, table in tables.items())


def in_code() -> Numbers:
    tables = (acceptance.FIRST, acceptance.AFFINITY_ODDS)
    return Numbers(*(np.array(table, dtype=np.float64) for table in tables))


def collect(cases: Iterable[ReplayCase]) -> Counter[Outcome]:
    """The outcomes of a draft at every position of the answers."""
    outcomes: Counter[Outcome] = Counter()

    affinities = {odds: affinity for affinity, odds in enumerate(acceptance.AFFINITY_ODDS)}

    class Recorder(AcceptanceRates):
        def learn(self, kind: Hashable, accepted: bool, odds: float = 1.0) -> None:
            assert isinstance(kind, int)
            outcomes[kind, affinities.get(odds, 0), accepted] += 1
            super().learn(kind, accepted, odds)

    drafter = auto.AutoDrafter(rates=Recorder(priors()))
    for case in cases:
        drafter.begin(case.prompt)
        for position, token in enumerate(case.reference):
            draft = drafter.propose(MAX_PLANNED_TOKENS)
            wanted = case.reference[position : position + len(draft)]
            pairs = zip(draft.tokens, wanted, strict=False)
            accepted = next((at for at, (ours, right) in enumerate(pairs) if ours != right), None)
            if accepted is not None:
                drafter.feedback(draft, accepted)
            elif wanted:
                drafter.feedback(draft.cut(len(wanted)), len(wanted))
            drafter.extend([token])
    return outcomes


def solve(expected: Callable[[float], float], seen: float, bounds: Bounds) -> float:
    """Where a rising function takes a value, by bisection."""
    low, high = bounds
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if expected(middle) < seen else (low, middle)
    return (low + high) / 2


def fit(outcomes: Counter[Outcome]) -> Numbers:
    """The numbers under which as many tokens are expected to be accepted as were."""
    cells = sorted({cell[:2] for cell in outcomes if cell[0] % POSITIONS == 0})
    accepted = np.array([outcomes[*cell, True] for cell in cells], dtype=np.float64)
    tried = accepted + np.array([outcomes[*cell, False] for cell in cells])
    buckets, affinities = np.array(cells).T
    kinds = buckets // POSITIONS
    # A rewrite replaces what followed so far, so its affinity does not count.
    bound = buckets < FIRST_REWRITE
    first, log_odds = np.full(EVIDENCE, 0.5), np.zeros(AFFINITIES)

    def put(table: Floats, at: int, where: Mask, bounds: Bounds, borrowed: float) -> None:
        def tokens(value: float) -> float:
            table[at] = value
            prob = first[kinds[where]]
            shift = np.where(bound[where], log_odds[affinities[where]], 0.0)
            odds = prob / (1.0 - prob) * np.exp(shift)
            return float((tried[where] * odds / (1.0 + odds)).sum()) + borrowed * value

        table[at] = solve(tokens, float(accepted[where].sum()) + borrowed / 2, bounds)

    for _ in range(SWEEPS):
        for kind in range(EVIDENCE):
            put(first, kind, kinds == kind, (0.005, 0.995), BORROWED)
        for affinity in range(AFFINITIES):
            put(log_odds, affinity, (affinities == affinity) & bound, (-4.0, 4.0), 0.0)
        # Only the ratios of odds are determined: the mean over all first tokens is set to 1.
        log_odds -= np.average(log_odds[affinities[bound]], weights=tried[bound])
    return Numbers(first, np.exp(log_odds))


def neutral() -> Numbers:
    """Numbers that say nothing, to begin with: the result does not depend on those in the code."""
    return Numbers(np.full(EVIDENCE, 0.5), np.ones(AFFINITIES))


@contextmanager
def in_force(numbers: Numbers) -> Iterator[None]:
    """Replaces the numbers of the code; no two odds are equal, so each tells its affinity."""
    odds = tuple((numbers.affinity + 1e-9 * np.arange(AFFINITIES)).tolist())
    with (
        patch.object(acceptance, "FIRST", tuple(numbers.first.tolist())),
        patch.object(acceptance, "AFFINITY_ODDS", odds),
        patch.object(auto, "AFFINITY_ODDS", odds),
    ):
        yield


def describe(numbers: Numbers, outcomes: Counter[Outcome]) -> str:
    """The numbers to paste, and how many outcomes are behind each kind of evidence."""
    lines = []
    for kind in range(EVIDENCE):
        counts = [
            sum(
                count
                for (bucket, _, stood), count in outcomes.items()
                if bucket == kind * POSITIONS and stood == accepted
            )
            for accepted in (True, False)
        ]
        tried = sum(counts)
        rate = f"{counts[0] / tried:.2f}" if tried else ""
        lines.append((kind, f"{numbers.first[kind]:.2f}", f"{tried:,}", rate))
    heads = ("evidence", "`FIRST`", "first tokens", "accepted")
    return (
        f"Fitted on {sum(outcomes.values()):,} outcomes of the even-numbered requests of the sets "
        f"{', '.join(DATA_SETS)}, under ember's tokenizer, in {PASSES} passes.\n\n"
        f"```text\n{numbers.paste()}\n```\n\n"
        "`FIRST` holds at an average bigram affinity, so it differs from the share of first tokens "
        f"that were accepted.\n\n{markdown_table(heads, lines)}"
    )


def main() -> None:
    parser = options_of(__doc__, data=True)
    parser.add_argument("--check", action="store_true", help="only compare with the code")
    options = parser.parse_args()

    sets = read_sets(options.data, list(DATA_SETS), "even", load_tokenizer("ember"))
    cases = [case for own in sets.values() for case in own]
    numbers = neutral()
    for _ in range(PASSES):
        with in_force(numbers):
            outcomes = collect(cases)
        numbers = fit(outcomes).rounded()
    if options.check:
        if numbers.paste() != in_code().paste():
            sys.exit(f"The code has other numbers than these:\n{numbers.paste()}")
        print("The code has the fitted numbers.")
        return
    result = {
        "FIRST": numbers.first.tolist(),
        "AFFINITY_ODDS": numbers.affinity.tolist(),
        "outcomes": sum(outcomes.values()),
    }
    title = "The priors of `auto`'s evidence, fitted"
    record("fit_expectations", title, describe(numbers, outcomes), result)


if __name__ == "__main__":
    main()
