"""Requests made of edits: both of two are made, and a mistake is put right."""

import ast
import random
import re
import textwrap

from hypothesis import given, settings
from hypothesis import strategies as st

from models.training import combined, short_edits
from models.training.edits import Edit
from models.training.invented import Inventor

AREA = "def area(w, h): return w * h"


def inventor(seed: int) -> Inventor:
    return Inventor(random.Random(seed))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_a_mistake_is_the_edit_with_something_else_in_one_place(seed: int) -> None:
    source = inventor(seed)
    _, edit = short_edits.drawn(source, "rename_variable")
    found = combined.mistaken(edit, source)
    if found:
        mistake, wrong, right = found
        assert mistake.before == edit.before
        assert re.sub(rf"\b{wrong}\b", right, mistake.after) == edit.after
        assert wrong not in re.findall(r"\w+", edit.after)


def test_two_edits_at_once_are_both_made() -> None:
    renamed = Edit(
        "rename_variable", "Rename `w` to `wide`", AREA, "def area(wide, h): return wide * h"
    )
    found = [combined.two_at_once("rename_variable", renamed, inventor(s)) for s in range(200)]
    asynchronous = [both for both in found if both and "async def" in both[0].after]
    assert asynchronous
    for both, asked in asynchronous:
        assert both.before == AREA
        assert both.after == "async def area(wide, h): return wide * h"
        assert "wide" in asked
        assert re.search("async|await|corout", asked, re.IGNORECASE)


def test_the_second_of_two_edits_is_not_about_what_the_first_one_put_in() -> None:
    hinted = Edit(
        "add_hint",
        "Annotate `w` with `int | None`",
        "def f(w, h): return w * h",
        "def f(w: int | None, h): return w * h",
    )
    found = [combined.two_at_once("add_hint", hinted, inventor(s)) for s in range(300)]
    kept = [both for both in found if both]
    assert kept
    assert all(": int | None" in both.after for both, _ in kept)


def test_a_request_for_two_edits_shows_the_code() -> None:
    source = inventor(9)
    for _ in range(30):
        (_, request), (_, answer) = combined.request_for_two(source)
        assert "def " in request
        ast.parse(textwrap.dedent(answer.removeprefix("```python\n").removesuffix("```")))
