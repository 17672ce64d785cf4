"""A diff that grows says what changed, and no line of it is taken back."""

from collections import Counter
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from akunu_py.edits.growing import diff_of, growing_diff

LINES = st.lists(st.sampled_from(["a", "b", "c", "", "  d"]), max_size=12)


@given(LINES, LINES)
def test_it_leads_from_the_old_lines_to_the_new(old: list[str], new: list[str]) -> None:
    diff = [line for line in growing_diff(old, new) if line is not None]
    marked = {mark: [line[1:] for line in diff if line[0] == mark] for mark in "+- @"}
    assert Counter(old) - Counter(marked["-"]) + Counter(marked["+"]) == Counter(new)
    assert bool(diff) is (old != new)
    # Each run between headings is in the old text at the number that its heading tells.
    for run in "\n".join(diff).split("@@ line ")[1:]:
        heading, *lines = run.removesuffix("\n").split("\n")
        kept = [line[1:] for line in lines if line[:1] not in ("+", "")]
        assert old[int(heading.removesuffix(" @@")) - 1 :][: len(kept)] == kept


def test_it_grows_with_the_text() -> None:
    old = ["one", "two", "three", "four", "five", "six"]
    shown: list[str] = []
    seen: list[int] = []

    def written() -> Iterator[str]:
        for line in ["one", "TWO", *old[2:]]:
            yield line
            seen.append(len(shown))

    for line in growing_diff(old, written()):
        shown.append(str(line))
    assert shown[:4] == ["@@ line 1 @@", " one", "-two", "+TWO"]
    assert seen[:3] == [0, 0, 5]  # the change is shown when the line after it has come


def test_a_diff_of_files() -> None:
    assert diff_of("a\nb\n", "a\nb\n", "f") == ""
    assert diff_of("a\nb", "a\nc", "f") == (
        "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n"
        "+c\n\\ No newline at end of file\n"
    )
    assert "\x0c" in diff_of("a\x0cb\n", "c\n", "f")
