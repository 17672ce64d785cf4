"""Parts of a text, found by number, by function, and by what an instruction concerns."""

import textwrap
from collections.abc import Callable
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.edits.parts import Part, function_part, lines_part, splice, windows
from akunu_py.errors import EditError, InvalidRequestError

TEXT = textwrap.dedent("""\
    import os

    LIMIT = 3


    def area(w, h):
        return w * h


    class Box:
        size = 1

        # How much fits in.
        @property
        def volume(self):
            return area(1, 2)

        def area(self):
            return "area"


    def last():
        return LIMIT
    """)


@given(st.text(alphabet=" \t\nab", min_size=1))
def test_a_part_goes_back_where_it_was(text: str) -> None:
    part = Part.of(text, 0, len(text))
    assert splice(text, [(part, part.in_place(part.text))]) == text
    assert part.text == part.text.strip("\n")


def test_a_method_is_shown_without_its_indentation() -> None:
    part = function_part("a.py", TEXT, "volume")
    assert part.text == "@property\ndef volume(self):\n    return area(1, 2)"
    changed = part.in_place(part.text.replace("area(1, 2)", "2\n\n# end"))
    assert splice(TEXT, [(part, changed)]) == TEXT.replace("area(1, 2)", "2\n\n    # end")


def test_functions_by_name() -> None:
    assert function_part("a.py", TEXT, "Box.area").text.endswith('return "area"')
    assert function_part("a.py", TEXT, "Box").text.startswith("class Box:\n    size")
    assert function_part("a.py", TEXT, "area").text.endswith("return w * h")
    twice = TEXT.replace("def last", "class Bag:\n    def volume(self): ...\n\n\ndef last")
    with pytest.raises(InvalidRequestError, match=r"2 functions volume; it has Box\.volume, Bag"):
        function_part("a.py", twice, "volume")
    with pytest.raises(InvalidRequestError, match=r"a\.py has no functions or classes\."):
        function_part("a.py", "x = 1", "f")
    with pytest.raises(InvalidRequestError, match="no function no; it has area, Box, "):
        function_part("a.py", TEXT, "no")
    with pytest.raises(InvalidRequestError, match=r"which a\.js is not; give its `lines`"):
        function_part("a.js", "function f() {}", "f")
    with pytest.raises(InvalidRequestError, match="Python without carriage returns"):
        function_part("a.py", f"x = 1\r{TEXT}", "last")


def test_sections_of_python_with_carriage_returns_begin_at_empty_lines() -> None:
    text = f"x = 1\ry = 2\r{TEXT}"
    parts = list(windows(text, Part.of(text, 0, len(text)), "Rename `last`", shorter_than(130)))
    assert [part.text for part in parts] == ["def last():\n    return LIMIT"]


@pytest.mark.parametrize("answer", ["  def f(y):\n\n    pass", "def f(y):\n\n  pass"])
def test_an_answer_is_not_indented_twice(answer: str) -> None:
    text = "class A:\n  def f(x):\n\n    pass"
    part = lines_part("a.py", text, 2, 4)
    assert splice(text, [(part, part.answered(answer))]) == text.replace("x", "y")


def test_lines_by_number() -> None:
    assert lines_part("a.py", TEXT, 6, 7).text == "def area(w, h):\n    return w * h"
    assert lines_part("a.py", TEXT, 23, 99).text == "return LIMIT"
    assert lines_part("a.py", "a\nb", 2, 2).text == "b"
    for first, last in ((0, 1), (3, 2), (99, 100)):
        with pytest.raises(InvalidRequestError, match="there are no `lines`"):
            lines_part("a.py", TEXT, first, last)
    with pytest.raises(InvalidRequestError, match="has 1 line; there are no `lines` 5:9"):
        lines_part("a.py", "a\n", 5, 9)


def shorter_than(limit: int) -> Callable[[Part], bool]:
    return lambda part: len(part.text) < limit


def test_a_text_that_fits_is_one_window() -> None:
    whole = Part.of(TEXT, 0, len(TEXT))
    assert list(windows(TEXT, whole, "Anything", shorter_than(1000))) == [whole]


