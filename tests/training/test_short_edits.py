"""Invented requests: sound edits, in words that keep every name as it is."""

import ast
import random
import re
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.training import short_edits
from models.training.edits import Edit
from models.training.functions import Function, is_function
from models.training.invented import Inventor
from models.training.phrases import is_held_out

AREA = Function("def area(w, h): return w * h", is_method=False, origin="test")


def inventor(seed: int, *, held_out: bool = False) -> Inventor:
    return Inventor(random.Random(seed), held_out=held_out)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.booleans())
def test_invented_functions_are_python_with_names_of_their_part(seed: int, held_out: bool) -> None:
    made = inventor(seed, held_out=held_out).function()
    assert is_function(made.text)
    own = re.search(r"def (\w+)", made.text)
    assert own
    assert len(own[1]) == 1 or is_held_out(own[1]) == held_out


@settings(max_examples=100)
@given(st.integers(0, 10_000))
def test_a_drawn_edit_is_sound_and_its_request_shows_the_code(seed: int) -> None:
    source = inventor(seed)
    kind, edit = short_edits.drawn(source)
    for text in (edit.before, edit.after):
        ast.parse(textwrap.dedent(text))
    (_, request), (_, answer) = short_edits.conversation(kind, edit, source.rng)
    assert edit.before in request
    assert answer == f"```python\n{edit.after}\n```"
    assert "Qzaxu" not in request + answer


def made(kind: str, function: Function = AREA, *, seed: int = 0) -> Edit:
    for attempt in range(seed, seed + 40):
        edit = short_edits.make(kind, function, inventor(attempt))
        if edit:
            return edit
    raise AssertionError(f"{kind} never applies")


def test_a_docstring_is_described_and_the_body_gets_lines_of_its_own() -> None:
    edit = made("describe")
    assert edit.before == AREA.text
    assert edit.after == ('def area(w, h):\n    """Compute area from w and h."""\n    return w * h')


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_an_expression_like_another_differs_in_one_place(seed: int) -> None:
    old, names = "x * 2 + y", ["x", "y", "z"]
    new = short_edits.alike(old, random.Random(seed), names)
    assert new
    parts, others = old.split(), new.split()
    assert len(parts) == len(others)
    assert sum(a != b for a, b in zip(parts, others, strict=True)) == 1
    ast.parse(new)


LINES = Function(
    'def f(a, b):\n    """Add."""\n    c = a + b\n    log(c)\n    done(a)', False, origin="test"
)


@pytest.mark.parametrize(
    ("kind", "words", "row"),
    [
        ("insert_line", " the top| first line", 3),
        ("insert_line", " the end| last line", 6),
        ("delete_line", "the last line", 5),
        ("delete_line", r"line 3|third line", 3),
        ("delete_line", r"line 4|fourth line", 4),
    ],
)
def test_a_place_is_that_of_the_changed_line(kind: str, words: str, row: int) -> None:
    drawn = (short_edits.make(kind, LINES, inventor(seed)) for seed in range(300))
    edits = [edit for edit in drawn if edit and re.search(words, edit.instruction)]
    assert edits
    for edit in edits:
        before, after = edit.before.split("\n"), edit.after.split("\n")
        longer, shorter = max(before, after, key=len), min(before, after, key=len)
        assert longer[: row - 1] + longer[row:] == shorter


def test_code_whose_lines_are_counted_stands_alone_and_whole() -> None:
    source = inventor(4)
    drawn = [short_edits.drawn(source, "delete_line")[1] for _ in range(300)]
    counted = [
        edit for edit in drawn if re.search(r"line \d|(second|third) line", edit.instruction)
    ]
    assert counted
    for edit in counted:
        row = re.search(r"line (\d)|(second|third) line", edit.instruction)
        assert row
        number = int(row[1] or {"second": 2, "third": 3}[row[2]])
        lines = edit.before.split("\n")
        assert is_function(edit.before)
        assert "\n".join(lines[: number - 1] + lines[number:]) == edit.after


def test_a_check_is_for_the_condition_that_the_words_name() -> None:
    said = {
        "is negative": "{} < 0",
        "equals zero": "{} == 0",
        "is empty": "not {}",
        "is falsy": "not {}",
        "`a > b`": "a > b",
    }
    drawn = [short_edits.make("guard", LINES, inventor(seed)) for seed in range(1500)]
    for words, condition in said.items():
        edits = [edit for edit in drawn if edit and words in edit.instruction]
        assert edits
        for edit in edits:
            name = re.search(r"`([ab])`", edit.instruction)
            expected = condition.format(name[1] if name else "")
            assert f"    if {expected}:\n" in edit.after


def test_a_method_without_a_name_for_self_becomes_a_function_without_it() -> None:
    texts = ("def f(self, x): return x", "def f(self, x): return self.y + x")
    right = ("def f(x): return x", "def f(obj, x): return obj.y + x")
    for text, expected in zip(texts, right, strict=True):
        method = Function(text, is_method=True, origin="test")
        drawn = (short_edits.make("method_to_function", method, inventor(s)) for s in range(80))
        bare = [edit for edit in drawn if edit and "`" not in edit.instruction]
        assert bare
        assert {edit.after for edit in bare} == {expected}


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_a_mistake_is_the_edit_with_something_else_in_one_place(seed: int) -> None:
    source = inventor(seed)
    _, edit = short_edits.drawn(source, "rename_variable")
    found = short_edits.mistaken(edit, source)
    if found:
        mistake, wrong, right = found
        assert mistake.before == edit.before
        assert re.sub(rf"\b{wrong}\b", right, mistake.after) == edit.after
        assert wrong not in re.findall(r"\w+", edit.after)


def test_two_edits_at_once_are_both_made() -> None:
    wide = "def area(wide, h): return wide * h"
    renamed = Edit("rename_variable", "Rename `w` to `wide`", AREA.text, wide)
    found = [short_edits.two_at_once("rename_variable", renamed, inventor(s)) for s in range(200)]
    asynchronous = [both for both in found if both and "async def" in both[0].after]
    assert asynchronous
    for both, asked in asynchronous:
        assert both.before == AREA.text
        assert both.after == f"async {wide}"
        assert "wide" in asked
        assert re.search("async|await|corout", asked, re.IGNORECASE)
