"""`doctor --report`: what a model does on a machine, as Markdown and JSON to paste into an issue.

An engine and its costs come in; a report goes out. It holds figures, versions, and the names of the
device and the model, but no paths, prompts or answers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Final

from akunu_py.bench.contestants import Akunu, Contestant, MlxLm
from akunu_py.bench.cost_report import CostReport
from akunu_py.bench.identity import (
    Difference,
    Prompt,
    find_differences,
    identity_table,
    mlx_lm_answer,
)
from akunu_py.bench.measurement import Progress, machine_line, markdown_table
from akunu_py.bench.samples import encode_samples
from akunu_py.bench.speedup import FORCED, OWN, SpeedupRow, contest, make_tasks
from akunu_py.bench.speedup_report import SpeedupReport
from akunu_py.bench.workloads import make_workloads
from akunu_py.engine import Engine
from akunu_py.options import Options
from akunu_py.package import __version__

CONTEXTS: Final = (128, 1024, 4096, 16384)
"""Context lengths at which the report has costs, as far as model and memory allow."""

COSTS_S: Final = 20.0
"""How many seconds to measure the costs."""

_OTHERS: Final = ("mlx-lm", "auto")
_KINDS: Final = ("edit", "structure", "question", "novel")
_PROMPTS: Final = 12  # of each kind
_IDENTITY_S: Final = 60.0
_SPEEDUP_S: Final = 90.0
_IDENTITY_TOKENS: Final = range(16, 65)
_SPEEDUP_TOKENS: Final = range(32, 129)
_WORKLOADS: Final = ("edit", "structure", "question")
_REQUESTS: Final = 2  # of each workload
_TURNS: Final = 2  # of each request


@dataclass(frozen=True)
class Identity:
    """Which greedy answers of up to `max_tokens` differ from plain decoding's."""

    prompts: Sequence[Prompt]
    differences: Sequence[Difference]
    max_tokens: int

    def as_json(self) -> dict[str, Any]:
        """The numbers, and where answers differ."""
        return {
            "prompts": len(self.prompts),
            "max_tokens": self.max_tokens,
            "compared_with_plain": _OTHERS,
            "differences": [asdict(found) for found in self.differences],
        }


@dataclass(frozen=True)
class DeviceReport:
    """All that was found; a part is missing if the run was interrupted before it.

    Attributes:
        load: how many processes wanted a core when it began, as a mean over a minute.
        seconds: how long it took, without the costs.
        complete: whether the run was not interrupted.
    """

    cost: CostReport
    identity: Identity
    speedup: SpeedupReport | None
    load: float
    seconds: float
    complete: bool

    def as_json(self) -> dict[str, Any]:
        """The content of the JSON file."""
        return {
            "akunu": __version__,
            "complete": self.complete,
            "load": self.load,
            "seconds": round(self.seconds, 1),
            **self.cost.as_json(),
            "identity": self.identity.as_json(),
            "speedup": self.speedup and self.speedup.as_json()["rows"],
            "rounds": [
                {"workload": row.kind, "answers": row.answers, "contestant": row.contestant}
                | {f"{part}_ms": ms for part, ms in parts.items()}
                for row, parts in self._rounds()
            ],
        }

    def markdown(self) -> str:
        """The content of the Markdown file."""
        machine, model, cost = self.cost.machine, self.cost.model, self.cost
        lines = [
            f"# akunu-py {__version__} on {machine['chip']}",
            f"{machine_line(machine)}; load {self.load:.1f}. Model {model['name']}, "
            f"{model['layout']} weights, {model['parameter_bytes'] / 2**20:,.0f} MiB. "
            f"Measured in {self.seconds / 60:.1f} minutes"
            + ("." if self.complete else "; **interrupted**: some parts are missing or short."),
            "## Costs",
            "Milliseconds per forward over M tokens, by tokens of context.",
            markdown_table(*cost.costs()),
            *cost.padding(),
            f"{cost.payoff} Rollback: {model['after_rejection']}.",
            "## Identity",
            f"Greedy answers of {self.identity.max_tokens} tokens that differ from decoding "
            "without drafts, by kind of prompt. A small gap between the two best logits means a "
            "near-tie.",
            identity_table(self.identity.prompts, self.identity.differences, _OTHERS),
        ]
        if self.speedup:
            rows = self.speedup.rows
            heads = ("text", "answers", "", "ms per token", "over mlx-lm", "over no drafts",
                     "tokens per forward", "acceptance", "same answers")  # fmt: skip
            lines += [
                "## Speed",
                "Medians with quartiles or ranges. Forced answers are the right ones in place of "
                "the model's choices; every forward is computed.",
                markdown_table(heads, list(map(_speed_cells, rows))),
                "## Rounds",
                "Milliseconds per round: drafting, building the forward, waiting for it, "
                "turning tokens into text, and the rest."
                + (_CPU_NOTE if machine["device"] == "cpu" else ""),
                markdown_table(
                    ("text", "answers", "", *_ROUND_PARTS),
                    [
                        (row.kind, row.answers, _name(row), *map("{:.2f}".format, parts.values()))
                        for row, parts in self._rounds()
                    ],
                ),
            ]
        return "\n\n".join(lines) + "\n"

    def _rounds(self) -> list[tuple[SpeedupRow, dict[str, float]]]:
        """The rows of this engine, and the milliseconds of each part of their rounds."""
        rows = self.speedup.rows if self.speedup else ()
        return [(row, _round_ms(row, row.shares)) for row in rows if row.shares]


