"""What guesses of a network bring beside copies: of a model's head, or of a draft model.

    python -m benchmarks.heads simulation --data DATA  [--quick]
    python -m benchmarks.heads acceptance              [--quick]
    python -m benchmarks.heads draft_model             [--quick]

`simulation`: on Apple's chips and a CPU. Recorded answers are replayed in the shipped loop with
published costs of forward passes, and with a head whose guesses are right with random
probabilities, mostly near 0 or 1, which it reports with some noise. Then the bundled model's own
answers are replayed with what its head guesses in them; no constant of the plan was chosen with
these requests. A guess costs a share of a step. Nothing is measured.

`acceptance`: how often the bundled model's head is right, by depth and kind of text, on packages
that neither the model nor its head has seen. Every round drafts four tokens.

`draft_model`: target and draft model are random networks. All their forwards are computed; then the
target's choices are replaced by an answer, and the draft model's logits by that answer with
mistakes. `sparse` is right in 10% of the places, `good` in 85%. `novel` repeats nothing;
`edits` copies its prompt with two of 24 tokens replaced by three new ones. Contestants take turns.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final

import akunu_py
from akunu_py.bench.contestants import ForcedSampler
from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.bench.workloads import encode_samples
from akunu_py.calibration.cost_store import published_curves
from akunu_py.calibration.measure import measure_cost_curve
from akunu_py.decoding.draft_session import DraftSession, DraftTrimmer
from akunu_py.decoding.loop import Limits, run_alone
from akunu_py.drafting.acceptance import AcceptanceRates, priors
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import Drafter, NoDrafter
from akunu_py.drafting.chain import chain_priors
from akunu_py.drafting.guessing import DraftModel, HeadGuesser
from akunu_py.engine import Engine
from akunu_py.options import MAX_PLANNED_TOKENS, Options, Sampling
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.planner import DraftPlanner
from akunu_py.sampling.sampler import Sampler
from akunu_py.sequence import Sequence as Requested
from benchmarks.known_guesses import (
    EveryGuess,
    Known,
    SimulatedChain,
    SimulatedHead,
    TimedAnswer,
    guessed_rounds,
    own_answers,
)
from benchmarks.random_model import random_target
from benchmarks.records import (
    markdown_table,
    options_of,
    paired_ratios,
    progress_line,
    record,
)
from benchmarks.replay_data import PACKAGES, read_sets, unseen_samples

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)

CHIPS: Final = ("m4-pro", "m4-pro-8b", "m3-max", "m5-max", "m3-ultra", "cpu-quantized")
SETS: Final = ("edits", "chats")
RIGHT: Final = (0.45, 0.6, 0.8)
SHARES: Final = {"27B": 0.06, "9B": 0.14, "35B-A3B": 0.35}
"""What a guess costs, in steps: a layer and an output matrix of 248,000 tokens, of models with
dense layers and of one with experts."""
CONTESTANTS: Final = ("copies", "head", "both")

DEPTHS: Final = 4
MOST_TOKENS: Final = 96

AGREES: Final = {"sparse": 0.1, "good": 0.85}
DRAFTERS: Final = ("none", "copies", "model", "auto")
TOKENS: Final = 320
WRONG: Final = 7
DIMENSIONS: Final[dict[str, Any]] = {
    "model_type": "llama", "head_dim": 64, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
TARGET: Final = {
    "hidden_size": 512, "num_hidden_layers": 10, "intermediate_size": 1536,
    "num_attention_heads": 8, "num_key_value_heads": 8,
}  # fmt: skip
DRAFT: Final = {
    "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256, "num_attention_heads": 2,
    "num_key_value_heads": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A set of requests, a column of its table, a chip, a head and what drafts; `speedup` is over
    plain decoding."""

    requests: str
    column: str
    chip: str
    size: str
    contestant: str
    speedup: float


def speedup_of(cases: Sequence[Known], curve: CostCurve, share: float, contestant: str) -> float:
    """The speedup over plain decoding; `share` is what a guess costs, in steps."""
    rates = AcceptanceRates(priors() | chain_priors())
    planner = DraftPlanner(curve, rates)
    copies: Drafter = NoDrafter() if contestant == "head" else AutoDrafter(rates=rates)
    spent = plain = 0.0
    for case, head in cases:
        chain = None
        if contestant != "copies":
            step = curve.decode_s(len(case.prompt))
            chain = SimulatedChain(head, rates, guess_s=share * step)
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


def cells(sets: Mapping[tuple[str, str], Sequence[Known]], chips: Sequence[str]) -> Iterator[Cell]:
    curves = published_curves()
    every = list(product(sets.items(), chips))
    show = progress_line("sets on chips")
    for done, (((requests, column), cases), chip) in enumerate(every, start=1):
        curve = curves[chip].curve
        copies = speedup_of(cases, curve, 0.0, "copies")
        for size, share in SHARES.items():
            yield Cell(requests, column, chip, size, "copies", copies)
            for contestant in CONTESTANTS[1:]:
                speedup = speedup_of(cases, curve, share, contestant)
                yield Cell(requests, column, chip, size, contestant, speedup)
        show(done, len(every))


