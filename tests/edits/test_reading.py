"""Answers in three formats, of the shapes that models give them."""

import textwrap

import pytest

from akunu_py.edits.reading import (
    FORMATS,
    question,
    read_answer,
    whole_lines,
)
from akunu_py.errors import EditError

TEXT = "def area(w, h):\n    return w * h\n\n\ndef main():\n    print(area(2, 3))\n    return 0"
NEW = TEXT.replace("w * h", "h * w")


def test_a_question_can_be_answered_by_a_whole_text() -> None:
    for form in FORMATS:
        system, user = question(TEXT, "Swap them.", "a.py", form)
        asked = user["content"]
        assert system["role"] == "system"
        assert read_answer(asked[asked.index("```python") :], TEXT) == TEXT
        assert "Swap them." in asked


@pytest.mark.parametrize(
    "answer",
    [
        f"```python\n{NEW}\n```",
        f"Sure! Here it is:\n\n```python\n{NEW}\n```\nI swapped `w` and `h`.",
        f"```\n\n{NEW}\n\n\n```",
        f"~~~py\n{NEW}\n~~~",
        f"1. Here it is:\n   ```python\n{textwrap.indent(NEW, '   ')}\n   ```\n",
        f"````python\n{NEW}\n````\n",
        f"```python\n{NEW}\n```\n".replace("\n", "\r\n"),
    ],
)
def test_a_whole_text(answer: str) -> None:
    assert read_answer(answer, TEXT) == NEW


def block(search: str, replace: str, marks: int = 7) -> str:
    left, middle, right = ("<" * marks, "=" * marks, ">" * marks)
    return f"{left} SEARCH\n{search}{middle}\n{replace}{right} REPLACE\n"


SWAP = block("    return w * h\n", "    return h * w\n")


@pytest.mark.parametrize(
    "answer",
    [
        SWAP,
        f"Here are the changes:\n\na.py\n```python\n{SWAP}```\n\nThat is all.",
        f"```python\na.py\n{SWAP}```",
        SWAP.replace("\n", "   \n", 1),
        block("    return w * h\n", "    return h * w\n", marks=5),
        block("    return w * h\n", "    return h * w\n", marks=9),
        block("return w * h\n", "return h * w\n"),
        block("        return w * h\n", "        return h * w\n"),
        block("    return w * h  \n", "    return h * w\n"),
        block("def area(w, h):\n    return w * h\n", "def area(w, h):\n    return h * w\n"),
        SWAP + block("    return 0\n", "    return\n") + block("    return\n", "    return 0\n"),
    ],
)
def test_search_and_replace_blocks(answer: str) -> None:
    assert read_answer(answer, TEXT) == NEW


def test_a_block_may_delete_and_add_lines() -> None:
    answer = block("def main():\n    print(area(2, 3))\n", "def main() -> int:\n    # Begin.\n\n")
    expected = TEXT.replace("main():\n    print(area(2, 3))", "main() -> int:\n    # Begin.\n")
    assert read_answer(answer, TEXT) == expected
    assert read_answer(block("\n\ndef main():\n", "def main():\n"), TEXT) == TEXT.replace(
        "\n\n\ndef", "\ndef"
    )


DIFF = " def area(w, h):\n-    return w * h\n+    return h * w\n"


@pytest.mark.parametrize(
    "answer",
    [
        f"```diff\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n{DIFF}```",
        f"```diff\n--- a.py\n+++ a.py\n@@ ... @@\n{DIFF}```",
        f"```diff\n@@ -40,2 +40,2 @@\n{DIFF}```\nDone.",
        f"--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n{DIFF}",
        f"```\n--- a.py\n+++ a.py\n@@\n{DIFF}\n```",
        f"```diff\n@@ -1 +1 @@\n{DIFF} \n\n@@ -6 +6 @@\n-    return 0\n+    return 1\n"
        "@@ @@\n-    return 1\n+    return 0\n```",
    ],
)
def test_diffs(answer: str) -> None:
    assert read_answer(answer, TEXT) == NEW


