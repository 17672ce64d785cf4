"""`bench replay`: what drafting would bring on known answers; no model is loaded."""

import json
import sys
from itertools import islice
from typing import TYPE_CHECKING

from akunu_py.cli.bench import print_tables
from akunu_py.cli.bench_settings import ReplaySettings
from akunu_py.cli.progress import MeasuringBar
from akunu_py.errors import InvalidRequestError

if TYPE_CHECKING:
    from akunu_py.bench.replay import ReplayCase
    from akunu_py.text.tokenizer import Tokenizer


def run(settings: ReplaySettings) -> int:
    """Prints the predictions; progress goes to standard error.

    Raises:
        AkunuError: if a file holds no samples, or there are no such costs.
    """
    if settings.plot is not None:
        from akunu_py.bench.plots import check_can_plot  # noqa: PLC0415  (before what takes long)

        check_can_plot(settings.plot)
    from akunu_py.bench.curve_sources import about_lines, find_curves  # noqa: PLC0415
    from akunu_py.bench.replay_report import (  # noqa: PLC0415
        Policy,
        ReplayReport,
        replay_policies,
    )

    curves = find_curves(settings.costs, settings.model)
    sets = _read_sets(settings)
    policies = [
        Policy(drafter, drafts) for drafter in settings.drafters for drafts in settings.drafts
    ]
    with MeasuringBar(sys.stderr, "replaying", counts=True) as bar:
        rows = list(replay_policies(sets, policies, curves, keeps=settings.keeps, progress=bar))
    report = ReplayReport(sets, curves, rows, settings.model)
    if settings.plot is not None:
        from akunu_py.bench.plots import draw_replay  # noqa: PLC0415

        draw_replay(report, settings.plot)
    if settings.as_json:
        print(json.dumps(report.as_json()))
        return 0
    print_tables(report.tables())
    print("Nothing here was measured: speedups are predictions, from these costs of forwards:")
    print("\n".join(f"  {line}" for line in about_lines(curves)))
    if settings.plot is not None:
        print(f"Drawn into {settings.plot}.")
    return 0


def _read_sets(settings: ReplaySettings) -> "dict[str, list[ReplayCase]]":
    """The requests in the files, by the names of these."""
    from akunu_py.bench.samples import encode_samples, read_samples  # noqa: PLC0415

    tokenizer: Tokenizer | None = None
    sets: dict[str, list[ReplayCase]] = {}
    for file in settings.files:
        samples = list(islice(read_samples(file), settings.most))
        if tokenizer is None:
            tokenizer = _load_tokenizer(settings.model)
        for kind, cases in encode_samples(tokenizer, samples).items():
            sets.setdefault(kind, []).extend(cases)
    if not sets:
        names = ", ".join(str(file) for file in settings.files)
        raise InvalidRequestError(f"There is no request with an answer in {names}.")
    return sets


def _load_tokenizer(name: str) -> "Tokenizer":
    from akunu_py.backend import find_backend  # noqa: PLC0415

    find_backend()  # says so in a sentence where MLX has none: mlx-lm brings the tokenizer
    from akunu_py.model import load_tokenizer  # noqa: PLC0415

    return load_tokenizer(name)