_CPU_NOTE: Final = " On a CPU, MLX computes most of a forward while it is being submitted."
_ROUND_PARTS: Final = ("all", "draft", "build", "wait", "text", "rest")


def _round_ms(row: SpeedupRow, shares: dict[str, float]) -> dict[str, float]:
    spent = sum(pair.completion.stats.decode_s for pair in row.pairs if pair.completion.stats)
    whole = 1e3 * spent / row.rounds.forwards
    parts = {
        "all": 1.0,
        "draft": shares["drafting"],
        "build": shares["building"],
        "wait": shares["forward"] - shares["building"],
        "text": shares["detokenizing"],
        "rest": shares["rest"],
    }
    return {name: whole * part for name, part in parts.items()}


def _speed_cells(row: SpeedupRow) -> tuple[str, ...]:
    return (
        row.kind,
        row.answers,
        _name(row),
        f"{row.milliseconds.median:.2f}",
        f"{row.speedup:.2f}",
        f"{row.over_plain:.2f}",
        f"{row.rounds.tokens_per_forward:.2f}",
        f"{row.rounds.acceptance:.0%}" if row.rounds.drafted else "",
        "" if row.same is None else f"{row.same}/{len(row.pairs)}",
    )


def _name(row: SpeedupRow) -> str:
    return {"plain": "no drafts", "auto + planner": "default"}.get(row.contestant, row.contestant)


def make_report(engine: Engine, cost: CostReport, progress: Progress) -> DeviceReport:
    """Compares the answers of an engine with mlx-lm's, and their speed.

    Answers are as long as the time allows, from what a step costs. After an interrupt, the report
    has what was found so far.

    Args:
        engine: with the model, and its costs stored.
        cost: what its forwards cost.
        progress: called often, with the answers done and all answers of a part.
    """
    begun, load = perf_counter(), os.getloadavg()[0]
    identity, complete = _check_identity(engine, cost, progress)
    speedup = None
    if complete:
        try:
            speedup = _measure_speedup(engine, cost, progress)
            complete = speedup.complete
        except KeyboardInterrupt:
            complete = False
    return DeviceReport(cost, identity, speedup, load, perf_counter() - begun, complete)


def _check_identity(engine: Engine, cost: CostReport, progress: Progress) -> tuple[Identity, bool]:
    """The comparison of greedy answers, and whether it was not interrupted."""
    count = _PROMPTS * len(_KINDS)
    max_tokens = _affordable(_IDENTITY_S, (1 + len(_OTHERS)) * count, cost, _IDENTITY_TOKENS)
    sets = encode_samples(engine.tokenizer, make_workloads(_PROMPTS, _KINDS))
    prompts = [
        Prompt(kind, list(case.prompt)[max_tokens - engine.context_limit :])
        for kind, cases in sets.items()
        for case in cases
    ]
    differences: list[Difference] = []
    done: list[Prompt] = []
    try:
        for index, prompt in enumerate(prompts):
            progress(index, len(prompts))
            plain, auto = (
                _answer(engine, prompt, Options(max_tokens, drafter=name))
                for name in ("none", "auto")
            )
            others = {"mlx-lm": mlx_lm_answer(engine, prompt.tokens, max_tokens), "auto": auto}
            differences += find_differences(engine, index, prompt, plain, others)
            done.append(prompt)
    except KeyboardInterrupt:
        pass
    return Identity(done, differences, max_tokens), len(done) == len(prompts)


def _answer(engine: Engine, prompt: Prompt, options: Options) -> list[int]:
    engine.reset()
    return engine.generate(prompt.tokens, options).token_ids


def _measure_speedup(engine: Engine, cost: CostReport, progress: Progress) -> SpeedupReport:
    """How fast mlx-lm, plain decoding and the default answer, by themselves and forced.

    Raises:
        KeyboardInterrupt: if the run is interrupted before there is a result.
    """
    contestants: list[Contestant] = [MlxLm(), Akunu("none"), Akunu("auto")]
    samples = make_workloads(_REQUESTS, _WORKLOADS)
    answers = 2 * len(_WORKLOADS) * (1 + _REQUESTS * _TURNS) * len(contestants)
    max_tokens = _affordable(_SPEEDUP_S, answers, cost, _SPEEDUP_TOKENS)
    sets = encode_samples(engine.tokenizer, samples, room=engine.context_limit - max_tokens)
    tasks = make_tasks(sets, max_tokens, (OWN, FORCED))
    rows, complete = contest(
        engine, tasks, contestants, rounds=_TURNS, curve=cost.curve, progress=progress
    )
    return SpeedupReport(cost.machine, cost.model, cost.curve, max_tokens, _TURNS, rows, complete)


def _affordable(seconds: float, answers: int, cost: CostReport, tokens: range) -> int:
    """How long each of some answers may be, if all are decoded plainly in so many seconds."""
    fitting = int(seconds / answers / cost.curve.decode_s(cost.context))
    return min(max(fitting, tokens[0]), tokens[-1])