def test_spaces_at_the_ends_of_lines_stay() -> None:
    text = "a \nb\nc\t\nd"
    assert read_answer(block("a\nb\nc\n", "a\nx \nc\n"), text) == "a \nx \nc\t\nd"
    assert read_answer("```diff\n@@\n a\n-b\n+x \n```", text) == "a \nx \nc\t\nd"


def test_comments_of_two_dashes_in_a_diff() -> None:
    diff = "```diff\n--- a.sql\n+++ b.sql\n@@ -1 +1 @@\n--- old\n+-- new\n select 1\n```"
    assert read_answer(diff, "-- old\nselect 1\n-- end") == "-- new\nselect 1\n-- end"


def test_the_end_of_a_file_in_a_diff() -> None:
    diff = (
        "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
    )
    assert read_answer(diff, "a\nb") == "a\nc"


def test_the_number_of_a_hunk_chooses_among_equal_lines() -> None:
    text = "x = 1\ny = 2\nx = 1"
    assert read_answer("@@ -3 +3 @@\n-x = 1\n+x = 3", text) == "x = 1\ny = 2\nx = 3"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("I cannot do that.", "answered without an edit: I cannot do that."),
        ("", "answered without an edit: nothing."),
        ("no " * 300, "without an edit: no no .* \\.\\.\\.$"),
        (block("    return a\n", "    return b\n"), "nowhere in the text; .* 'return a'"),
        ("@@\n-    return\n+    pass\n", "nowhere in the text"),
        (block("x = 1\n", "x = 2\n"), "nowhere"),
        (SWAP.rpartition(">>>>>>>")[0], "without an end"),
        (SWAP + "<<<<<<< SEARCH\n    return 0\n", "without an end"),
        (block("", "import os\n"), "adds lines without saying where"),
        (block("    return 0\n", "    return 0\n"), "contains no change"),
        ("```diff\n```", "contains no change"),
    ],
)
def test_what_cannot_be_applied_says_why(answer: str, sentence: str) -> None:
    with pytest.raises(EditError, match=sentence):
        read_answer(answer, TEXT)


def test_lines_that_occur_twice_are_not_guessed() -> None:
    with pytest.raises(EditError, match="in 2 places"):
        read_answer("@@ -2 +2 @@\n-x = 1\n+x = 2", "x = 1\ny = 2\nx = 1")
    with pytest.raises(EditError, match="in 2 places"):
        read_answer(block("x = 1\n", "x = 2\n"), "x = 1\ny = 2\nx = 1")


def test_a_text_with_fences_of_its_own() -> None:
    text = "# Title\n\n```sh\nmake\n```\n\nMore.\n\n```\nend\n```"
    asked = question(text, "Change it.", "a.md", "whole")[-1]["content"]
    assert asked.endswith(f"````md\n{text}\n````")
    for fence in ("````", "```"):
        assert read_answer(f"{fence}markdown\n{text}\n{fence}\nDone.", text) == text


def test_a_block_that_is_added_to_a_text() -> None:
    new = "# Title\n\n```sh\nmake\n```\n\nMore."
    answer = f"```markdown\n{new}\n```\nDone."
    assert read_answer(answer, "# Title\n\nMore.") == new


def test_a_diff_in_a_text_is_text() -> None:
    text = "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y"
    assert read_answer(f"```\n{text}z\n```", text) == f"{text}z"


