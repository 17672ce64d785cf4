"""What a memory of a project brings on its held-out files, and the priors of what it recalls.

    python -m benchmarks.project_memory [--data DATA] [--requests 100]

A replay: nothing is timed. The packages that the priors are fitted on are not those of the table.
`--data` is a folder with MT-bench, whose chats are replayed with the memory of the first project:
it should change nothing for them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from akunu_py.bench.curve_sources import published_curves
from akunu_py.bench.held_out import HeldOut, hold_out
from akunu_py.bench.replay import ReplayResult
from akunu_py.bench.replay_report import Policy, replay_policy
from akunu_py.bench.samples import encode_samples
from akunu_py.drafting.expectation import EVIDENCE, RECALLED
from akunu_py.loading import load_tokenizer
from akunu_py.memory.tiers import MemoryTier, ProjectTexts
from akunu_py.text.tokenizer import Tokenizer
from benchmarks.records import markdown_table, progress_line, record
from benchmarks.replay_data import chats

MEASURED: Final = ("rich", "starlette", "mlx_lm.models", "asyncio", "email")
FITTED: Final = (
    *("httpx", "pydantic", "uvicorn", "prompt_toolkit", "hypothesis", "typer", "huggingface_hub"),
)
CURVE: Final = "m4-pro"
TOKENS: Final = 8
"""Draft tokens per round at most, for the policy without a planner."""
_CONTEXT: Final = 400


@dataclass(frozen=True)
class Row:
    """The results of a policy on one set without and with a memory."""

    name: str
    policy: str
    without: ReplayResult
    recalling: ReplayResult

    def as_json(self) -> dict[str, Any]:
        """The figures, rounded."""
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
                for name, result in (("without", self.without), ("with", self.recalling))
            },
        }

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        found = self.as_json()
        pairs = [(found["without"][name], found["with"][name]) for name in found["without"]]
        return (self.name, self.policy, *(f"{a:.2f} -> {b:.2f}" for a, b in pairs))


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
        rows.append(Row(name, str(policy), without, recalling))
    return rows


def fit(projects: Sequence[HeldOut]) -> list[float]:
    """For each evidence of a recall, how often its token was right, at every token of answers.

    A prior counts as two outcomes, so that rare evidence keeps it.
    """
    right = [2 * prior for prior in RECALLED]
    tried = [2.0] * len(RECALLED)
    for project in projects:
        for case in project.cases:
            tokens = list(case.prompt)[-_CONTEXT:]
            for token in case.reference:
                recall = MemoryTier(ProjectTexts([project.memory])).recall(tokens)
                if recall is not None:
                    right[recall.evidence - EVIDENCE] += recall.token == token
                    tried[recall.evidence - EVIDENCE] += 1
                tokens.append(token)
    return [round(ok / all_, 2) for ok, all_ in zip(right, tried, strict=True)]


def chat_rows(data: Path, tokenizer: Tokenizer, memory: HeldOut) -> list[Row]:
    """The chats of MT-bench with the memory of a project that has nothing to do with them."""
    cases = encode_samples(tokenizer, chats(data)).get("chats", [])
    return compare("chats", HeldOut(cases, memory.memory)) if cases else []


def main() -> None:
    """Replays, fits and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--requests", type=int, default=100)
    asked = parser.parse_args()
    tokenizer, rows = load_tokenizer("ember"), []
    done, show = 0, progress_line("projects")
    with TemporaryDirectory() as name:
        folder = Path(name)
        for module in MEASURED:
            project = hold_out(folder_of(module), tokenizer, folder, most=asked.requests)
            rows += compare(module, project)
            if asked.data is not None and module == MEASURED[0]:
                rows += chat_rows(asked.data, tokenizer, project)
            done += 1
            show(done, len(MEASURED) + len(FITTED))
        fitted_on = []
        for module in FITTED:
            most = asked.requests // 2
            fitted_on.append(hold_out(folder_of(module), tokenizer, folder, most=most))
            done += 1
            show(done, len(MEASURED) + len(FITTED))
        priors = fit(fitted_on)
    heads = ("set", "policy", "tokens a forward", "drafted", "acceptance", f"speedup on {CURVE}")
    table = markdown_table(heads, [row.cells() for row in rows])
    fitted = "\n".join(str(priors[start : start + 10]) for start in range(0, len(priors), 10))
    record(
        "project_memory",
        "What a memory of a project brings",
        "A random fifth of each package's files is held out; the bodies of its functions are "
        "written, without and with a memory of the other files. A replay with ember's tokenizer: "
        f"speedups are predictions.\n\n{table}\n\nPriors fitted on {', '.join(FITTED)}, in rows by "
        f"the length of the match:\n\n```text\n{fitted}\n```",
        {"rows": [row.as_json() for row in rows], "fitted": priors},
    )


if __name__ == "__main__":
    main()
