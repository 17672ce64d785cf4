"""What a memory of a project brings on its held-out files, and the priors of what it recalls.

    python -m benchmarks.project_memory [--quick] [--data DATA] [--fit]
    python -m benchmarks.project_memory --live [--quick]

A replay, in which nothing is timed. `--data` is a folder with MT-bench, whose chats are replayed
with the memory of the first project: it should change nothing for them. `--fit` also fits the
priors, on packages that are not those of the table. `--live` times ember instead, which is forced
to give the known answers: without drafts, without a memory and with it, in turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

import akunu_py
from akunu_py.bench.contestants import Akunu, Task, TimedCompletion
from akunu_py.bench.measurement import describe_machine, machine_line
from akunu_py.bench.replay import Policy, ReplayCase, ReplayResult, replay, replay_policy
from akunu_py.bench.workloads import HeldOut, encode_samples, hold_out
from akunu_py.calibration.cost_store import published_curves
from akunu_py.calibration.measure import measure_cost_curve
from akunu_py.drafting import auto
from akunu_py.drafting.acceptance import (
    EVIDENCE,
    LEFT,
    RECALLED,
    RIVAL_ODDS,
    SILENT,
    SUPPORT_ODDS,
    AcceptanceRates,
    priors,
    rival_class,
    support_class,
)
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.recall import MemoryTier
from akunu_py.engine import Engine
from akunu_py.memory.projects import Memory, ProjectTexts
from akunu_py.memory.segment import Segment
from akunu_py.model.loading import load_tokenizer
from akunu_py.planning.planner import FixedPlanner
from akunu_py.text.tokenizer import Tokenizer
from benchmarks.records import markdown_table, options_of, progress_line, record
from benchmarks.replay_data import chats

MEASURED: Final = ("rich", "starlette", "mlx_lm.models", "asyncio", "email")
FITTED: Final = (
    *("httpx", "pydantic", "uvicorn", "prompt_toolkit", "hypothesis", "typer", "huggingface_hub"),
)
CURVE: Final = "m4-pro"
TOKENS: Final = 8
"""Draft tokens per round at most, for the policy without a planner."""
_LIVE_PROMPT, _LIVE_ANSWER = 1024, 192
_HALVINGS: Final = 7
_SWEEPS: Final = 50

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]
Cells = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Row:
    """The results of a policy on one set without and with a memory.

    With the policy that has no planner, `fewer` is the result with a memory where no more tokens
    are drafted for the whole set than without one, and `more` the result without one where as many
    are drafted as with it.
    """

    name: str
    policy: str
    without: ReplayResult
    recalling: ReplayResult
    fewer: ReplayResult | None = None
    more: ReplayResult | None = None

    def as_json(self) -> dict[str, Any]:
        curve = published_curves()[CURVE].curve
        return {
            "set": self.name,
            "policy": self.policy,
            **{
                name: {
                    "tokens_per_forward": round(result.tokens_per_forward, 3),
                    "drafted_per_forward": round(result.drafted / result.forwards, 3),
                    "acceptance": round(result.acceptance, 3),
                    f"predicted_on_{CURVE}": round(result.predicted_speedup(curve), 3),
                }
                for name, result in (
                    ("without", self.without),
                    ("with", self.recalling),
                    ("with, drafts of without", self.fewer),
                    ("without, drafts of with", self.more),
                )
                if result is not None
            },
        }

    def cells(self) -> tuple[str, ...]:
        found = self.as_json()
        pairs = [(found["without"][name], found["with"][name]) for name in found["without"]]
        row = (self.name, self.policy, *(f"{a:.2f} -> {b:.2f}" for a, b in pairs))
        if self.fewer is None or self.more is None:
            return (*row, "", "")
        before, after = self.without.tokens_per_forward, self.fewer.tokens_per_forward
        more = self.more.tokens_per_forward
        return (
            *row,
            f"{before:.2f} -> {after:.2f}",
            f"{more:.2f} -> {self.recalling.tokens_per_forward:.2f}",
        )


def folder_of(module: str) -> Path:
    """Where the files of an installed package are."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


def compare(name: str, held_out: HeldOut) -> list[Row]:
    """Both policies on a set, without and with a memory."""
    curve = published_curves()[CURVE].curve
    rows = []
    for policy in (Policy("auto"), Policy("auto", TOKENS)):
        without = replay_policy(policy, held_out.cases, curve)
        recalls = Policy("auto", policy.num_draft_tokens, recalls=True)
        recalling = replay_policy(recalls, held_out.cases, curve, memory=(held_out.memory,))
        fewer = more = None
        if policy.num_draft_tokens is not None:
            fewer = with_as_many_drafts(held_out, (held_out.memory,), without.drafted)
            more = with_as_many_drafts(held_out, (), recalling.drafted)
        rows.append(Row(name, str(policy), without, recalling, fewer, more))
    return rows