def test_lines_come_as_they_are_complete() -> None:
    answer = f"Here:\n```python\n\n{NEW}\n\n```\nDone.".split("\n")
    assert list(whole_lines(answer)) == NEW.split("\n")[:-1]
    # A line waits for the next one, as it may be the name of a file or begin a diff.
    for count, expected in ((3, 0), (4, 0), (5, 1), (8, 4)):
        assert len(list(whole_lines(answer[:count]))) == expected
    for other in (
        f"```diff\n@@\n{DIFF}",
        f"```\n--- a\n+++ b\n@@\n{DIFF}",
        f"```\na.py\n{SWAP}",
        "  ```\n  a\n  b\n  c",
    ):
        assert list(whole_lines(other.split("\n"))) == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (f"```python\n{NEW}\n```\nUse it:\n```sh\npython a.py\n```", TEXT),
        (f"```python\n{NEW}\n```\nUse it:\n```python\narea(1, 2)\n```", TEXT),
        ("```md\n# A\nb\n```\nmake\n```\nc\n```", "# A\nb\nc"),
        ("```\n# A\n```\nmake\n```\nc\n\n```\nx\n```\n```", "# A\n```\nmake\n```\nc"),
    ],
)
def test_one_of_several_blocks_is_not_guessed(answer: str, text: str) -> None:
    with pytest.raises(EditError, match="several code blocks"):
        read_answer(answer, text)


MARKDOWN = "# Tool\n\nTeh one\n\n```\nmake\n```\n\nTeh end."
CORRECT = MARKDOWN.replace("Teh", "The")


@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
def test_marks_in_a_block_are_those_of_the_text(fence: str) -> None:
    assert read_answer(f"Here:\n{fence}md\n{CORRECT}\n{fence}\nDone.", MARKDOWN) == CORRECT


@pytest.mark.parametrize(
    ("answer", "text", "sentence"),
    [
        (f"```python\n{NEW}", TEXT, "has no end"),
        (f"````md\n{CORRECT}\n```", MARKDOWN, "has no end"),
        (f"```md\n{CORRECT}\n```\nTo check:\n```\nmake\n```", MARKDOWN, "several code blocks"),
        (f"````md\n{CORRECT}\n````\nOr:\n````\nx\n````", MARKDOWN, "several code blocks"),
        ("```md\na\n```\nmake\n```\nb\n```", "a\nb", "several code blocks"),
        ("```\nb\n```\nis now\n```\na\nc\n```", "a\nb", "several code blocks"),
        (CORRECT, MARKDOWN, "outside of its code block"),
        ("```\n```", TEXT, "is empty"),
        ("```\n\n```", TEXT, "is empty"),
    ],
)
def test_a_block_is_not_cut_in_silence(answer: str, text: str, sentence: str) -> None:
    with pytest.raises(EditError, match=sentence):
        read_answer(answer, text)


@pytest.mark.parametrize("language", ["diff", "patch", ""])
def test_diffs_of_git(language: str) -> None:
    heading = (
        "diff --git a/a.py b/a.py\nindex 1..2 100644\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n"
    )
    assert read_answer(f"```{language}\n{heading}{DIFF}```", TEXT) == NEW


def test_the_numbers_of_a_diff_are_those_of_the_old_text() -> None:
    text = "top\n" + "x\ny\nz\n" * 4
    diff = "@@ -1 +1,7 @@\n top\n" + "+new\n" * 6 + "@@ -8,3 +14,3 @@\n x\n-y\n+changed\n z"
    expected = text.replace("top\n", "top\n" + "new\n" * 6).split("\n")
    expected[14] = "changed"
    assert read_answer(diff, text).split("\n") == expected


def test_marks_of_blocks_in_the_lines_of_a_diff() -> None:
    lines = [f" {line}".replace(" Teh", "-Teh") for line in MARKDOWN.split("\n")]
    diff = "\n".join(it + it.replace("-Teh", "\n+The") * (it[0] == "-") for it in lines)
    assert read_answer(f"```diff\n@@ -1,9 +1,9 @@\n{diff}\n```", MARKDOWN) == CORRECT
    one, two = (f"```diff\n@@\n-{it}\n+new\n```\n" for it in ("a", "b"))
    with pytest.raises(EditError, match="several code blocks"):
        read_answer(one + two, "a\nb")


