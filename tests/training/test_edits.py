"""Edits of real functions: always valid Python, and each kind does what its words say."""

import ast
import random
import re
import textwrap
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.training import edits, wordings
from models.training.corpus import SourceFile, standard_library
from models.training.edits import Edit, Pool
from models.training.functions import (
    Function,
    brief_forms,
    comments_of,
    distinct,
    functions_of,
    is_function,
    with_comments,
    with_similar_lines,
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


@pytest.mark.parametrize(
    ("text", "hinted"),
    [
        ("def mean(): return total(rows)", r"def mean\(\) -> .+: return total\(rows\)"),
        ("def wait(n=5) -> None: rest(n)", r"def wait\(n: .+ = 5\) -> None: rest\(n\)"),
    ],
)
def test_functions_of_one_line_get_hints(text: str, hinted: str) -> None:
    function = Function(text, is_method=False, origin="test")
    made = [edits.make_kind("add_hint", function, random.Random(s), POOL) for s in range(9)]
    assert any(made)
    assert all(re.fullmatch(hinted, edit.after) for edit in made if edit)


@pytest.mark.parametrize(
    ("text", "may_be_plain"), [("def f(n): x(n)", True), ("def f(n=5): x(n)", False)]
)
def test_a_parameter_has_the_default_that_is_asked_for(text: str, may_be_plain: bool) -> None:
    function = Function(text, is_method=False, origin="test")
    made = [edits.make_kind("add_parameter", function, random.Random(s), POOL) for s in range(40)]
    plain = [one for one in made if one and one.after.count("=") == text.count("=")]
    assert bool(plain) is may_be_plain
    for one in filter(None, made):
        assert ("=" in one.instruction or "default" in one.instruction) is (one not in plain)


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


@pytest.mark.parametrize("kind", ["guard", "wrap_in_try"])
def test_what_is_added_on_top_stands_above_the_comments_and_is_indented_alike(kind: str) -> None:
    edit = sample_edit(kind, "def f(a):\n  # of all\n  b = a\n  return b")
    added = {
        "guard": "  if .*:\n    (?:return|raise) ",
        "wrap_in_try": "  try:\n    # of all\n",
    }[kind]
    assert re.match(rf"def f\(a\):\n{added}", edit.after)


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


def test_words_that_lead_to_the_code_stand_right_before_it() -> None:
    rng = random.Random(0)
    for _ in range(200):
        said = wordings.request("change the quotes in", "x = 1", rng)
        assert not re.search(r"in(?:\.| -) x", said)
        assert "please" not in wordings.spoken("change the quotes in", rng).split()[-1]


def test_only_code_follows_a_word_that_leads_to_it() -> None:
    for seed in range(300):
        made = edits.make(library_functions()[seed % 50], random.Random(seed), POOL)
        if made:
            turns = edits.conversation([made, made], random.Random(seed))
            said = [words.split("```python")[0] for role, words in turns if role == "user"]
            assert not [
                words for words in said if re.search(r"\b(?:in|to|of|from|for)\.\s*$", words)
            ]


def test_a_method_becomes_a_function_of_a_named_object() -> None:
    edit = sample_edit("method_to_function")
    assert edit.before.startswith("    def join(self, ")
    assert edit.after.startswith("def join(")
    assert "self" not in edit.after


def test_letters_outside_ascii_stand_before_what_is_changed() -> None:
    text = 'def f(self, x):\n    return "янц" + self.size * x'
    function = Function(text, is_method=True, origin="test")
    for seed in range(40):
        made = edits.make_kind("rename_attribute", function, random.Random(seed), POOL)
        assert made
        new = re.search(r"self\.(\w+)", made.after)
        assert new
        assert made.after == text.replace("size", new[1])


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


FILE = '''
def area(width: int, height: int) -> int:
    """Of a rectangle."""
    return width * height


def scale(values, by):
    for index, value in enumerate(values):
        values[index] = value * by


@cached
def answer():

    return 42
'''


def test_what_does_one_thing_has_brief_forms() -> None:
    area, scale, answer = functions_of(SourceFile("package", "area.py", FILE))
    one_line, two_lines = brief_forms(area)
    header, statement = "def area(width: int, height: int) -> int:", "return width * height"
    assert one_line.text == f"{header} {statement}"
    assert two_lines.text == f"{header}\n    {statement}"
    assert not list(brief_forms(scale))
    assert not list(brief_forms(answer))


SETUP = """\
def setup(self, name, size=3):
    self.name = name
    if size > 10:
        raise ValueError(name)
    return self.name"""


def test_similar_lines_are_added_and_none_is_lost() -> None:
    function, lines = Function(SETUP, is_method=True, origin="here"), SETUP.split("\n")
    texts = [with_similar_lines(function, random.Random(seed)).text for seed in range(40)]
    words = [set(re.findall(r"[^ ()]+", line)) for line in lines]
    for text in texts:
        assert is_function(text)
        rest = iter(text.split("\n"))
        assert all(line in rest for line in lines)  # in their order
        for line in text.split("\n"):
            mine = set(re.findall(r"[^ ()]+", line))
            assert min(len(mine ^ other) for other in words) <= 4
    lengths = [text.count("\n") + 1 for text in texts]
    assert sum(length > len(lines) for length in lengths) > 30
    assert max(lengths) <= 60


@pytest.mark.parametrize("text", [SETUP, 'def f(x):\n    y = """abc\n    """\n\n    return x + y'])
def test_comments_come_and_go_without_a_trace(text: str) -> None:
    words = comments_of([Function("def f():\n    # one two\n    pass", False, "")])
    assert words == ["one two"]
    rng, function = random.Random(3), Function(text, is_method=False, origin="here")
    for _ in range(40):
        commented = with_comments(function, words, rng)
        assert not re.search(r"# *$", commented.text, re.MULTILINE)
        edit = edits.make_kind("drop_comments", commented, rng, POOL)
        assert edit is not None
        assert edit.after == text
