"""A diff that grows says what changed, and no line of it is taken back."""

from collections import Counter
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from akunu_py.edits.growing import LineMatcher, diff_of, growing_diff
from akunu_py.edits.text_file import TextFile

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


@given(LINES, LINES)
def test_a_diff_of_files_leads_from_one_to_the_other(old: list[str], new: list[str]) -> None:
    first, *hunks = diff_of("".join(f"{it}\n" for it in old), "".join(f"{it}\n" for it in new), "f"
                            ).split("@@ -")  # fmt: skip
    made, done = list[str](), 0
    for hunk in hunks:
        heading, *lines = hunk.removesuffix("\n").split("\n")
        removed, added = (side.split(",") for side in heading.removesuffix(" @@").split(" +"))
        at = int(removed[0]) - (removed[1:] != ["0"])
        made += old[done:at]
        assert len(made) == int(added[0]) - (added[1:] != ["0"])
        kept = [line[1:] for line in lines if line[0] != "+"]
        assert old[at : at + len(kept)] == kept
        made += [line[1:] for line in lines if line[0] != "-"]
        done = at + len(kept)
    assert made + old[done:] == new
    assert bool(first) is bool(hunks) is (old != new)


def test_unchanged_lines_are_found_between_those_that_occur_once() -> None:
    old = ["a", "", "b", "", "c", "", "d"]
    new = ["a", "", "new", "", "b", "", "c", "", "c", "", "d"]
    assert LineMatcher(old, new).get_matching_blocks() == [
        (0, 0, 2), (2, 4, 4), (6, 10, 1), (7, 11, 0),
    ]  # fmt: skip


def test_many_lines_and_repeated_ones_take_no_longer() -> None:
    """Each of these took minutes."""
    repeated = ["x = 1", ""] * 2_000
    once = [f"value_{at} = {at}" for at in range(10_000)]
    for old in (repeated, once):
        new = [line.replace("x", "y").replace("0 =", "o =") for line in old]
        diff = [line for line in growing_diff(old, new) if line is not None]
        changed = sum(line != other for line, other in zip(old, new, strict=True))
        assert sum(line[0] == "+" for line in diff) == changed
        assert diff_of("\n".join(old), "\n".join(new), "f").count("\n+") == changed + 1
        ends = ["\r\n" if at % 3 else "\n" for at in range(len(old))]
        file = TextFile.of("f", "".join(map(str.__add__, old, ends)).encode())
        found = file.encode("\n".join([*new, ""])).decode()
        assert found.replace("\r", "") == "\n".join([*new, ""])
        kept = [line == other for line, other in zip(old, new, strict=True)]
        for line, end, is_kept in zip(found.split("\n"), ends, kept, strict=False):
            assert not is_kept or line.endswith("\r") is (end == "\r\n")