def table(found: Sequence[Cell], requests: str) -> str:
    """A row for each chip and head; `copies / head / both` in each column."""
    of = {(one.chip, one.size, one.column, one.contestant): one.speedup
          for one in found if one.requests == requests}  # fmt: skip
    columns = list(dict.fromkeys(column for _, _, column, _ in of))
    rows = [
        (chip, size, *(" / ".join(f"{of[chip, size, column, one]:.2f}" for one in CONTESTANTS)
                       for column in columns))
        for chip, size in dict.fromkeys((chip, size) for chip, size, _, _ in of)
    ]  # fmt: skip
    return markdown_table(("chip", "head of", *columns), rows)


def sections(found: Sequence[Cell]) -> Iterator[str]:
    """The tables, and how both together compare with the better of the two."""
    for requests in dict.fromkeys(one.requests for one in found):
        yield f"{requests}:\n\n{table(found, requests)}"
    of = {(one.requests, one.column, one.chip, one.size, one.contestant): one.speedup
          for one in found}  # fmt: skip
    both = [(key[:-1], speedup) for key, speedup in of.items() if key[-1] == "both"]
    ratios = [speedup / max(of[*key, "copies"], of[*key, "head"]) for key, speedup in both]
    yield (
        f"Both have at least {min(ratios):.2f} of the better of the two, "
        f"{sum(ratios) / len(ratios):.2f} in the mean, and at least "
        f"{min(speedup for _, speedup in both):.2f} of plain decoding."
    )


