"""Classes of forwards at their edges: ends of answers and contexts, company, interruptions."""

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from akunu_py.calibration.row_classes import RowClassSearch
from akunu_py.engine import Engine
from akunu_py.machine.backend import find_backend
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Options
from akunu_py.planning.row_class import RowClass
from akunu_py.prompt import encode_prompt
from tests.decoding.test_row_classes import (
    CURVE,
    EXPECTED,
    Answers,
    chip_model,
    find,
    search_for,
)
from tests.fakes import OracleDrafter
from tests.rounding import CHIPS, Chip

pytestmark = pytest.mark.usefixtures("without_compiler")

ONE = Chip((1, 30))
"""Every size that is looked at is of one class, as with 16 bits or quantized weights on a CPU."""


class Ending:
    """Answers to a prompt, and what the next one finds of them."""

    def __init__(self, model: TargetModel, monkeypatch: pytest.MonkeyPatch, rows: RowClass) -> None:
        self.ends: frozenset[int] = frozenset()
        self.engine = Engine(
            model, find_backend(), calibrate=lambda *_: replace(CURVE, row_class=rows)
        )
        self._script: list[int] = []
        self._length = 0
        self.engine.add_drafter("script", lambda _: OracleDrafter(self._length, self._script))
        monkeypatch.setattr(
            "akunu_py.runner.encode_prompt",
            lambda *given: replace(encode_prompt(*given), end_tokens=self.ends),
        )

    def answer(self, prompt: list[int], options: Options, known: list[int] | None = None):  # type: ignore[no-untyped-def]
        self._length, self._script = len(prompt), known or []
        return self.engine.generate(prompt, options)


def prompts() -> list[list[int]]:
    draw = Random(1)
    return [[draw.randrange(100) for _ in range(30)] for _ in range(4)]


@pytest.mark.parametrize("kind", ["qwen3_5", "rwkv7"])
def test_the_next_turn_reuses_an_answer_that_ended(
    kind: str, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the last two tokens, whatever was drafted: a state is not computed twice."""
    with chip_model(ONE, kind, tiny_model_dir) as model:
        turns = Ending(model, monkeypatch, RowClass(1, ((0, 8),)))
        found = []
        for prompt in prompts():
            turns.ends = frozenset()
            turns.engine.reset()
            whole = turns.answer(prompt, Options(60, drafter="none")).token_ids
            at = max(place for place, token in enumerate(whole[:50]) if token not in whole[:place])
            for drafter in ("none", "script"):
                turns.ends = frozenset({whole[at]})
                turns.engine.reset()
                turns.answer(prompt, Options(60, drafter=drafter), whole)
                turns.ends = frozenset()
                after = turns.answer([*prompt, *whole[: at + 1], 9, 44], Options(2, drafter="none"))
                found.append(len(prompt) + at - after.stats.cached_tokens)
    assert max(found) <= 1


def test_what_is_kept_after_a_stop_string_does_not_depend_on_drafts(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chip_model(ONE, "llama", tiny_model_dir) as model:
        turns = Ending(model, monkeypatch, RowClass(1, ((0, 8),)))
        kept = []
        for prompt in prompts():
            turns.engine.reset()
            whole = turns.answer(prompt, Options(60, drafter="none")).token_ids
            stop = model.tokenizer.decode([whole[15]])
            for drafter in ("none", "script"):
                options = Options(60, drafter=drafter, stop=(stop,), exact=True)
                turns.engine.reset()
                turns.answer(prompt, options, whole)
                after = turns.answer([*prompt, *whole[:50]], Options(2, drafter="none"))
                kept.append(after.stats.cached_tokens)
    assert kept[::2] == kept[1::2]


@pytest.mark.parametrize(("length", "context"), [(130, None), (60, 100)])
def test_company_changes_no_exact_answer_near_an_edge_or_the_end_of_the_context(
    length: int, context: int | None, tiny_model_dir: Path
) -> None:
    """Alone, a step is padded, and has a key more than in company; the last one of a context has
    no room for padding and is of another class."""
    name = "m3, 16 bits"
    with chip_model(CHIPS[name], "llama", tiny_model_dir) as model:
        rows = replace(EXPECTED[name], shared=EXPECTED[name].largest)
        engine = Engine(
            model,
            find_backend(),
            calibrate=lambda *_: replace(CURVE, row_class=rows),
            max_context=context,
            prefill_step_size=64,
        )
        options = Options(None if context else 48, drafter="none", exact=True, logprobs=0)
        asked = [
            ([size, 7, 11, 5] * 40)[: length + 2 * number]
            for number, size in enumerate((2, 5, 9, 3, 4, 6, 8, 12))
        ]
        alone = []
        for prompt in asked:
            engine.reset()
            alone.append(engine.generate(prompt, options).logprobs)
        engine.reset()
        together = engine.generate_batch(asked, options, parallel=8)
    assert [one.logprobs for one in together] == alone


@dataclass(frozen=True)
class ByRows(Chip):
    """From 160 keys on, attention works in blocks whose number depends on the rows."""

    def attention(self, rows: int, total: int, sharing: int) -> int:
        return 1 if total < 160 else 1 + rows % 8


def test_drafts_do_not_end_at_an_edge_unless_somebody_asked(tiny_model_dir: Path) -> None:
    """A class of single steps alone is no reason to stop drafting: it costs what drafts gain."""
    chip = ByRows((1, 30), (160,))
    with chip_model(chip, "llama", tiny_model_dir) as model:
        found = find(model, chip)
        assert found.levels == ((0, 9), (160, 1))
        answers = Answers(model, found)
        plain = Options(40, drafter="none")
        prompt = [5, 9, 44] * 60
        answers.engine.add_drafter("copy", lambda _: OracleDrafter(len(prompt), known))
        known = answers.engine.generate(prompt, plain).token_ids
        answers.engine.reset()
        drafted = answers.engine.generate(prompt, replace(plain, drafter="copy"))
    assert drafted.stats.drafted > 0


def test_a_context_that_ends_before_the_first_edge_has_a_class(tiny_model_dir: Path) -> None:
    """On a Mac the first edge is 1,024: also where memory is short."""
    chip = CHIPS["m3, 4 bits"]
    with chip_model(chip, "llama", tiny_model_dir) as model:
        model.config["max_position_embeddings"] = 1023
        search = RowClassSearch((1024,), (16,), rows=100, most=9)
        assert search.find(model, CURVE, 60.0, lambda: None) is not None


def test_an_interrupted_search_counts_each_row_once(tiny_model_dir: Path) -> None:
    chip = CHIPS["m3, 4 bits"]
    with chip_model(chip, "llama", tiny_model_dir) as model:
        whole, parts = find(model, chip), search_for(chip)
        forwards, found = 0, None

        def tick() -> None:
            nonlocal forwards
            forwards += 1
            if forwards % 100 == 0:
                raise InterruptedError

        while found is None:
            try:
                found = parts.find(model, CURVE, 60.0, tick)
            except InterruptedError:
                continue
    assert found.rows == whole.rows


def test_a_class_is_not_priced_for_every_token(tiny_model_dir: Path) -> None:
    with chip_model(ONE, "llama", tiny_model_dir) as model:
        engine = Answers(model, RowClass(1, ((0, 8),))).engine
        calls, rows_of = 0, engine.costs.rows_of

        def counted(options: Options) -> RowClass | int | None:
            nonlocal calls
            calls += 1
            return rows_of(options)

        engine.costs.rows_of = counted  # type: ignore[method-assign]
        engine.generate([5, 9, 44], Options(100, drafter="none"))
    assert calls < 10
