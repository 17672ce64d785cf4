"""The cost of exactness: forward passes that compute identical rows.

    python -m benchmarks.exact simulate
    python -m benchmarks.exact here --quick

Three questions. On chips that are simulated (`tests/rounding.py` says how), do drafts change a
token within the class that is found, and do they if it is ignored? What does staying in a class
cost on the chips whose costs are published? And which classes are there on this machine?
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import akunu_py
from akunu_py.bench.device_report import KINDS, make_prompts
from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.cache.prompt_store import PromptStore
from akunu_py.calibration.cost_store import CostStore, published_curves
from akunu_py.calibration.measure import find_row_class, measure_and_store
from akunu_py.calibration.row_classes import RowClassSearch
from akunu_py.engine import Engine
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.options import MAX_PLANNED_TOKENS, ModelOptions, Options, Sampling
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.row_class import BLOCK_ROWS, RowClass
from akunu_py.planning.theory import COPY_ACCEPTANCE, predicted_speedup
from benchmarks.records import markdown_table, options_of, progress_line, record, time_in_turns
from tests.architectures import config, make_network
from tests.fakes import OracleDrafter
from tests.planning.curves import LINEAR
from tests.rounding import CHIPS, Chip, attention_of, round_as
from tests.tiny_model import write_tiny_model

_TOKENS: Final = 24
_COMPANY: Final = 4
_FIRST_CONTEXT: Final = 16
_LIKE_M3: Final = RowClass(2, ((0, 8),))
"""What M3 and later should show for 4-bit weights: a step is padded to two rows, and attention has
another kernel from nine rows on."""
_LIKE_M1: Final = RowClass(1, ((0, 5),))
_M1: Final = "m1, m2 (stand-in)"
_SAMPLED: Final = Sampling(temperature=0.8)
_FORMS: Final = ("4 bits", "16 bits", "float32")
_NETWORK: Final[dict[str, Any]] = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


@contextmanager
def simulated(chip: Chip) -> Iterator[TargetModel]:
    """A tiny Llama network that rounds as a chip does."""
    with TemporaryDirectory() as folder:
        write_tiny_model(Path(folder))
        loaded = load_target(ModelOptions(folder, weights="dense"), find_backend())
    network, settings = make_network("llama", **_NETWORK), config("llama", **_NETWORK)
    round_as(chip, network)
    with attention_of(chip):
        yield TargetModel(network, loaded.tokenizer, settings, name="tiny", layout="dense")


class Examination:
    """Answers prompts of a simulated chip in several ways, and counts answers that differ from
    those without drafts."""

    def __init__(self, model: TargetModel, curve: CostCurve, store: Path) -> None:
        self._model, self._curve, self._store = model, curve, store
        self._engine = self._make_engine()
        self.different = Counter[str]()

    def _make_engine(self) -> Engine:
        engine = Engine(
            self._model,
            find_backend(),
            calibrate=lambda *_: self._curve,
            prefill_step_size=64,
            prompt_store=PromptStore(
                self._store, self._model.fingerprint, self._model.sample_cache()
            ),
        )
        engine.add_drafter("script", lambda _: self._drafter)
        return engine

    def examine(self, number: int, prompt: list[int]) -> None:
        """Two turns of a conversation, of which every second is sampled, and drafted by copies or
        by a script that is wrong now and then, as heads are."""
        sampling = replace(_SAMPLED, seed=number) if number % 2 else Sampling()
        name = "ngram" if number // 2 % 2 else "script"
        drafted = Options(_TOKENS, drafter=name, num_draft_tokens=8).sampled_as(sampling)
        for way, exact in (("alike", True), ("class ignored", False)):
            options = replace(drafted, exact=exact)
            plain = self._turns(prompt, replace(options, drafter="none"))
            self._note(way, plain, self._turns(prompt, options, plain))
            if exact:
                usual = replace(options, drafter="none")
                plain = self._turns(prompt, usual, restarts=True)
                found = self._turns(prompt, options, plain, restarts=True)
                self._note("alike, restarted between turns", plain, found)

    def examine_company(self, prompts: Sequence[list[int]]) -> None:
        """Greedy answers at the same time: drafted ones, and those without drafts alone."""
        options = Options(_TOKENS, drafter="ngram", num_draft_tokens=6, exact=True)
        plain = []
        for prompt in prompts:
            self._engine.reset()
            one = self._engine.generate(prompt, replace(options, drafter="none"))
            plain.append(one.token_ids)
        self._engine.reset()
        found = self._engine.generate_batch(prompts, options, parallel=len(prompts))
        self._note("alike, in company", plain, [one.token_ids for one in found])

    def _turns(
        self,
        prompt: list[int],
        options: Options,
        known: Sequence[list[int]] = ((), ()),  # type: ignore[assignment]
        *,
        restarts: bool = False,
    ) -> list[list[int]]:
        engine, found = self._engine, list[list[int]]()
        engine.reset()
        for script in known:
            self._drafter = OracleDrafter(len(prompt), list(script), error=0.15)
            found.append(engine.generate(prompt, options).token_ids)
            prompt = [*prompt, *found[-1], 9, 44, 23]
            if restarts and engine is self._engine:
                engine.save_prompts(closing=True)
                engine = self._make_engine()
        return found

    def _note(self, way: str, plain: Sequence[list[int]], found: Sequence[list[int]]) -> None:
        self.different[way] += sum(a != b for a, b in zip(plain, found, strict=True))


def examine_chip(chip: Chip, prompts: int, curve: CostCurve) -> tuple[RowClass, Counter[str]]:
    """The class that is found on a chip, and how many of the answers differ, by way."""
    draw = Random(7)
    with simulated(chip) as model, TemporaryDirectory() as store:
        search = RowClassSearch(chip.edges, (_FIRST_CONTEXT,), most=12)
        found = search.find(model, curve, 600.0, lambda: None)
        assert found is not None
        examination = Examination(model, replace(curve, row_class=found), Path(store))
        size = model.vocabulary_size
        texts = [
            [number % size, *(draw.randrange(size) for _ in range(draw.choice((7, 30, 150, 290))))]
            for number in range(prompts)
        ]
        for number, prompt in enumerate(texts):
            examination.examine(number, prompt)
        for start in range(0, prompts, _COMPANY):
            examination.examine_company(texts[start : start + _COMPANY])
    return found, examination.different


def predicted(curve: CostCurve, alike: RowClass) -> list[str]:
    """The speed of steps, and of copies, in a class and in blocks, over the speed where nothing is
    exact."""
    padded = curve.with_steps_of(alike.smallest)
    step = curve.decode_s(0) / padded.decode_s(0)

    def copies(costs: CostCurve, most: int) -> float:
        return max(predicted_speedup(costs, k, COPY_ACCEPTANCE, 0) for k in range(most))

    free = copies(curve, MAX_PLANNED_TOKENS + 1)
    block_s = curve.verify_s(BLOCK_ROWS, 0)
    blocks = predicted_speedup(curve, BLOCK_ROWS - 1, COPY_ACCEPTANCE, 0)
    own = step * copies(padded, alike.largest)
    return [
        f"{step:.2f}", f"{own / free:.2f}", f"{curve.decode_s(0) / block_s:.2f}",
        f"{blocks / free:.2f}", f"{free:.2f}",
    ]  # fmt: skip


def load_form(form: str) -> Engine:
    """The bundled model, with weights of a form."""
    weights = "quantized" if form == "4 bits" else "dense"
    engine = akunu_py.load(akunu_py.ModelOptions(weights=weights))
    if form == "16 bits":
        import mlx.core as mx  # noqa: PLC0415  (after the BLAS)

        loaded = engine.model
        loaded.original.set_dtype(mx.bfloat16)
        model = TargetModel(
            loaded.original, loaded.tokenizer, loaded.config, name=loaded.name, layout="dense"
        )
        return Engine(model, engine.backend)
    return engine


def measure_form(form: str, repeats: int, limit_s: float) -> tuple[list[str], dict[str, Any]]:
    """The class of the bundled model here, and the speed of answers that stay in it."""
    engine = load_form(form)
    with TemporaryDirectory() as folder:
        store = CostStore(Path(folder))
        curve = measure_and_store(engine.model, engine.backend, store=store)
        curve = find_row_class(engine.model, engine.backend, curve, store=store, limit_s=limit_s)
    found = curve.row_class
    assert found is not None
    engine = Engine(engine.model, engine.backend, calibrate=lambda *_: curve)
    prompts = make_prompts(engine, 1, _TOKENS)
    ways = {"as usual": Options(_TOKENS), "--no-exact": Options(_TOKENS, exact=False),
            "--exact": Options(_TOKENS, exact=True)}  # fmt: skip

    def answer(options: Options) -> None:
        for prompt in prompts:
            engine.generate(prompt.tokens, options)

    contestants = {way: partial(answer, options) for way, options in ways.items()}
    times = time_in_turns(contestants, repeats=repeats)
    speeds = {
        way: Spread.of([b / a for a, b in zip(times[way], times["--no-exact"], strict=True)])
        for way in ("as usual", "--exact")
    }
    usual = engine.costs.exactness(ways["as usual"])
    row = [
        form, str(found) if found.allows_drafts else "none", f"{found.rows:,}",
        f"{found.seconds:.0f}", usual, f"{speeds['as usual']:.2f}", f"{speeds['--exact']:.2f}",
    ]  # fmt: skip
    return row, {"class": found.as_json(), "seconds": times}


def simulate(prompts: int, name: str) -> None:
    """The record of the chips: simulated ones, and what classes cost on those with known costs."""
    curves = {word: named.curve for word, named in published_curves().items()} | {_M1: LINEAR}
    progress, chips = progress_line("chips"), {}
    for done, (word, chip) in enumerate(CHIPS.items(), start=1):
        chips[word] = examine_chip(chip, prompts, curves["m3-max"])
        progress(done, len(CHIPS))
    machine = describe_machine(find_backend())
    ways = list(next(iter(chips.values()))[1])
    body = "\n\n".join(
        (
            machine_line(machine),
            f"Simulated chips, a tiny Llama network, {prompts} prompts of 8 to 291 tokens, two "
            f"turns each, {_TOKENS} tokens a turn, half of them sampled. Answers that differ from "
            f"those without drafts, of {2 * prompts} ({prompts} in company):",
            markdown_table(
                ["chip", "class", "rows compared", "rows shared", *ways],
                [[word, str(found), f"{found.rows:,}", found.shared, *different.values()]
                 for word, (found, different) in chips.items()],
            ),
            "Speed over that of answers that are not exact, predicted from published costs: in a "
            f"class of {_LIKE_M3.smallest} to {_LIKE_M3.largest} tokens, as M3 and later should "
            f"have for 4-bit weights, and in blocks of {BLOCK_ROWS}. No costs of M1 and M2 are "
            "published: a curve stands in where each row costs a step, in a class of "
            f"{_LIKE_M1.smallest} to {_LIKE_M1.largest}. Copies are right in "
            f"{COPY_ACCEPTANCE:.0%} of tokens; the last column is what they bring there.",
            markdown_table(
                ["costs", "class, no drafts", "class, copies", "blocks, no drafts",
                 "blocks, copies", "copies, not exact"],
                [[word, *predicted(curve, _LIKE_M1 if word == _M1 else _LIKE_M3)]
                 for word, curve in curves.items()],
            ),
        )
    )  # fmt: skip
    result = {
        "machine": machine,
        "chips": {
            word: {"class": found.as_json(), "different": dict(different)}
            for word, (found, different) in chips.items()
        },
    }
    record(name, "Exact for nothing", body, result)


def measure_here(repeats: int, limit_s: float, name: str) -> None:
    """The record of this machine: the classes of three forms of weights, and what they cost."""
    progress, forms = progress_line("forms"), {}
    for done, form in enumerate(_FORMS, start=1):
        forms[form] = measure_form(form, repeats, limit_s)
        progress(done, len(_FORMS))
    machine = describe_machine(find_backend())
    body = "\n\n".join(
        (
            machine_line(machine),
            f"The bundled model, {len(KINDS)} prompts, {_TOKENS} tokens, {repeats} turns; speeds "
            "are over those with `--no-exact`:",
            markdown_table(
                ["weights", "alike", "rows compared", "seconds", "as usual", "speed as usual",
                 "speed with --exact"],
                [row for row, _ in forms.values()],
            ),
        )
    )  # fmt: skip
    result = {"machine": machine, "forms": {form: found for form, (_, found) in forms.items()}}
    record(name, "Exact answers here", body, result)


def main() -> None:
    parser = options_of(__doc__, quick="few prompts, and no time to prove a class")
    parser.add_argument("part", choices=("simulate", "here"))
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--name", help="of the files in results/; exact, or exact_here")
    arguments = parser.parse_args()
    if arguments.part == "simulate":
        simulate(8 if arguments.quick else arguments.prompts, arguments.name or "exact")
        return
    repeats, limit_s = (1, 20.0) if arguments.quick else (arguments.repeats, 900.0)
    measure_here(repeats, limit_s, arguments.name or "exact_here")


if __name__ == "__main__":
    main()