def test_a_text_that_is_like_an_answer_is_read_as_a_whole_only() -> None:
    text = f"Blocks:\n{SWAP}end"
    assert read_answer(f"```\n{text}s\n```", text) == f"{text}s"
    with pytest.raises(EditError, match="use the format `whole`"):
        read_answer(f"```\n{SWAP}```", text)
    diff = "diff --git a b\n--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y"
    for whole in (diff, f"From: me\n\n{diff}"):
        assert read_answer(f"```diff\n{whole}z\n```", whole) == f"{whole}z"


def test_the_middle_of_a_block_is_not_guessed() -> None:
    with pytest.raises(EditError, match=r"not clear where the middle"):
        read_answer(block("b\n", "c\n=======\nd\n"), "a\nb")
    with pytest.raises(EditError, match=r"not clear where the middle"):
        read_answer(block("A\n=====\nx\n", "A\n=====\ny\n"), "A\n=====\nx")
    with pytest.raises(EditError, match=r"not clear where the middle"):
        read_answer("<<<<<<< SEARCH\na\n>>>>>>> REPLACE", "a")


@pytest.mark.parametrize("foreign", ["\r", "\0", "\ufeff"])
def test_an_edit_adds_no_foreign_characters(foreign: str) -> None:
    with pytest.raises(EditError, match="adds the character"):
        read_answer(f"```\na{foreign}b\n```", "a")
    assert read_answer(f"```\na{foreign}b\n```", f"{foreign}a") == f"a{foreign}b"


@pytest.mark.parametrize(
    ("first", "last", "sentence"),
    [("def f():", "    return None", "elides the end"), ("def g():", "    return 1", "nowhere")],
)
def test_an_elision_does_not_lead_elsewhere(first: str, last: str, sentence: str) -> None:
    text = "def f():\n    return 1\n\n\ndef g():\n    return None"
    answer = block(f"{first}\n...\n{last}\n", f"{first}\n...\n    return 0\n")
    with pytest.raises(EditError, match=sentence):
        read_answer(answer, text)


def test_an_elision_ends_at_the_nearest_lines() -> None:
    text = "def f():\n    a\n    return\n\ndef g():\n    return"
    answer = block("def f():\n...\n    return\n", "def f():\n...\n    return 0\n")
    assert read_answer(answer, text) == text.replace("return", "return 0", 1)


def test_elisions_stand_for_any_lines() -> None:
    text = textwrap.dedent("""\
        class A:
            def one(self):
                return 1

            def two(self):
                return 2""")
    answer = block(
        "class A:\n    def one(self):\n...\n    def two(self):\n        return 2\n",
        "class B:\n    def one(self):\n...\n    def two(self):\n        return 3\n",
    )
    assert read_answer(answer, text) == text.replace("A:", "B:").replace("2", "3")


def test_what_looks_like_an_elision_and_is_in_the_text_is_text() -> None:
    text = "class A:\n    ...\n\nclass B:\n    ..."
    answer = block("class B:\n    ...\n", "class C:\n    ...\n")
    assert read_answer(answer, text) == text.replace("B", "C")


@pytest.mark.parametrize(
    ("answer", "text", "sentence"),
    [
        ("<<<<<<< SEARCH\n" * 20_000, "a", "without an end"),
        (f"{'~' * 100_000}`\n", "a", "without an edit"),
        (block("a\n" * 2_000 + "b\n", "c\n"), "a\n" * 4_000, "nowhere"),
        ("@@ -1 @@\n" + "-a\n" * 2_000 + "+b\n", "a\n" * 4_000, "in too many places"),
    ],
)
def test_long_answers_take_no_longer(answer: str, text: str, sentence: str) -> None:
    """Each of these took many seconds, or minutes."""
    with pytest.raises(EditError, match=sentence):
        read_answer(answer, text)


def test_a_question_about_a_text_with_a_long_mark() -> None:
    text = f"{'~' * 100_000}`"
    assert question(text, "Swap", "a.md", "whole")[1]["content"].endswith(f"{text}\n```")


def test_numbers_of_lines_may_have_any_length() -> None:
    assert read_answer(f"@@ -{'1' * 5_000} @@\n-a\n+b\n", "a") == "b"
