"""Exact for nothing: finding forward passes that compute identical rows, and staying among them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from akunu_py.calibration import row_classes
from akunu_py.calibration.row_classes import RowClassSearch
from akunu_py.engine import Engine
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_tokenizer
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Options, Sampling
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from akunu_py.planning.costs import KnownCosts
from akunu_py.planning.row_class import BLOCK_ROWS, RowClass, runs_of
from akunu_py.planning.theory import price_of_class
from tests.architectures import config, make_network
from tests.fakes import OracleDrafter
from tests.rounding import ANY_SIZE, CHIPS, Chip, attention_of, round_as

pytestmark = pytest.mark.usefixtures("without_compiler")

CURVE = CostCurve((CostLevel(0, 1.0, ((1, 1.0), (2, 1.0), (5, 1.3), (9, 2.5), (33, 6.0))),))
"""Roughly that of an M3."""

EXPECTED = {
    "m1, 4 bits": RowClass(1, ((0, 5), (160, 5), (320, 5))),
    "m3, 4 bits": RowClass(2, ((0, 8), (160, 8), (320, 8))),
    "m3, 16 bits": RowClass(2, ((0, 5), (160, 5), (320, 5))),
}

PLAINEST: dict[str, Any] = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
"""A Llama of one layer."""


@contextmanager
def chip_model(chip: Chip, kind: str, tokenizer_folder: Path) -> Iterator[TargetModel]:
    """A tiny model that rounds as a chip does."""
    tokenizer = load_tokenizer(str(tokenizer_folder))
    changes = PLAINEST if kind == "llama" else {}
    network, settings = make_network(kind, **changes), config(kind, **changes)
    round_as(chip, network)
    with attention_of(chip):
        yield TargetModel(network, tokenizer, settings, name=kind, layout="dense")


def search_for(chip: Chip, rows: int = 16) -> RowClassSearch:
    return RowClassSearch(chip.edges, (16,), rows=rows, most=9)


def find(model: TargetModel, chip: Chip, rows: int = 16) -> RowClass:
    found = search_for(chip, rows).find(model, CURVE, 60.0, lambda: None)
    assert found is not None
    return found


@pytest.mark.parametrize("name", CHIPS)
def test_the_class_of_a_chip_is_found(name: str, tiny_model_dir: Path) -> None:
    with chip_model(CHIPS[name], "llama", tiny_model_dir) as model:
        found = find(model, CHIPS[name])
    assert replace(found, rows=0, shared=0, seconds=0.0) == EXPECTED[name]
    assert found.shared == found.largest
    assert found.rows >= 16


def test_where_every_size_has_its_own_order_there_is_no_class(tiny_model_dir: Path) -> None:
    with chip_model(ANY_SIZE, "llama", tiny_model_dir) as model:
        assert not find(model, ANY_SIZE).allows_drafts


def test_a_class_that_costs_more_than_blocks_is_none(tiny_model_dir: Path) -> None:
    chip = Chip((1, 2, 3, 4))
    dear = CostCurve((CostLevel(0, 1.0, ((1, 1.0), (3, 1.5), (4, 4.0), (9, 4.5))),))
    with chip_model(chip, "llama", tiny_model_dir) as model:
        assert find(model, chip).smallest == 4
        found = search_for(chip).find(model, dear, 60.0, lambda: None)
    assert found is not None
    assert not found.allows_drafts
    costs = KnownCosts(lambda: replace(dear, row_class=found))
    assert costs.rows_of(Options(exact=True)) == BLOCK_ROWS
    assert costs.exactness(Options(exact=True)) == "exact, in blocks, which costs 50%"
    assert costs.rows_of(Options()) is None


def test_what_is_alike_in_most_rows_only_is_no_class(tiny_model_dir: Path) -> None:
    """Few rows do not show it."""
    forged = Chip((1,), forged=300)
    with chip_model(forged, "llama", tiny_model_dir) as model:
        few = find(model, forged, rows=16)
        enough = find(model, forged, rows=300)
    assert (few.largest, enough.largest) == (8, 2)


def test_what_there_is_no_time_to_prove_counts_as_different(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each forward takes a second."""
    monkeypatch.setattr(row_classes, "perf_counter", count().__next__)
    chip = CHIPS["m3, 4 bits"]
    with chip_model(chip, "llama", tiny_model_dir) as model:
        search = search_for(chip)
        search.find(model, CURVE, 1e9, lambda: None)
        ends = []
        for share in (0.05, 0.6, 1.0):
            found = search_for(chip).find(model, CURVE, share * search.spent_s, lambda: None)
            assert found is not None
            ends.append(found.end if found.allows_drafts else 0)
    assert ends[0] == 0
    assert ends[1] in (160, 320)
    assert ends[2] is None


@pytest.mark.parametrize(
    ("left", "runs"),
    [("aaab", [(1, 3), (4, 4)]), ("abbb", [(2, 4)]), ("aba", [(2, 2), (3, 3)]), ("a", [])],
)
def test_runs_of_sizes(left: str, runs: list[tuple[int, int]]) -> None:
    assert runs_of(left) == runs


def test_no_forward_leaves_its_class_or_passes_an_edge() -> None:
    alike = RowClass(2, ((0, 12), (1024, 8)), end=4096)
    assert [alike.most(context) for context in (0, 900, 1010, 1020, 1021)] == [12, 12, 12, 2, 1]
    assert [alike.most(context) for context in (1022, 2000, 4092, 4093, 4094, 9999)] == [
        8, 8, 2, 1, 1, 1,
    ]  # fmt: skip
    assert alike.unbounded.most(9999) > 1000
    assert [alike.needs_padding(context) for context in (0, 1021, 1022, 1023)] == [
        False, False, True, False,
    ]  # fmt: skip
    assert RowClass().most(0) == 1
    assert not RowClass().allows_drafts


