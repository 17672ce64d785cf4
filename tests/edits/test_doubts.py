"""What is wrong with an edit that the instruction did not ask for."""

import re
from pathlib import Path

import pytest

from akunu_py.edits.edit import doubt, merge_doubt

CODE = "def one():\n    return 1\n\n\ndef two():\n    return one() + 1\n"
ONE = CODE.partition("\n\n")[0]
LIST = "".join(f"- item {number}\n" for number in range(20))
SHORT = "".join(f"k{number}: {number}\n" for number in range(13))


@pytest.mark.parametrize(
    ("name", "old", "new", "instruction", "sentence"),
    [
        ("a.py", CODE, CODE, "Rename", "gave the text back unchanged"),
        ("a.py", CODE, CODE + "x = (\n", "Add x", "no longer valid Python .line 7"),
        ("a.py", "x = (\n", "y = (\n", "Rename", None),
        ("a.py", CODE, ONE, "Rename `x`", "drops two, which"),
        ("a.py", CODE, ONE, "Drop the second function", None),
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
        ("a.yaml", SHORT, "k0: 5\n", "Set k0 to 5", "drops 12 of 13 lines"),
        ("a.py", CODE, ONE, "Add types without changing behaviour", "drops two"),
        ("a.py", CODE, ONE, "Only rename `x`", "drops two"),
        ("a.py", CODE, ONE, "Rename `strip_all`", "drops two"),
        ("a.py", CODE, ONE, "Use `move` instead", "drops two"),
        ("a.py", CODE, ONE, "Do not remove anything", "drops two"),
        ("a.py", CODE, ONE, "Add a docstring to two", "drops two"),
        ("a.py", CODE, "def both():\n    return 2\n", "Unite `one` and `two`", None),
        ("a.json", '{"a": 1}', '{"a": NaN}', "x", "no longer valid JSON .NaN is not JSON"),
        ("a.ipynb", '{"a": 1}', '{"a": 1', "x", "no longer valid JSON"),
        ("script", f"#!/usr/bin/env python3\n{CODE}", "def f(:\n", "x", "no longer valid Python"),
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


@pytest.mark.parametrize(
    "line",
    [
        "# rest of the function unchanged",
        "# (existing code)",
        "# The rest of the code remains the same",
        "... # existing code",
        "pass  # ... rest unchanged",
        "# ...",
        "# Other methods",
    ],
)
def test_a_comment_in_place_of_code_is_doubted(line: str) -> None:
    new = CODE.replace("return 1", f"return 1\n    {line}")
    assert "leaves out a part" in (doubt("a.py", CODE, new, "Rename") or "")
    assert doubt("a.py", new, new.replace("two", "three"), "Rename") is None


def test_a_comment_on_something_else_is_not() -> None:
    new = CODE.replace("return 1", "return 1  # the same for other inputs")
    assert doubt("a.py", CODE, new, "Comment on it") is None


def test_the_file_that_a_link_leads_to_tells_the_language(tmp_path: Path) -> None:
    (link := tmp_path / "conf").symlink_to(tmp_path / "conf.json")
    assert "no longer valid JSON" in (doubt(str(link), '{"a": 1}', '{"a": 1', "x") or "")


OLD = "def f(x):\n    y = x\n    return y\n"


@pytest.mark.parametrize(
    ("update", "new", "why"),
    [
        ("# ... existing code ...\n    return -y", "def f(x):\n    y = x\n    return -y\n", None),
        ("def f(x):\n  return -y", "def f(x):\n    y = x\n    return -y\n", None),
        ("# negate it\n    return -y", "def f(x):\n    y = x\n    return -y\n", None),
        ("    return -y", "def f(x):\n    y = x + 1\n    return -y\n", "y = x + 1"),
        ("    return -y", OLD, "lacks a line of the update: return -y"),
    ],
)
def test_a_merge_has_the_lines_of_both_and_no_others(
    update: str, new: str, why: str | None
) -> None:
    found = merge_doubt(OLD, update, new)
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("a.txt", "# rest " * 30_000),
        ("a.toml", f"{'.'.join('a' * 100_000)} = 1"),
        ("a.toml", f"[{'.'.join('a' * 20_000)}]\n" + "a = 1\n" * 10_000),
        ("a.py", "a;" * 1_000_000),
    ],
)
def test_long_texts_take_no_longer(name: str, rest: str) -> None:
    """Each of these took minutes, or gigabytes."""
    assert doubt(name, f"x = 1\n{rest}\n", f"y = (\n{rest}\n", "Rename `x` to `y`") is None


def test_a_long_instruction_and_many_names_take_no_longer() -> None:
    old = "".join(f"def f{number}(): ...\n" for number in range(4_000))
    quoted = " ".join(f"`f{number}`" for number in range(3_999))
    found = doubt("a.py", old, "def g(): ...\n", f"Unite {quoted}")
    assert found == "The answer drops f3999, which the instruction does not ask for."