def simulation(options: Namespace) -> str:
    """What a head brings, on published costs."""
    engine = akunu_py.load()
    some = 8 if options.quick else 24
    read = read_sets(options.data, SETS, "odd", engine.tokenizer)
    simulated = {
        (f"{name}, {len(cases[:some])} requests", f"{right:.0%} right"): [
            (case, SimulatedHead(case.reference, right, seed))
            for seed, case in enumerate(cases[:some])
        ]
        for (name, cases), right in product(read.items(), RIGHT)
    }
    chosen = f"Own answers of the bundled model, {some // 2} requests of each kind"
    own = {(chosen, kind): cases for kind, cases in own_answers(engine, some // 2).items()}
    return "\n\n".join(
        [
            "Speedup over plain decoding, of copies, of the head, and of both.",
            *sections(list(cells(simulated, CHIPS))),
            "An M1 Max is missing: nobody has published what its forward passes cost. MLX reads "
            "the weights again for each row there, as it does in cpu-quantized.",
            *sections(list(cells(own, CHIPS))),
        ]
    )


def acceptance(options: Namespace) -> str:
    """How often the bundled model's head is right."""
    engine, planner = akunu_py.load(), EveryGuess(DEPTHS)
    head = engine.model.head
    assert head is not None
    cases = encode_samples(engine.tokenizer, unseen_samples(4 if options.quick else 12))
    show, rows = progress_line("kinds"), list[tuple[str, ...]]()
    for done, (forced, (kind, some)) in enumerate(product((False, True), cases.items()), start=1):
        right, made = Counter[int](), Counter[int]()
        rounds = tokens = 0
        for case in some:
            plain = Sampler(Sampling(), case.prompt)
            sampler = ForcedSampler(case.prompt, case.reference) if forced else plain
            most = min(MOST_TOKENS, len(case.reference)) if forced else MOST_TOKENS
            guesser = HeadGuesser(head, plain)
            rounds_of = guessed_rounds(
                engine.model, case, sampler, guesser, planner=planner, most=most
            )
            for outcome in rounds_of:
                made.update(range(min(outcome.accepted + 1, len(outcome.draft))))
                right.update(range(outcome.accepted))
                rounds, tokens = rounds + 1, tokens + len(outcome.tokens)
        show(done, 2 * len(cases))
        shares = (
            f"{right[depth] / made[depth]:.2f}" if made[depth] else "" for depth in range(DEPTHS)
        )
        rows.append((kind, "forced" if forced else "own", *shares, f"{tokens / rounds:.2f}",
                     str(rounds), str(len(some))))  # fmt: skip
    heads = ("text", "answers", "first", "second", "third", "fourth", "tokens per pass", "passes",
             "requests")  # fmt: skip
    packages = ", ".join(f"{name} {distribution(name).version}" for name in PACKAGES)
    return "\n\n".join(
        [
            "The share of guesses that are right, of those whose forerunners in the draft are, in "
            f"greedy answers of up to {MOST_TOKENS} tokens. Own answers are the model's; forced "
            "ones are the right ones in place of its choices.",
            markdown_table(heads, rows),
            f"Texts are from {packages}. The first five were held out of all training, the others "
            "were not installed when its texts were collected.",
        ]
    )


class ToldDraftModel(DraftModel):
    """Computes its forwards; its logits are then those of `text`, wrong where `right` is not."""

    text: Sequence[int] = ()
    right: Sequence[bool] = ()

    def advance(self, tokens: Sequence[int], num_draft_tokens: int) -> mx.array | None:
        self._place = len(tokens) - 1
        return super().advance(tokens, num_draft_tokens)

    def append(self, tokens: mx.array) -> mx.array:
        """Logits after the last of these tokens; a wrong one is less certain, as a rule."""
        logits = super().append(tokens)
        self._place += 1
        place = min(self._place, len(self.text) - 1)
        wanted, top = (self.text[place], 12.0) if self.right[place] else (WRONG, 9.5)
        return 0 * logits + mx.where(mx.arange(self.vocabulary) == wanted, top, 0.0)


def made_up(tokens: int, seed: int) -> dict[str, tuple[list[int], list[int]]]:
    """Prompts and answers of random tokens."""
    draw = Random(seed)
    fresh = [draw.randrange(300, 4000) for _ in range(4 * tokens)]
    source, new = fresh[:tokens], iter(fresh[tokens:])
    edited: list[int] = []
    for begin in range(0, tokens, 24):
        edited += [*source[begin : begin + 22], next(new), next(new), next(new)]
    return {"novel": (source, fresh[2 * tokens : 3 * tokens]), "edits": (source, edited[:tokens])}


def seconds_for(engine: Engine, drafter: str, prompt: list[int], answer: list[int]) -> float:
    """Seconds of decoding a forced answer."""
    engine.reset()
    sampler = ForcedSampler(prompt, answer)
    asked = Requested(prompt, Options(len(answer), drafter=drafter), sampler=sampler)
    return list(engine.stream(asked))[-1].stats.decode_s


def draft_model(options: Namespace) -> str:
    """What a draft model brings, alone and beside copies."""
    bundled = akunu_py.load(akunu_py.ModelOptions("ember", no_mtp=True))
    target, draft = (
        random_target(name, DIMENSIONS | own, bundled.model, fuses=True)
        for name, own in (("target", TARGET), ("draft", DRAFT))
    )
    curve = measure_cost_curve(target)
    repeats = 2 if options.quick else 12
    show = progress_line("answers")
    engines = {
        name: Engine(target, bundled.backend, calibrate=lambda *_: curve, draft_model=draft)
        for name in AGREES
    }
    turns = [(turn, *text) for turn in range(1 + repeats)
             for text in made_up(TOKENS, turn).items()]  # fmt: skip
    seconds: dict[tuple[str, str], dict[str, list[float]]] = {}
    for done, (turn, kind, (prompt, answer)) in enumerate(turns, start=1):
        for name, engine in engines.items():
            told = ToldDraftModel(draft, target)
            coins = Random(turn)
            told.text = [*prompt, *answer]
            told.right = [coins.random() < AGREES[name] for _ in told.text]
            engine.speculation.draft_model = told
            for contestant in Random(turn).sample(DRAFTERS, len(DRAFTERS)):
                took = seconds_for(engine, contestant, prompt, answer)
                if turn:  # the first one warms up
                    of = seconds.setdefault((kind, name), {})
                    of.setdefault(contestant, []).append(took)
        show(done, len(turns))
    rows = []
    for (kind, name), of in seconds.items():
        better = min((of["copies"], of["model"]), key=lambda some: Spread.of(some).median)
        speeds = (Spread.of([TOKENS / one for one in of[drafter]]) for drafter in DRAFTERS)
        ratio = paired_ratios(of["auto"], better)
        rows.append((kind, name, *(f"{speed:.1f}" for speed in speeds), f"{ratio:.2f}"))
    heads = ("text", "draft model", "no drafts", "copies", "model", "both", "both over the better")
    return "\n\n".join(
        [
            machine_line(describe_machine(bundled.backend)),
            f"A random target of {target.parameter_count / 1e6:.0f}M parameters, a draft model of "
            f"{draft.parameter_count / 1e6:.1f}M; forced answers of {TOKENS} tokens. Tokens per "
            f"second, medians of {repeats} turns with their quartiles, and the speed of both in "
            "one plan over that of the better one alone, in pairs.",
            markdown_table(heads, rows),
        ]
    )


SUBJECTS: Final[dict[str, tuple[str, Callable[[Namespace], str]]]] = {
    "simulation": ("Heads and copies on published costs", simulation),
    "acceptance": ("How often the head is right", acceptance),
    "draft_model": ("What a draft model brings", draft_model),
}


def main() -> None:
    """Print and record what guesses bring."""
    parser = options_of(__doc__ or "", name="", quick="fewer requests, or turns")
    parser.add_argument("what", choices=SUBJECTS)
    parser.add_argument("--data", type=Path, help="folder of the data sets, for the simulation")
    options = parser.parse_args()
    if options.what == "simulation" and options.data is None:
        parser.error("the simulation needs --data")
    title, found = SUBJECTS[options.what]
    default = "heads" if options.what == "simulation" else f"heads_{options.what}"
    record(options.name or default, title, found(options))


if __name__ == "__main__":
    main()
