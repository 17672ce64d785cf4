"""Invented requests: sound edits, in words that keep every name as it is."""

import ast
import random
import re
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.training import short_edits, wordings
from models.training.edits import Edit
from models.training.functions import Function, is_function
from models.training.invented import Inventor, in_two_lines, joined
from models.training.phrases import WORDINGS, is_held_out, wordings_of

WORDED = {part.partition(":")[0] for part, one in WORDINGS.items() if one.official and one.others}
AREA = Function("def area(w, h): return w * h", is_method=False, origin="test")


def inventor(seed: int, *, held_out: bool = False) -> Inventor:
    return Inventor(random.Random(seed), held_out=held_out)


def test_a_function_is_not_called_a_variable() -> None:
    words = [words for one in wordings_of("rename_function") for words in one.others]
    assert not [one for one in words if re.search(r"\bvar", one)]


def test_a_request_without_code_does_not_end_in_a_word_that_code_follows_and_a_full_stop() -> None:
    source = inventor(2)
    asked = [short_edits.without_code(source)[0] for _ in range(400)]
    assert not [words for words in asked if re.search(r"\b(?:in|to|of|from)\.$", words)]


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


def test_one_line_and_two_are_the_same_function() -> None:
    two = in_two_lines(AREA)
    assert two == "def area(w, h):\n    return w * h"
    assert joined(two) == AREA.text
    assert joined("def f(x):\n    y = x\n    return y") is None


def test_a_name_of_the_code_keeps_its_letters_and_does_not_look_like_a_string() -> None:
    edit = Edit("replace_expression", "Use `b` instead of `'c'`", "add('c')", "add(b)")
    words = "add should be b"
    assert {wordings.spoken(words, random.Random(seed), edit) for seed in range(20)} == {words}
    said = {wordings.instruction(edit, edit.kind, random.Random(seed)) for seed in range(200)}
    assert len(said) > 20
    assert not [words for words in said if "'b'" in words]


def test_a_method_is_not_made_one_again() -> None:
    for first in ("self", "cls"):
        method = Function(f"def f({first}, x): return x", is_method=False, origin="chat")
        assert short_edits.make("function_to_method", method, inventor(1)) is None


def test_a_question_gets_no_other_mark() -> None:
    rng = random.Random(1)
    said = {wordings.request("can x be y?", "def f(x): return x", rng) for _ in range(300)}
    assert not any(mark in one for one in said for mark in ("?:", "?."))
    assert wordings.ended("can x be y?", rng, (":",)) == "can x be y?"


def test_a_handler_that_was_there_keeps_its_error() -> None:
    text = "def f(x):\n    try:\n        return int(x)\n    except ValueError:\n        return 0"
    function = Function(text, is_method=False, origin="test")
    for seed in range(60):
        edit = made("wrap_in_try", function, seed=seed)
        assert textwrap.indent(text.partition("\n")[2], "    ") in edit.after


def test_code_is_moved_to_its_line_after_any_letters() -> None:
    function = Function("def fläche(größe): return größe", is_method=False, origin="test")
    assert in_two_lines(function) == "def fläche(größe):\n    return größe"


def test_only_orders_follow_can_you() -> None:
    for words in ("no comments", "it should be async", "without comments"):
        said = {wordings.spoken(words, random.Random(seed)) for seed in range(60)}
        assert {one.lower() for one in said} == {words}
    said = {wordings.spoken("remove the comments", random.Random(seed)) for seed in range(60)}
    assert "can you remove the comments" in said


@pytest.mark.parametrize(
    ("kind", "words", "quoted"),
    [
        ("decorate", "Add the decorator `@cache`", "`@cache`"),
        ("rename_attribute", "Rename `self.ab` to `self.cd` in this code", "`self.ab`"),
    ],
)
def test_quotes_stand_around_the_whole(kind: str, words: str, quoted: str) -> None:
    edit = Edit(kind, words, "def f(self): return self.ab", "")
    said = {wordings.instruction(edit, kind, random.Random(seed)) for seed in range(200)}
    assert sum(quoted in one for one in said) > 3
    assert not any(re.search(r"(self\.|@)[`']", one) for one in said)


def test_only_parameters_are_called_so() -> None:
    text = "def f(a, *b, c=1):\n    d = a\n    return d"
    text = text.replace("):", ") -> int:")
    for old, is_parameter in (("a", True), ("b", True), ("c", True), ("d", False)):
        edit = Edit("rename_variable", f"Rename `{old}` to `z` in this code", text, "")
        said = [
            wordings.instruction(edit, edit.kind, random.Random(seed)).lower()
            for seed in range(200)
        ]
        assert any("argument" in words for words in said) == is_parameter


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


def test_four_spaces_are_what_code_had_before_it_was_indented_otherwise() -> None:
    drawn = (short_edits.make("change_indent", LINES, inventor(seed)) for seed in range(60))
    edits = [edit for edit in drawn if edit and re.search("four|4", edit.instruction)]
    assert {edit.after for edit in edits} == {LINES.text}
    assert len({edit.before for edit in edits}) == 2


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


def test_the_second_of_two_edits_is_not_about_what_the_first_one_put_in() -> None:
    texts = ("def f(w, h): return w * h", "def f(w: int | None, h): return w * h")
    hinted = Edit("add_hint", "Annotate `w` with `int | None`", *texts)
    found = [short_edits.two_at_once("add_hint", hinted, inventor(s)) for s in range(300)]
    kept = [both for both in found if both]
    assert kept
    assert all(": int | None" in both.after for both, _ in kept)
