"""The code that messages show, and warnings about answers of the bundled model."""

from math import log
from time import perf_counter

import pytest

from akunu_py.edits.shown import code_in, doubt_of

DOUBLE = "def double(n):\n    return n * 2"
ASKED = f"make it async\n{DOUBLE}"
AWAITS = "async def f(x): return await get(x)"
ALREADY = "It was like that already."


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (f"Rename n:\n{fenced(DOUBLE)}\nthanks", DOUBLE),
        (ASKED, DOUBLE),
        (f"{DOUBLE}\nnow with a docstring please", DOUBLE),
        ("rename a to b: def f(a): return a + 1", "def f(a): return a + 1"),
        ("rename a to b\ndef f(a): return a + 1", "def f(a): return a + 1"),
        ("fix\nimport os\nx = 1", "import os\nx = 1"),
        ("Remove the decorator: @cache\ndef f(x): return x", "@cache\ndef f(x): return x"),
        ("async\n    def get(self):\n        pass", "    def get(self):\n        pass"),
        ("what is love", ""),
    ],
)
def test_code_is_found_in_a_message(message: str, code: str) -> None:
    assert code_in(message) == code


@pytest.mark.parametrize(
    ("said", "answer", "warning"),
    [
        ([ASKED], fenced(f"async {DOUBLE}"), None),
        ([ASKED], fenced(DOUBLE), "unchanged"),
        ([ASKED], fenced("async def double(n)"), "not valid Python"),
        ([ASKED], fenced(DOUBLE.replace("n)", "n, n)")), "not valid Python"),
        ([f"hint\n    {DOUBLE}"], fenced("    x: int = 1\n    y = 2"), None),
        (["make it sync: async def f(x): return x"], fenced("def f(x): return x"), None),
        ([f"sync: {AWAITS}"], fenced(AWAITS.removeprefix("async ")), "not valid Python"),
        (["change 1 to 2: return 1"], fenced("return 2"), None),
        ([ASKED, fenced(f"async {DOUBLE}"), ASKED], fenced(f"async {DOUBLE}"), None),
        (
            [
                "a to b: def f(b): return b",
                fenced("def f(c): return c"),
                "b to c: def f(b): return b",
            ],
            fenced("def f(c): return c"),
            None,
        ),
        (["Replace `x = 1` with `x = 2` in: x = 1"], fenced("x = 2"), None),
        (["print(1)  use double quotes"], fenced("print(1)"), "unchanged"),
        ([ASKED, fenced("x = 1"), "once more"], fenced("x = 1"), "unchanged"),
        ([ASKED, fenced("x = 1"), "once more"], f"{fenced('x = 1')}\n{ALREADY}", None),
        ([ASKED, fenced("x = 1"), "hint"], f"{fenced(DOUBLE)}\n{ALREADY}", "other code"),
        ([ASKED, fenced("x = 1"), "5 to 6: y = 5"], f"{fenced('x = 1')}\n{ALREADY}", "other code"),
        ([ASKED, "No.", "then call it twice"], fenced(DOUBLE.replace("double", "twice")), None),
        ([ASKED], "That is more than I can do.", None),
        (["what is this"], fenced("f(id){"), None),
        ([f"fix\n{fenced('f(')}"], fenced("f()"), None),
        ([ASKED, fenced("x = 1"), "6"], fenced("x = 6"), None),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(
    said: list[str], answer: str, warning: str | None
) -> None:
    found = doubt_of(said, answer, 0.0)
    assert (found is None) == (warning is None)
    assert (warning or "") in (found or "")


TWO = "class A:\n    def f(self, x): return x\n    def g(self, y): return y"


@pytest.mark.parametrize(
    ("request_", "code", "warning"),
    [
        ("make g async", TWO.replace("def g", "async def g"), None),
        ("make g async", TWO.replace("def f", "async def f"), "names `g`"),
        ("document g", TWO.replace("A:", 'A:\n    "Have f."'), "names `g`"),
        ("add a method after `g`", f"{TWO}\n    def h(self): pass", None),
        ("rename g to h", TWO.replace("g(", "h("), None),
        ("rename y to z", TWO.partition("\n    def g")[0].replace("x", "z"), "is missing"),
        ("remove g", TWO.partition("\n    def g")[0], None),
        ("rename A to B", TWO.replace("A", "B"), None),
        ("hint x", TWO.replace("x)", "x: int)"), None),
        ("use @cache", f"@cache\n@cache\n{TWO}", "a line twice"),
        ("add a g to f", TWO.replace("x)", "x, g)"), None),
        ("comment f", TWO.replace("return x", "return x  # f"), None),
        ("add a hint to the second", TWO.replace("y)", "y: int)").replace("f(", "add("), None),
        ("Insert `import f` at the top", f"import f\n{TWO}", None),
        ("make it a function", "def f(x): return x\ndef g(y): return y", None),
        ("delete the second one", TWO.partition("\n    def g")[0], None),
        ("return False please", TWO.replace("return y", "return False"), None),
        ("make it total", TWO.replace("y", "total"), None),
    ],
)
def test_a_change_in_the_wrong_place_is_seen(request_: str, code: str, warning: str | None) -> None:
    found = doubt_of([f"{request_}:\n{TWO}"], fenced(code), 0.0)
    assert found == doubt_of([f"hint\n{TWO}", "What?", request_], fenced(code), 0.0)
    assert (found is None) == (warning is None)
    assert (warning or "") in (found or "")


@pytest.mark.parametrize(
    ("message", "code", "warning"),
    [
        ("call it y: def sq(x): return x * x", "def y(y): return y * y", "the same name"),
        ("hint `datetime.date`: def date(x): pass", "def date(x: datetime.date): pass", None),
        ("no comments:\nf() # a\nf() # b", "f()\nf()", None),
        ("Insert `f()` after `f()`: f()", "f()\nf()", None),
        ("No comment:\na = 1\n\n# b\n\nc = 1", "a = 1\n\n\nc = 1", None),
        ("Now\n\ndef mul(a): return a\n\nrename a to z, ok?", "def mul(z): return z", None),
        ("a to z\n```py\ndef mul(a): return a\n```", "def mul(z): return z", None),
        ("Replace `x = 1 + 2` with `x = 3`", "x = 3", "is missing"),
        ("use double quotes", TWO, "unchanged"),
    ],
)
def test_right_answers_are_not_taken_for_wrong_ones(
    message: str, code: str, warning: str | None
) -> None:
    shown = [f"hint\n{TWO}", "Try this: Rename `x` to `y` in: def f(x): return x", message]
    found = doubt_of(shown, fenced(code), 0.0)
    assert (found is None) == (warning is None)
    assert (warning or "") in (found or "")


@pytest.mark.parametrize(
    "text",
    ["x = 1\n" * 3000 + "print 1", "\n" * 20_000 + "a", "a\n" * 10_000, "a: " * 7000],
)
def test_long_messages_are_read_in_no_time(text: str) -> None:
    began = perf_counter()
    doubt_of([text, text, text], fenced("x"), 0.0)
    assert perf_counter() - began < 2


def test_deep_code_is_read() -> None:
    deep = "def f(x):\n    return " + " + ".join(["x"] * 900)
    assert doubt_of([f"async\n{deep}"], fenced(f"async {deep}"), 0.0) is None


def test_long_conversations_are_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def is_python(code: str) -> bool:
        read.append(code)
        return False

    monkeypatch.setattr("akunu_py.edits.shown._is_python", is_python)
    assert doubt_of(["no code (at all)"] * 1000, "No.", 0.0) is None
    assert 0 < len(read) < 100


@pytest.mark.parametrize(
    ("answer", "probability", "is_doubted"),
    [(fenced("a = 2"), 0.6, True), (fenced("a = 2"), 0.8, False), ("No.", 0.1, False)],
)
def test_code_that_is_not_probable_is_doubted(
    answer: str, probability: float, is_doubted: bool
) -> None:
    doubt = doubt_of(["Double a = 1"], answer, log(probability))
    assert (doubt is not None) == is_doubted
    assert doubt is None or "not sure" in doubt
