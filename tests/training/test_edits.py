"""Edits of real functions: always valid Python, and each kind does what its words say."""

import ast
import random
import textwrap
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.training import edits
from models.training.corpus import standard_library
from models.training.edits import Edit, Pool
from models.training.functions import (
    Function,
    distinct,
    functions_of,
)

POOL = Pool(("total", "entries", "cursor", "outcome"), ("None", "len(total)", "3", "total.size"))
SAMPLE = '''def join(self, items, sep=", ", limit: int = 3):
    """Join the items."""
    # only some
    result = ''
    for item in items[:limit]:
        result += sep + self.show(item)
    return result[len(sep):]'''


@cache
def library_functions() -> tuple[Function, ...]:
    names = ("textwrap.py", "bisect.py", "heapq.py", "shlex.py", "csv.py", "fractions.py")
    files = [f for f in standard_library() if f.path in names]
    return tuple(distinct(function for file in files for function in functions_of(file)))


def sample_edit(kind: str, text: str = SAMPLE, *, seed: int = 0) -> Edit:
    function = Function(text, is_method=True, origin="sample")
    for attempt in range(40):
        edit = edits.make_kind(kind, function, random.Random(f"{seed} {attempt}"), POOL)
        if edit is not None:
            return edit
    raise AssertionError(f"{kind} never applies to the sample")


def names_of(text: str) -> list[str]:
    """Every variable and parameter of a program, in the order of its syntax tree."""
    nodes = ast.walk(ast.parse(text))
    return [
        node.id if isinstance(node, ast.Name) else node.arg
        for node in nodes
        if isinstance(node, ast.Name | ast.arg)
    ]


def without_annotations(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
    return ast.dump(tree)


@settings(max_examples=150)
@given(st.sampled_from(sorted(edits.KINDS)), st.integers(0, 10_000), st.integers(0, 999))
def test_every_edit_of_a_library_function_is_sound(kind: str, which: int, seed: int) -> None:
    functions = library_functions()
    function = functions[which % len(functions)]
    edit = edits.make_kind(kind, function, random.Random(seed), POOL)
    if edit is None:
        return
    ast.parse(textwrap.dedent(edit.before))
    ast.parse(textwrap.dedent(edit.after))
    assert edit.kind == kind
    assert (edit.before == edit.after) == (kind == "repeat_code")
    *_, (role, request), (_, answer) = edits.conversation([edit], random.Random(seed))
    assert role == "user"
    either = (" the following code", " this code")  # the second one where no code follows
    words = edit.instruction.replace(*either).removesuffix("\nThe code")
    assert words in request.replace(*either)
    assert edit.before in request
    assert answer == f"```python\n{edit.after}\n```"


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(0, 999))
def test_a_renamed_variable_is_renamed_everywhere_and_nothing_else_is(
    which: int, seed: int
) -> None:
    functions = library_functions()
    function = functions[which % len(functions)]
    edit = edits.make_kind("rename_variable", function, random.Random(seed), POOL)
    if edit is None or " and `" in edit.instruction:
        return
    pairs = zip(names_of(edit.before), names_of(edit.after), strict=True)
    changed = {(before, after) for before, after in pairs if before != after}
    ((old, new),) = changed
    assert old in edit.instruction
    assert new in edit.instruction
    assert old not in names_of(edit.after)


def test_hints_come_and_the_rest_stays() -> None:
    edit = sample_edit("add_hint")
    assert without_annotations(edit.after) == without_annotations(edit.before)


@pytest.mark.parametrize("kind", ["change_quotes", "drop_comments", "change_indent"])
def test_layout_does_not_change_what_code_does(kind: str) -> None:
    text = SAMPLE.replace('    """Join the items."""\n', "").replace('", "', "', '")
    edit = sample_edit(kind, text)
    assert ast.dump(ast.parse(edit.before)) == ast.dump(ast.parse(edit.after))


def test_a_try_block_holds_the_whole_body() -> None:
    edit = sample_edit("wrap_in_try")
    (function,) = ast.parse(edit.after).body
    assert isinstance(function, ast.FunctionDef)
    docstring, statement = function.body
    assert isinstance(statement, ast.Try)
    (original,) = ast.parse(edit.before).body
    assert isinstance(original, ast.FunctionDef)
    assert list(map(ast.dump, statement.body)) == list(map(ast.dump, original.body[1:]))
    assert ast.dump(docstring) == ast.dump(original.body[0])


@pytest.mark.parametrize(
    ("kind", "text", "is_method"),
    [
        ("drop_hints", "def f(a: int) -> int:\n    def g(b: str): ...\n    return g(a)", False),
        ("drop_hints", "def f(a: int):\n    def g(b) -> str: ...\n    return g(a)", False),
        ("rename_attribute", "def f(self):\n    return (self\n        .foo + self.foo)", False),
        # It may call itself, or another function of its name.
        ("rename_function", "def f(self):\n    return self.f()", True),
        ("rename_function", "def open(self):\n    self.file = open(self.path)", True),
        # Its names are attributes or keywords as well.
        (
            "rename_variable",
            "def f(depth, kept):\n    class C:\n        size = 1\n    f(depth=C.size, kept=kept)",
            False,
        ),
        # A generator may not return a value then.
        ("make_async", "def f(a):\n    yield a\n    return 3", False),
        ("make_async", "def f(a):\n    yield from a", False),
    ],
)
def test_what_cannot_be_edited_everywhere_is_not_edited(
    kind: str, text: str, is_method: bool
) -> None:
    function = Function(text, is_method=is_method, origin="test")
    assert all(
        edits.make_kind(kind, function, random.Random(seed), POOL) is None for seed in range(20)
    )


def test_a_method_becomes_a_function_of_a_named_object() -> None:
    edit = sample_edit("method_to_function")
    assert edit.before.startswith("    def join(self, ")
    assert edit.after.startswith("def join(")
    assert "self" not in edit.after


def test_a_docstring_is_added_as_the_instruction_says() -> None:
    edit = sample_edit("add_docstring")
    assert "Join the items." in edit.instruction
    assert "Join the items." not in edit.before
    assert ast.get_docstring(ast.parse(edit.after).body[0]) == "Join the items."  # type: ignore[arg-type]


def test_a_diff_applies_to_give_the_answer() -> None:
    edit = sample_edit("apply_diff")
    diff = edit.instruction.split("```diff\n")[1].split("\n```")[0].split("\n")
    added = [line[1:] for line in diff if line.startswith("+")]
    removed = [line[1:] for line in diff if line.startswith("-")]
    assert all(line in edit.after.split("\n") for line in added)
    assert all(line in edit.before.split("\n") for line in removed)
    assert added or removed


def test_an_edit_leaves_a_function_beside_it_as_it_is() -> None:
    other = Function("def other(a):\n    return a", is_method=False, origin="")
    before = Function("def f(items):\n    return items", is_method=False, origin="")
    edit = Edit("rename_variable", "Rename `items` to `rows`", before.text, "def f(rows): ...")
    shown = {edits.beside(edit, other, random.Random(seed)) for seed in range(20)}
    assert {made.after for made in shown if made} == {
        f"{other.text}\n\n\n{edit.after}",
        f"{edit.after}\n\n\n{other.text}",
    }
    assert edits.beside(edit, before, random.Random(0)) is None
    assert edits.beside(replace(edit, kind="make_async"), other, random.Random(0)) is None
    hint = replace(edit, kind="add_hint", instruction="Annotate the return type as `items`")
    assert edits.beside(hint, other, random.Random(0)) is None