def test_a_class_is_kept_with_the_costs() -> None:
    curve = replace(CURVE, row_class=RowClass(2, ((0, 12), (1024, 8)), 4096, 8, 3000, 1.5))
    assert CostCurve.from_json(curve.as_json()) == curve
    for wrong in ({"smallest": 0}, {"levels": [[5, 1]]}, {"end": -1}, {"levels": 3}):
        data = curve.as_json()
        data["row_class"] |= wrong
        with pytest.raises(ValueError, match=r"no class|not a cost curve"):
            CostCurve.from_json(data)


def test_steps_of_a_class_cost_what_they_are_padded_to() -> None:
    dear = CostCurve((CostLevel(0, 1.0, ((1, 1.1), (2, 1.4), (5, 1.5), (9, 2.0))),))
    padded = dear.with_steps_of(2)
    assert padded.decode_s(0) == pytest.approx(1.3)
    assert padded.verify_table(0, 5) == pytest.approx([1.4, 1.4, 1.4 + 0.1 / 3, 1.4 + 0.2 / 3, 1.5])
    assert price_of_class(dear, RowClass(2, ((0, 9),))) == pytest.approx(0.3, abs=0.02)
    assert price_of_class(dear, RowClass(1, ((0, 33),))) == 0.0
    assert price_of_class(dear, RowClass(1, ((0, 2),))) > 0.5  # its drafts are short


class Answers:
    """Answers of a model on a chip; drafts come from a script, with errors."""

    def __init__(self, model: TargetModel, row_class: RowClass | None) -> None:
        curve = replace(CURVE, row_class=row_class)
        self.engine = Engine(
            model, find_backend(), calibrate=lambda *_: curve, prefill_step_size=64
        )
        self._script: list[int] = []
        self.engine.add_drafter(
            "script", lambda _: OracleDrafter(self._length, self._script, error=0.15)
        )
        self._length = 0

    def texts(self, options: Options, known: list[list[int]] | None = None) -> list[list[int]]:
        """Three turns of a conversation; then two long prompts, one from what is kept."""
        self.engine.reset()
        found: list[list[int]] = []
        prompts = [[7, 11, 5, 60, 7, 11, 100, 3]] * 3 + [[5, 9, 44] * 50, [5, 9, 44] * 103]
        prompt: list[int] = []
        for turn, own in enumerate(prompts):
            prompt = own if turn in (0, 3, 4) else [*prompt, *found[-1], 9, 44, 23]
            self._length, self._script = len(prompt), known[turn] if known else []
            found.append(self.engine.generate(prompt, options).token_ids)
        return found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", CHIPS)
def test_drafts_change_no_token_in_a_class(
    name: str, temperature: float, tiny_model_dir: Path
) -> None:
    """They would change some if the class were ignored; the context passes two edges."""
    sampling = Sampling(temperature=temperature, seed=3)
    with chip_model(CHIPS[name], "llama", tiny_model_dir) as model:
        drafted = Options(32, drafter="script", num_draft_tokens=8).sampled_as(sampling)
        plain = replace(drafted, drafter="none")
        alike = Answers(model, EXPECTED[name])
        expected = alike.texts(plain)
        assert alike.texts(drafted, expected) == expected
        refused = replace(drafted, exact=False)
        assert alike.texts(refused, expected) != alike.texts(replace(refused, drafter="none"))


@pytest.mark.parametrize("name", CHIPS)
def test_exact_answers_share_forwards_of_their_class(name: str, tiny_model_dir: Path) -> None:
    with chip_model(CHIPS[name], "llama", tiny_model_dir) as model:
        alike = Answers(model, replace(EXPECTED[name], shared=EXPECTED[name].largest))
        drafted = Options(40, drafter="ngram", num_draft_tokens=6, exact=True)
        draw, size = Random(3), model.vocabulary_size
        prompts = [draw.choices(range(size), k=length) for length in (8, 301, 154, 148, 311)]
        expected = []
        for prompt in prompts:
            alike.engine.reset()
            plain = replace(drafted, drafter="none")
            expected.append(alike.engine.generate(prompt, plain).token_ids)
        alike.engine.reset()
        found = alike.engine.generate_batch(prompts, drafted)
        assert [one.token_ids for one in found] == expected
        batch = alike.engine.batch
        assert batch.rows > 1.5 * batch.forwards > 0
        alike.engine.reset()
        free = replace(drafted, exact=False)
        found = alike.engine.generate_batch(prompts, free)
        assert [one.token_ids for one in found] != expected


@pytest.mark.parametrize("kind", ["qwen3_5", "gemma3_text"])
def test_states_and_windows_stay_alike(kind: str, tiny_model_dir: Path) -> None:
    chip = replace(CHIPS["m3, 4 bits"], products=(1, 2, 30))
    with chip_model(chip, kind, tiny_model_dir) as model:
        found = find(model, chip)
        assert found.allows_drafts
        alike = Answers(model, found)
        drafted = Options(40, drafter="script", exact=True)
        expected = alike.texts(replace(drafted, drafter="none"))
        assert alike.texts(drafted, expected) == expected


def test_where_nothing_is_known_exact_answers_are_not_drafted(tiny_model_dir: Path) -> None:
    chip = CHIPS["m3, 4 bits"]
    with chip_model(chip, "llama", tiny_model_dir) as model:
        known = RowClass(2, ((0, 8),), end=160)
        alike = Answers(model, known)
        drafted = Options(60, drafter="script", exact=True)
        expected = alike.texts(replace(drafted, drafter="none"))
        assert alike.texts(drafted, expected) == expected
