"""What a draft model brings, alone and combined with n-grams, where the model's work is real.

    python -m benchmarks.draft_model [--repeats 3] [--tokens 160]

Target and draft model are random networks: all forwards are computed, and then the target's choices
are replaced by an answer, and the draft model's logits by that answer with mistakes. `sparse` is
right in every tenth place, `good` in 85 of 100. `novel` repeats nothing; `edits` copies its prompt
with two of 24 tokens replaced by three new ones. Contestants take turns.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import akunu_py
from akunu_py.bench.contestants import ForcedSampler
from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.calibration.measure import measure_cost_curve
from akunu_py.drafting.draft_model import DraftModel
from akunu_py.engine import Engine
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.options import Options
from akunu_py.sequence import Sequence as Requested
from benchmarks.records import markdown_table, record
from tests.tiny_model import write_tiny_model

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)

VOCABULARY = 8000
ACCEPTANCE = {"sparse": 0.1, "good": 0.85}
CONTESTANTS = ("none", "auto", "model", "combined")
_SIZES: dict[str, dict[str, Any]] = {
    "target": {"hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 1536},
    "draft": {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256},
}


class ToldDraftModel(DraftModel):
    """Computes its forwards; its logits are then those of `text`, wrong where `right` is not."""

    text: Sequence[int] = ()
    right: Sequence[bool] = ()

    def append(self, token: mx.array) -> mx.array:
        """Logits after the last of these tokens; a wrong one is less certain, as a rule."""
        logits = super().append(token)
        place = min(self._cache.length, len(self.text) - 1)
        wanted = self.text[place] if self.right[place] else 7
        top = 12.0 if self.right[place] else 9.5
        return 0 * logits + mx.where(mx.arange(VOCABULARY) == wanted, top, 0.0)


def make_texts(tokens: int, seed: int) -> dict[str, tuple[list[int], list[int]]]:
    """Prompts and answers."""
    draw = Random(seed)
    fresh = [draw.randrange(300, VOCABULARY) for _ in range(4 * tokens)]
    source, new = fresh[:tokens], iter(fresh[tokens:])
    edited: list[int] = []
    for begin in range(0, tokens, 24):
        edited += [*source[begin : begin + 22], next(new), next(new), next(new)]
    return {"novel": (source, fresh[2 * tokens : 3 * tokens]), "edits": (source, edited[:tokens])}


def seconds_for(engine: Engine, drafter: str, prompt: list[int], answer: list[int]) -> float:
    """Seconds of decoding a forced answer."""
    engine.reset()
    sampler = ForcedSampler(prompt, answer)
    options = Options(max_tokens=len(answer), drafter=drafter)
    return list(engine.stream(Requested(prompt, options, sampler=sampler)))[-1].stats.decode_s


def main() -> None:
    """Runs the measurement and records it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS)
    parser.add_argument("--name", default="draft_model", help="of the files in results/")
    parser.add_argument("--note", default="", help="a sentence on what else the machine did")
    arguments = parser.parse_args()

    backend = find_backend()
    with TemporaryDirectory() as folder:
        target, draft = (
            load_target(
                akunu_py.ModelOptions(
                    str(write_tiny_model(Path(folder) / name, vocab_size=VOCABULARY, **sizes)),
                    weights="auto",
                ),
                backend,
            )
            for name, sizes in _SIZES.items()
        )
    curve = measure_cost_curve(target)
    without = Engine(target, backend, calibrate=lambda *_: curve)
    engines = {
        name: Engine(target, backend, calibrate=lambda *_: curve, draft_model=draft)
        for name in ACCEPTANCE
    }
    drafting = {name: ToldDraftModel(draft, target) for name in ACCEPTANCE}
    for name, engine in engines.items():
        engine.speculation._draft_model = drafting[name]
    seconds: dict[tuple[str, str, str], list[float]] = {}
    for turn in range(1 + arguments.repeats):
        for kind, (prompt, answer) in make_texts(arguments.tokens, turn).items():
            for name, acceptance in ACCEPTANCE.items():
                coins = Random(turn)
                told = drafting[name]
                told.text = [*prompt, *answer]
                told.right = [coins.random() < acceptance for _ in told.text]
                order = Random(turn).sample(arguments.contestants, len(arguments.contestants))
                for contestant in order:
                    engine = without if contestant in {"none", "auto"} else engines[name]
                    drafter = "auto" if contestant == "combined" else contestant
                    took = seconds_for(engine, drafter, prompt, answer)
                    if turn:
                        seconds.setdefault((kind, name, contestant), []).append(took)
    machine = describe_machine(backend)
    rows = [
        [kind, name, contestant, f"{Spread.of([arguments.tokens / s for s in values]):.1f}"]
        for (kind, name, contestant), values in sorted(seconds.items())
    ]
    table = markdown_table(["text", "draft model", "drafter", "tokens/s"], rows)
    body = (
        f"{machine_line(machine)}\n\nA random target of {_size(target):.0f}M parameters, a draft "
        f"model of {_size(draft):.1f}M; forced answers of {arguments.tokens} tokens, medians of "
        f"{arguments.repeats} turns with their quartiles, after one that warms up. "
        f"{arguments.note}\n\n{table}"
    )
    result = {
        "machine": machine,
        "tokens": arguments.tokens,
        "seconds": {" ".join(key): values for key, values in seconds.items()},
    }
    record(arguments.name, "What a draft model brings", body, result)


def _size(model: akunu_py.model.target_model.TargetModel) -> float:
    return sum(array.size for _, array in _leaves(model)) / 1e6


def _leaves(model: akunu_py.model.target_model.TargetModel) -> list[tuple[str, mx.array]]:
    from mlx.utils import tree_flatten  # noqa: PLC0415

    return list(tree_flatten(model.original.parameters()))


if __name__ == "__main__":
    main()
