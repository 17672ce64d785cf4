"""Functions as edits are made from them, and the brief forms of the shortest."""

import ast

from models.training.corpus import SourceFile
from models.training.functions import brief_forms, functions_of

TEXT = '''
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
    area, scale, answer = functions_of(SourceFile("package", "area.py", TEXT))
    one_line, two_lines = brief_forms(area)
    assert one_line.text == "def area(width: int, height: int) -> int: return width * height"
    assert two_lines.text == (
        "def area(width: int, height: int) -> int:\n    return width * height"
    )
    for form in (one_line, two_lines):
        assert form.node.name == "area"
        assert not ast.get_docstring(form.node)
    assert not list(brief_forms(scale))
    assert not list(brief_forms(answer))