def with_as_many_drafts(held_out: HeldOut, memory: Sequence[Segment], drafted: int) -> ReplayResult:
    """The result if drafts end earlier or later than usual, so that about `drafted` tokens are
    drafted for all requests, and no more; with a memory, or without one."""
    low, high, best = 0.0, 1.0, None
    for _ in range(_HALVINGS):
        reach = (low + high) / 2
        tiers = [MemoryTier(ProjectTexts(memory))] if memory else []
        drafter = AutoDrafter(tiers)
        with patch.object(auto, "MIN_REACH_PROB", reach):
            result = replay(lambda: drafter, held_out.cases, FixedPlanner(TOKENS), limit=TOKENS)  # noqa: B023
        low, high = (reach, high) if result.drafted > drafted else (low, reach)
        if result.drafted <= drafted and (best is None or result.drafted > best.drafted):
            best = result
    assert best is not None
    return best


def live(requests: int) -> None:
    """Times ember on held-out files, and writes the record."""
    engine, rows, lines = akunu_py.load("ember"), [], []
    curve = measure_cost_curve(engine.model, budget_s=10.0)
    show, contestants = progress_line("projects"), ("none", "auto", "auto with memory")
    with TemporaryDirectory() as name:
        for done, module in enumerate(MEASURED):
            held_out = hold_out(folder_of(module), engine.tokenizer, Path(name), most=requests)
            memory = Memory({"": ProjectTexts([held_out.memory])})
            engines = [
                Engine(engine.model, engine.backend, calibrate=lambda *_: curve, memory=each)
                for each in (None, None, memory)
            ]
            answers: list[list[TimedCompletion]] = [[] for _ in contestants]
            for number, case in enumerate(held_out.cases):
                prompt, answer = case.prompt[-_LIVE_PROMPT:], case.reference[:_LIVE_ANSWER]
                task = Task(module, ReplayCase(prompt, answer), len(answer), forced=True)
                for turn in range(len(engines)):
                    which = (number + turn) % len(engines)
                    policy = Akunu(contestants[which].split()[0])
                    if (timed := policy.complete(engines[which], task)) is not None:
                        answers[which].append(timed)
            for contestant, found in zip(contestants, answers, strict=True):
                tokens = sum(len(each.tokens) for each in found)
                forwards = sum(each.rounds.forwards for each in found)
                over = [
                    plain.seconds_per_token / each.seconds_per_token
                    for plain, each in zip(answers[0], found, strict=True)
                ]
                row = {
                    "set": module,
                    "contestant": contestant,
                    "tokens_per_forward": round(tokens / forwards, 3),
                    "tokens_per_s": round(
                        1 / statistics.median(each.seconds_per_token for each in found), 1
                    ),
                    "over_none": round(statistics.median(over), 3),
                }
                rows.append(row)
                lines.append(tuple(row.values()))
            show(done + 1, len(MEASURED))
    heads = ("set", "contestant", "tokens per pass", "tokens/s (median)", "speed over none")
    record(
        "project_memory_live",
        "What a memory of a project brings in time",
        f"{machine_line(describe_machine(engine.backend))}. Model ember, forced to write the "
        f"bodies of functions of held-out files ({requests} of each package, up to {_LIVE_ANSWER} "
        f"tokens); each answered by all in turns.\n\n{markdown_table(heads, lines)}",
        {"rows": rows},
    )


