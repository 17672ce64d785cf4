"""What a recurrent model loses by computing accepted tokens again after a rejection.

    python -m benchmarks.replay_recurrent --data DATA [--part odd]

`auto` and the planner on real requests, by published cost curves: on a target whose cache rolls
back by a counter; on one that computes accepted tokens again; and on that one with a planner that
does not price it. The first is also the most that a replay of the recurrence alone can reach.
Nothing is measured: every speedup is a prediction.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from akunu_py.bench.curve_sources import find_curves
from akunu_py.bench.replay import replay
from akunu_py.drafting import make_drafter
from akunu_py.loading import load_tokenizer
from akunu_py.planning.planner import DraftPlanner
from akunu_py.round import Round
from benchmarks.records import markdown_table, record
from benchmarks.replay_data import COSTS, DATA_SETS, PARTS, read_sets

TARGETS = {"by a counter": (False, True), "again": (True, True), "again, unpriced": (True, False)}
"""Whether the target computes tokens again, and whether the planner prices that."""


class Unpriced(DraftPlanner):
    """The shipped planner, without the price of tokens that are computed again."""

    def observe(self, outcome: Round) -> None:
        super().observe(outcome)
        self._replays = False


def main() -> None:
    """Reads the options, replays every set on every curve, records the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--part", choices=PARTS, default="odd", help="which requests")
    options = parser.parse_args()

    sets = read_sets(options.data, list(DATA_SETS), options.part, load_tokenizer("ember"))
    lines, found = [], []
    for name, cases in sets.items():
        for curve in find_curves(COSTS, "ember"):
            speedups = {}
            for target, (replays, prices) in TARGETS.items():
                drafter = make_drafter("auto")
                planner = DraftPlanner(curve.curve) if prices else Unpriced(curve.curve)
                result = replay(
                    lambda kept=drafter: kept,  # type: ignore[misc]
                    cases,
                    planner,
                    curve=curve.curve,
                    replays=replays,
                )
                speedups[target] = result.predicted_speedup(curve.curve)
            found.append({"set": name, "costs": curve.name, **speedups})
            loss = 1 - speedups["again"] / speedups["by a counter"]
            lines.append(
                (name, curve.name, *(f"{value:.2f}" for value in speedups.values()), f"{loss:.1%}")
            )
    body = (
        "Predicted speedups of `auto` with the planner. A recurrent model that computed only its "
        "recurrence again could reach at most the first column.\n\n"
        + markdown_table(("set", "costs", *TARGETS, "loss"), lines)
    )
    title = "What computing accepted tokens again costs recurrent models"
    record("replay_recurrent", title, body, {"rows": found})


if __name__ == "__main__":
    main()