@pytest.mark.parametrize(
    ("instruction", "found"),
    [
        ("Rename `LIMIT` to `MOST`", ["LIMIT = 3", "def last"]),
        ("Make last faster", ["def last"]),
        ("Rename the function volume", ["# How much"]),
        ('Say "area" louder', ["def area", "# How much"]),
    ],
)
def test_longer_ones_have_windows_where_the_instruction_concerns_them(
    instruction: str, found: list[str]
) -> None:
    whole = Part.of(TEXT, 0, len(TEXT))
    parts = list(windows(TEXT, whole, instruction, shorter_than(130)))
    assert [part.text.lstrip()[: len(start)] for part, start in zip(parts, found, strict=True)] == (
        found
    )
    again = [(part, part.in_place(part.text)) for part in parts]
    assert splice(TEXT, again) == TEXT


def test_sections_of_prose_begin_at_headings() -> None:
    text = "# One\nfirst part\n## Two\nsecond\n\nThree third\nis here\n"
    parts = list(windows(text, Part.of(text, 0, len(text)), "change second", shorter_than(20)))
    assert [part.text for part in parts] == ["## Two\nsecond"]


def test_an_instruction_about_nothing_and_a_part_that_is_too_long() -> None:
    whole = Part.of(TEXT, 0, len(TEXT))
    with pytest.raises(EditError, match="names no word of it; give a `function` or `lines`"):
        list(windows(TEXT, whole, "Do better", shorter_than(130)))
    with pytest.raises(EditError, match="function or section from line 22 on"):
        list(windows(TEXT, whole, "Rename `last`", shorter_than(10)))


@given(st.lists(st.sampled_from(["a\n\n", "a b\n\n", "c\n\n", "a " * 9 + "\n\n"]), min_size=1))
def test_windows_have_as_many_sections_as_fit(sections: list[str]) -> None:
    text = "".join(sections)
    whole, fits = Part.of(text, 0, len(text)), shorter_than(20)
    expected: list[str] = []
    for before, section in pairwise(["c", *sections]):
        if "a" not in section:
            continue
        joined = f"{expected[-1]}\n\n{section[:-2]}" if "a" in before else ""
        if joined and len(joined) < 20:
            expected[-1] = joined
        else:
            expected.append(section[:-2])
    if fits(whole) or not expected:
        return
    assert [part.text for part in windows(text, whole, "rename `a`", fits)] == expected


def test_words_are_found_whole_and_signs_anywhere() -> None:
    text = "rows.append(1)\n\nrow = 2\n\nother\n"
    whole = Part.of(text, 0, len(text))
    for instruction, found in (("`row`", "row = 2"), ("`.append(`", "rows.append(1)")):
        (part,) = windows(text, whole, instruction, shorter_than(20))
        assert part.text == found


def test_long_texts_and_instructions_take_no_longer() -> None:
    """Each of these took minutes, or memory without end."""
    text = "# bb\n" * 50_000
    whole = Part.of(text, 0, len(text))
    asked: list[Part] = []

    def fits(part: Part) -> bool:
        asked.append(part)
        return len(part.text) < 4_000

    parts = list(islice(windows(text, whole, "Rename bb", fits), 3))
    assert [part.text.count("#") for part in parts] == [800] * 3
    assert len(asked) < 100
    words = " ".join(f"a{number}" for number in range(30_000))
    with pytest.raises(EditError, match="names no word of it"):
        list(windows(text, whole, words, fits))
    with pytest.raises(EditError, match="quotes too much"):
        list(windows(text, whole, f"`{words.replace(' ', '` `')}`", fits))
    with pytest.raises(InvalidRequestError, match="of up to 65,536 words and signs"):
        function_part("a.py", f"def f(): ...\n{'a;' * 40_000}", "f")
    methods = " def g(): ...\n" * 6_000
    with pytest.raises(InvalidRequestError, match="no function f; it has aaa"):
        function_part("a.py", f"class {'a' * 1_000_000}:\n{methods}", "f")


def test_lines_of_an_answer_get_no_endless_indentation() -> None:
    part = Part.of(f"{' ' * 1_000}x\n", 0, 1_002)
    assert (part.indent, part.text) == ("", f"{' ' * 1_000}x")
