"""What is wrong with an edit that the instruction did not ask for."""

import re

import pytest

from akunu_py.edits.doubts import doubt

CODE = "def one():\n    return 1\n\n\ndef two():\n    return one() + 1\n"
LIST = "".join(f"- item {number}\n" for number in range(20))


@pytest.mark.parametrize(
    ("name", "old", "new", "instruction", "sentence"),
    [
        ("a.py", CODE, CODE, "Rename", "gave the text back unchanged"),
        ("a.py", CODE, CODE + "x = (\n", "Add x", "no longer valid Python .line 7"),
        ("a.py", "x = (\n", "y = (\n", "Rename", None),
        ("a.py", CODE, CODE.partition("\n\n")[0], "Rename `x`", "drops two, which"),
        ("a.py", CODE, CODE.partition("\n\n")[0], "Drop the second function", None),
        ("a.py", CODE, CODE.replace("two", "three"), "Use a better name", None),
        (
            "a.py",
            CODE,
            CODE.replace("return 1", "return 1  # x\n    # ... rest"),
            "x",
            "leaves out a part",
        ),
        ("a.py", "class A:\n def f(s): pass\n", "class B:\n pass\n", "Rename `A`", "drops f"),
        ("a.json", '{"a": 1}', '{"a": 1,}', "x", "no longer valid JSON"),
        ("a.json", '{"a": 1}', '{"a": 2}', "x", None),
        ("a.toml", "a = 1", "a = ", "x", "no longer valid TOML"),
        ("a.md", LIST, LIST[:36], "Correct the spelling", "drops 16 of 20 lines"),
        ("a.md", LIST, LIST[:40], "Remove the rest", None),
        ("a.md", LIST, LIST.replace("- item 3\n", ""), "Correct the spelling", None),
        ("a.js", "f()", "// ... existing code ...", "x", "leaves out a part"),
    ],
)
def test_a_doubt_is_a_sentence(
    name: str, old: str, new: str, instruction: str, sentence: str | None
) -> None:
    why = doubt(name, old, new, instruction)
    if sentence is None:
        assert why is None
    else:
        assert why is not None
        assert re.search(sentence, why), why
        assert why.endswith(".")
