"""What it would bring to submit a drafted round before the last one is read.

    python -m benchmarks.submit_ahead [--count 6] [--curves m3-max m4-pro-8b m5-max]

A drafted round waits for the host: it is built when the last one has been read. It could be
submitted before: it begins with the last result, which the device knows, and its draft goes on from
the present one. If one of the drafted tokens is rejected, it is void, and the device is busy with
it when the right one could begin.

The shipped loop, drafter and planner answer known texts on published cost curves with a host that
takes some share of a step for each drafted round. Nothing is measured: these are predictions. They
favour submitting ahead: the draft always guesses the token in between, and a void round is ended
by nothing but its own end.

- `most`: with foresight. Only those rounds are submitted ahead that will not be void.
- `planned`: as a program could. A round is submitted ahead if the drafter's estimates say that it
  pays: the present draft is accepted whole with a probability above 1 - host / forward.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from math import prod

from akunu_py.bench.curve_sources import find_curves
from akunu_py.bench.replay import replay_rounds
from akunu_py.bench.samples import encode_samples
from akunu_py.bench.workloads import make_workloads
from akunu_py.drafting import make_drafter
from akunu_py.loading import load_tokenizer
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.planner import DraftPlanner
from akunu_py.round import Round
from benchmarks.records import markdown_table, record

HOST_SHARES = (0.05, 0.1, 0.2, 0.4)
"""Host time of a drafted round, as a share of a forward over one token."""


def forward_s(outcome: Round, curve: CostCurve) -> float:
    """How long the device works for a round."""
    if outcome.pipelined:
        return curve.decode_s(outcome.context)
    return curve.verify_s(1 + outcome.drafted, outcome.context)


def gains(rounds: list[Round], curve: CostCurve, host: float) -> tuple[float, float]:
    """How much of the time `most` and `planned` save; below 0 if they lose.

    Args:
        rounds: those of one request.
        host: seconds of the host for each drafted round.
    """
    saved = planned = 0.0
    total = sum(forward_s(one, curve) + host * (not one.pipelined) for one in rounds)
    for outcome, following in pairwise(rounds):
        if not outcome.drafted or not following.drafted:
            continue
        taken = forward_s(following, curve)
        is_whole = outcome.accepted == outcome.drafted
        gain = min(host, taken) if is_whole else -max(0.0, taken - host)
        saved += max(0.0, gain)
        estimates = outcome.draft.accept_probs
        if estimates and prod(estimates) * estimates[-1] > 1 - host / taken:
            planned += gain
    return saved / total, planned / total


def main() -> None:
    """Replays the workloads on each curve, and records the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=6, help="requests of each kind")
    parser.add_argument("--curves", nargs="+", default=["m3-max", "m4-pro-8b", "m5-max"])
    options = parser.parse_args()

    sets = encode_samples(load_tokenizer("ember"), make_workloads(options.count))
    lines, found = [], []
    for kind, cases in sets.items():
        for curve in find_curves(options.curves, "ember"):
            planner = DraftPlanner(curve.curve)
            rounds = [
                list(replay_rounds(make_drafter("auto"), case, planner, curve=curve.curve))
                for case in cases
            ]
            drafted = [one for request in rounds for one in request if one.drafted]
            whole = sum(one.accepted == one.drafted for one in drafted)
            cells: list[str] = []
            for host in HOST_SHARES:
                by_request = [gains(request, curve.curve, host) for request in rounds]
                most, planned = (
                    sum(part) / len(by_request) for part in zip(*by_request, strict=True)
                )
                cells.append(f"{most:.1%} / {planned:.1%}")
                found.append(
                    {
                        "set": kind,
                        "costs": curve.name,
                        "host": host,
                        "most": most,
                        "planned": planned,
                    }
                )
            share = f"{whole / len(drafted):.0%}" if drafted else ""
            lines.append([kind, curve.name, len(drafted), share, *cells])
    columns = ["set", "costs", "drafted rounds", "accepted whole"]
    columns += [f"host {share}" for share in HOST_SHARES]
    record(
        "submit_ahead",
        "Submitting drafted rounds ahead",
        f"Predictions for {options.count} requests of each kind. The time that is saved, `most` / "
        "`planned`, by the host's time for a drafted round, as a share of a forward over one "
        "token; made by `python -m benchmarks.submit_ahead`, which says what is assumed.\n\n"
        + markdown_table(columns, lines),
        {"count": options.count, "rows": found},
    )


if __name__ == "__main__":
    main()
