"""The built-in workloads: on every machine, the same every time, and not in the training data."""

import ast
import json
from itertools import islice
from textwrap import dedent

import pytest

from akunu_py.bench import WORKLOADS
from akunu_py.bench.replay import repeated_share
from akunu_py.bench.workloads import Sample, encode_samples, held_out, make_workloads
from akunu_py.model.loading import load_tokenizer
from models.training.corpus import STDLIB, SourceFile

PER_KIND = 5


@pytest.fixture(scope="module")
def workloads() -> list[Sample]:
    return make_workloads(PER_KIND)


def of(kind: str, workloads: list[Sample]) -> list[Sample]:
    return [sample for sample in workloads if sample.kind == kind]


def test_they_are_the_same_every_time_and_all_different(workloads: list[Sample]) -> None:
    assert make_workloads(1) == workloads[: len(WORKLOADS)]
    assert tuple(sample.kind for sample in workloads[: len(WORKLOADS)]) == WORKLOADS
    assert len({sample.reference for sample in workloads}) == len(workloads)


def test_an_edit_asks_for_the_code_with_a_name_changed(workloads: list[Sample]) -> None:
    for sample in of("edit", workloads):
        request = sample.messages[0]["content"]
        old, new = request.split("`")[1], request.split("`")[3]
        before = request.partition("```python\n")[2].removesuffix("```")
        after = sample.reference.removeprefix("```python\n").removesuffix("```")
        ast.parse(after)
        assert old in before
        assert len(before.splitlines()) == len(after.splitlines()) >= 6
        assert after.count(new) >= before.count(new) + 1


def test_a_fill_in_is_a_gap_between_whole_lines(workloads: list[Sample]) -> None:
    for sample in of("fill-in", workloads):
        assert sample.prompt.endswith("\n")
        assert sample.suffix is not None
        assert sample.suffix.startswith("\n")
        assert sample.reference.strip()


def test_code_is_the_body_of_a_function_that_has_begun(workloads: list[Sample]) -> None:
    for sample in of("code", workloads):
        lines = sample.prompt.splitlines(keepends=True)
        first = max(at for at, line in enumerate(lines) if line.lstrip().startswith("def "))
        (function,) = ast.parse(dedent("".join(lines[first:]) + sample.reference)).body
        assert isinstance(function, ast.FunctionDef)
        assert len(sample.reference.splitlines()) >= 3


def test_records_continue_in_the_same_form(workloads: list[Sample]) -> None:
    for sample in of("structure", workloads):
        first, *more = (sample.prompt + sample.reference).splitlines()[1:]
        if first.startswith("{"):
            assert all(json.loads(line).keys() == json.loads(first).keys() for line in more)


def test_edits_and_records_repeat_text_and_prose_does_not(
    workloads: list[Sample],
) -> None:
    cases = encode_samples(load_tokenizer("ember"), workloads)
    repeated = {
        kind: sum(map(repeated_share, cases[kind])) / len(cases[kind]) for kind in WORKLOADS
    }
    assert min(repeated["edit"], repeated["structure"]) > 0.5
    assert repeated["novel"] < 0.1


def test_the_held_out_rule_is_that_of_the_training() -> None:
    paths = [f"{name}.py" for name in "abcdefgh"] + [f"json/{index}.py" for index in range(300)]
    assert any(map(held_out, paths))
    for path in islice(paths, 200):
        assert held_out(path) == SourceFile(STDLIB, path, "").held_out