def fit(projects: Sequence[HeldOut]) -> str:
    """The priors of recalls, in rows, from what the request and the memory say at every token of
    answers, whichever of them would be drafted from."""
    supports: list[tuple[float, int, bool]] = []
    recalls: list[tuple[int, int, bool]] = []
    for project in projects:
        rates = AcceptanceRates(priors())
        drafter, tier = AutoDrafter(rates=rates), MemoryTier(ProjectTexts([project.memory]))
        for case in project.cases:
            drafter.begin(case.prompt)
            tokens = list(case.prompt)
            for position, token in enumerate(case.reference):
                drafter.propose(1)
                own, context, recall = None, SILENT, tier.recall(tokens)
                if drafter._untried is not None:
                    where, odds, own = drafter._untried
                    prob = rates.of(where, odds)
                    context = rival_class(prob)
                    if recall is not None:
                        support = support_class(recall.length, recall.shares.get(own, 0.0))
                        supports.append((prob, support, own == token))
                ahead = 0 if recall is not None and recall.token != own else TOKENS
                for right in case.reference[position : position + TOKENS - ahead]:
                    if recall is None or recall.token is None:
                        break
                    recalls.append((recall.evidence - EVIDENCE, context, recall.token == right))
                    recall, context = recall.after(right), LEFT
                    if not recalls[-1][2]:
                        break
                drafter.extend([token])
                tokens.append(token)
    probs, cells, was_right = (np.array(column) for column in zip(*supports, strict=True))
    prior, kinds = np.log(probs / (1 - probs)), [len(SUPPORT_ODDS)]
    (support_odds,) = fitted_log_odds(prior, was_right, [cells], kinds)
    evidence, contexts, was_right = (np.array(column) for column in zip(*recalls, strict=True))
    shares = (np.arange(len(RECALLED)) % 10 + 0.5) / 10
    offsets, kinds = np.log(shares / (1 - shares)), [len(RECALLED), len(RIVAL_ODDS)]
    groups = [evidence, contexts]
    first, rival_odds = fitted_log_odds(offsets[evidence], was_right, groups, kinds)
    tables = (
        ("RECALLED", 1 / (1 + np.exp(-offsets - first)), 10),
        ("RIVAL_ODDS", np.exp(rival_odds), len(RIVAL_ODDS)),
        ("SUPPORT_ODDS", np.exp(support_odds), len(SUPPORT_ODDS) // 4),
    )
    return "\n".join(
        f"{name} = (\n"
        + "".join(
            f"    *({', '.join(f'{value:.2f}' for value in table[at : at + wide])}),\n"
            for at in range(0, len(table), wide)
        )
        + ")"
        for name, table, wide in tables
    )


def fitted_log_odds(
    offset: Floats, right: Bits, groups: Sequence[Cells], sizes: Sequence[int]
) -> list[Floats]:
    """By what each cell of each group shifts log odds, by logistic regression (Newton's method);
    rare cells shift less."""
    shifts = [np.zeros(size) for size in sizes]
    for _ in range(_SWEEPS):
        for number, cells in enumerate(groups):
            shift = shifts[number]
            total = offset + sum(own[at] for own, at in zip(shifts, groups, strict=True))
            prob = 1 / (1 + np.exp(-total))
            slope = np.bincount(cells, right - prob, len(shift)) - shift
            step = slope / (np.bincount(cells, prob * (1 - prob), len(shift)) + 1)
            shifts[number] = shift + np.clip(step, -0.5, 0.5)
    return shifts


def chat_rows(data: Path, tokenizer: Tokenizer, memory: HeldOut) -> list[Row]:
    """The chats of MT-bench with the memory of a project that has nothing to do with them."""
    cases = encode_samples(tokenizer, chats(data)).get("chats", [])
    return compare("chats", HeldOut(cases, memory.memory)) if cases else []


def main() -> None:
    parser = options_of(__doc__, quick="10 requests of each package")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--live", action="store_true")
    asked = parser.parse_args()
    requests = 10 if asked.quick else 100
    if asked.live:
        live(min(requests, 20))
        return
    fitting = FITTED if asked.fit else ()
    tokenizer, rows = load_tokenizer("ember"), []
    done, show = 0, progress_line("projects")
    with TemporaryDirectory() as name:
        folder = Path(name)
        for module in MEASURED:
            project = hold_out(folder_of(module), tokenizer, folder, most=requests)
            rows += compare(module, project)
            if asked.data is not None and module == MEASURED[0]:
                rows += chat_rows(asked.data, tokenizer, project)
            done += 1
            show(done, len(MEASURED) + len(fitting))
        fitted_on = []
        for module in fitting:
            most = requests // 2
            fitted_on.append(hold_out(folder_of(module), tokenizer, folder, most=most))
            done += 1
            show(done, len(MEASURED) + len(fitting))
        numbers = fit(fitted_on) if fitting else ""
    heads = ("set", "policy", "tokens per pass", "drafted", "acceptance", f"speedup on {CURVE}",
             "as many drafted as without", "as many drafted as with")  # fmt: skip
    table = markdown_table(heads, [row.cells() for row in rows])
    fitted = ""
    if numbers:
        fitted = f"\nPriors fitted on {', '.join(FITTED)}:\n\n```text\n{numbers}\n```"
    record(
        "project_memory",
        "What a memory of a project brings",
        "A random fifth of each package's files is held out; the bodies of its functions are "
        "written, without and with a memory of the other files. A replay with ember's tokenizer: "
        "speedups are predictions. The last columns are tokens per pass where both draft equally "
        "many tokens for the whole set: drafts with the memory end earlier, or those without it "
        "later."
        f"\n\n{table}\n{fitted}",
        {"rows": [row.as_json() for row in rows]},
    )


if __name__ == "__main__":
    main()
