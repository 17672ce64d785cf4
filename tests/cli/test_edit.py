"""`edit`: files change as the answer says, or not at all, and then it says why."""

import json
import os
import sys
from collections.abc import Callable, Generator
from contextlib import chdir
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from akunu_py.__main__ import main
from akunu_py.cli import edit as command
from akunu_py.errors import ContextOverflowError
from akunu_py.events import Event
from tests.cli.fakes import ENDLESS, FakeEngine

OLD = "def f(x):\n    return x\n\n\ndef g():\n    pass\n"
NEW = OLD.replace("x", "y")
DIFF = "@@ -1,5 +1,5 @@\n-def f(x):\n-    return x\n+def f(y):\n+    return y\n"

Answer = Callable[..., FakeEngine]


def fenced(text: str) -> str:
    return f"```python\n{text}```"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.py"
    path.write_text(OLD)
    return path


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Makes an engine with these answers the one that is loaded."""

    def make(*answers: str, interrupts: int = 0, context: int = 20_000) -> FakeEngine:
        engine = FakeEngine(*answers, interrupts=interrupts, context=context)
        monkeypatch.setattr(command, "load_engine", lambda _: engine)
        return engine

    return make


class Terminal(StringIO):
    """A terminal, on which something may have been typed."""

    def isatty(self) -> bool:
        return True


def test_it_writes_the_edit_and_shows_it(
    answers: Answer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = answers(f"Sure:\n{fenced(NEW)}\nAnd more.")
    assert main(["edit", str(path), "Rename x", "--yes", "--backup"]) == 0
    printed = capsys.readouterr()
    assert path.read_text() == NEW
    assert path.with_name("file.py.bak").read_text() == OLD
    assert DIFF in printed.out
    assert "tokens · 0.5 s" in printed.err
    assert "Rename x" in engine.prompts[0]
    assert OLD in engine.prompts[0]


def test_a_check_writes_nothing(
    answers: Answer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(fenced(NEW), fenced(OLD), "No.")
    codes = [main(["edit", str(path), "Rename x", "--check"]) for _ in range(3)]
    assert codes == [1, 0, 4]
    assert path.read_text() == OLD
    assert capsys.readouterr().err.count(f"{path} would not change.\n") == 1


@pytest.mark.parametrize(
    ("typed", "expected"), [("y\n", NEW), ("n\n", OLD), ("", OLD), ("what\nYES\n", NEW)]
)
def test_it_asks_on_a_terminal(
    answers: Answer, path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, expected: str
) -> None:
    answers(fenced(NEW))
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert main(["edit", str(path), "Rename x"]) == 0
    assert path.read_text() == expected


def test_the_answer_can_be_changed_in_an_editor(
    answers: Answer, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(fenced(NEW))
    monkeypatch.setenv("VISUAL", "sed -i s/y/z/")
    monkeypatch.setattr(sys, "stdin", Terminal("e\ny\n"))
    assert main(["edit", str(path), "Rename x"]) == 0
    assert path.read_text() == OLD.replace("x", "z")
    assert "+def f(z):" in capsys.readouterr().out


def test_a_terminal_shows_a_diff_in_colours(
    answers: Answer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(fenced(NEW.replace("pass", "pass  # \x1b[2J")))
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    assert main(["edit", str(path), "Rename x", "--check"]) == 1
    lines = shown.getvalue().splitlines()
    assert lines[1:4] == ["\x1b[2m@@ line 1 @@\x1b[0m", "\x1b[31m-def f(x):\x1b[0m",
                          "\x1b[31m-    return x\x1b[0m"]  # fmt: skip
    assert "\x1b[32m+    pass  # \u241b[2J\x1b[0m" in lines


def test_without_a_terminal_it_does_not_ask(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO())
    assert main(["edit", str(path), "Rename x"]) == 2
    assert "add --yes, --check or --json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("I cannot.", "The model answered without an edit: I cannot."),
        (fenced(OLD), "The model gave the text back unchanged."),
        (fenced("def f(:\n"), "is no longer valid Python"),
        (fenced(OLD.replace("(x)", "(x, x)")), "is no longer valid Python"),
        (fenced("def f(y):\n    return y\n"), "The answer drops g, which the instruction does"),
        ("<<<<<<< SEARCH\nno\n=======\nyes\n>>>>>>> REPLACE", "nowhere in the text"),
        (fenced(NEW.replace("y", "yy" * 3000)), "The answer was cut after"),
    ],
)
def test_what_is_wrong_is_not_written(
    answers: Answer, path: Path, capsys: pytest.CaptureFixture[str], answer: str, sentence: str
) -> None:
    answers(answer)
    assert main(["edit", str(path), "Rename x", "--yes"]) == 4
    assert path.read_text() == OLD
    err = capsys.readouterr().err
    assert err.index(f"{path} was left unchanged. ") < err.index(sentence)


def test_what_the_bundled_model_is_not_sure_of_is_not_written(
    answers: Answer, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(fenced(NEW))
    monkeypatch.setattr("akunu_py.cli.edit.is_unsure", lambda _: True)
    assert main(["edit", str(path), "Rename x", "--yes"]) == 4
    assert path.read_text() == OLD
    assert f"{path} was left unchanged. The model is not sure" in capsys.readouterr().err


def test_a_doubtful_edit_is_offered_with_the_doubt(
    answers: Answer, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(fenced("def f(:\n"))
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert main(["edit", str(path), "Rename x"]) == 0
    assert path.read_text() == "def f(:\n"
    err = capsys.readouterr().err
    assert err.index("no longer valid Python") < err.index("apply anyway? [y/n/e]")


def test_a_part_is_all_that_the_model_sees(answers: Answer, path: Path) -> None:
    path.write_text(
        "class A:\r\n    def f(x):\r\n        return x\r\n\r\n    x = 1\r\n", newline=""
    )
    engine = answers("```python\ndef f(y):\n    return y\n```", "```\n\tdef f(z):\n```")
    assert main(["edit", str(path), "Rename x", "--function", "A.f", "--yes"]) == 0
    assert "```python\ndef f(x):\n    return x\n```" in engine.prompts[0]
    assert "class A" not in engine.prompts[0]
    expected = b"class A:\r\n    def f(y):\r\n        return y\r\n\r\n    x = 1\r\n"
    assert path.read_bytes() == expected
    assert main(["edit", str(path), "Rename y", "--lines", "5", "--yes"]) == 4


def test_an_answer_in_two_formats_is_refused(
    answers: Answer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = "<<<<<<< SEARCH\n    return x\n=======\n    return 1\n>>>>>>> REPLACE\n"
    answers(f"{fenced(OLD)}\n{changes}")
    assert main(["edit", str(path), "Rename x", "--yes"]) == 4
    assert path.read_text() == OLD
    assert "in more than one format" in capsys.readouterr().err


def test_a_long_file_goes_in_windows(answers: Answer, path: Path) -> None:
    functions = [f"def f{number}(x):\n    return x + {number}\n\n\n" for number in range(100)]
    path.write_text("".join(functions))
    engine = answers("```\ndef seven(x):\n    return x + 7\n```")
    engine.context_limit = 1000
    assert main(["edit", str(path), "Rename `f7` to seven", "--yes"]) == 0
    assert len(engine.prompts) == 1
    assert path.read_text() == "".join(functions).replace("f7(", "seven(")


def test_a_pipe(
    answers: Answer, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    answers(fenced(NEW.replace("y", "é")), "No.")
    for expected, code in ((OLD.replace("x", "é"), 0), (OLD, 4)):
        given = OLD.replace("\n", "\r\n").encode()
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(given)))
        assert main(["edit", "-", "Rename x"]) == code
        assert capsysbinary.readouterr().out == expected.replace("\n", "\r\n").encode()


def test_json_is_one_object(
    answers: Answer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(fenced(NEW), "No.")
    other = path.with_name("other.py")
    other.write_text(OLD)
    assert main(["edit", str(path), str(other), "Rename x", "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    one, two = found["files"]
    assert (found["model"], one["file"], one["changed"], one["written"]) == (
        "fake", str(path), True, False,
    )  # fmt: skip
    assert DIFF in one["diff"]
    assert one["why"] is None
    assert (two["changed"], two["diff"]) == (False, "")
    assert two["why"] == "The model answered without an edit: No."
    assert path.read_text() == OLD


def test_output_leaves_the_file_alone(answers: Answer, path: Path) -> None:
    answers(fenced(NEW), "No.")
    for code in (0, 4):
        words = ["edit", str(path), "Rename x", "--output", str(path.with_name("new.py"))]
        assert main(words) == code
    assert path.with_name("new.py").read_text() == NEW
    assert path.read_text() == OLD


def test_output_to_a_pipe_is_written_to_it(answers: Answer, path: Path) -> None:
    os.mkfifo(pipe := path.with_name("pipe"))
    answers(fenced(NEW))
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        assert main(["edit", str(path), "Rename x", "--output", str(pipe)]) == 0
        assert reader.read() == NEW.encode()
    assert pipe.is_fifo()


def test_output_that_cannot_be_written_is_refused_before_the_model_runs(
    answers: Answer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = answers()
    (fixed := path.with_name("fixed.py")).write_text("keep\n")
    fixed.chmod(0o444)
    for output, sentence in (
        (path.parent, "is a folder."),
        (path.with_name("absent") / "new.py", "There is no folder"),
        (fixed, "fixed.py is read-only."),
    ):
        assert main(["edit", str(path), "Rename x", "--output", str(output)]) == 2
        assert sentence in capsys.readouterr().err
    assert not engine.prompts
    assert fixed.read_text() == "keep\n"


def test_output_that_its_encoding_cannot_hold_leaves_no_file(answers: Answer, path: Path) -> None:
    path.write_bytes(b"caf\xe9 x = 1\n")
    answers(fenced("café € = 1\n"))
    output = path.with_name("new.py")
    assert main(["edit", str(path), "Rename x", "--output", str(output)]) == 4
    assert not output.exists()


def test_output_to_the_file_itself_does_not_overwrite_changes(
    answers: Answer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = answers(fenced(NEW))
    stream = engine.stream

    def change(*asked: Any) -> Generator[Event, None, None]:
        path.write_text("of another\n")
        return stream(*asked)

    monkeypatch.setattr(engine, "stream", change)
    assert main(["edit", str(path), "Rename x", "--output", str(path)]) == 4
    assert path.read_text() == "of another\n"


def test_one_file_that_cannot_be_edited_stops_no_other(answers: Answer, path: Path) -> None:
    other = path.with_name("other.py")
    other.write_text(OLD)
    answers("No.", fenced(NEW))
    assert main(["edit", str(path), str(other), "Rename x", "--yes"]) == 4
    assert (path.read_text(), other.read_text()) == (OLD, NEW)


def test_empty_and_unreadable_files_stop_no_others(
    answers: Answer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (empty := path.with_name("__init__.py")).touch()
    absent = path.with_name("absent.py")
    answers(fenced(NEW), fenced(OLD))
    assert main(["edit", str(empty), str(path), "Rename x", "--yes"]) == 0
    assert path.read_text() == NEW
    assert f"{empty} is empty; it was skipped." in capsys.readouterr().err
    path.write_text(NEW)
    assert main(["edit", str(absent), str(path), "Rename y", "--yes", "--json"]) == 4
    assert path.read_text() == OLD
    found = json.loads(capsys.readouterr().out)["files"]
    assert [(one["file"], one["written"]) for one in found] == [
        (str(absent), False), (str(path), True),
    ]  # fmt: skip
    assert "cannot be read" in found[0]["why"]


def test_one_file_that_is_refused_stops_no_other(
    answers: Answer, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (other := path.with_name("other.py")).write_text(OLD)
    engine = answers(fenced(NEW))
    stream = engine.stream

    def refuse(*_: Any) -> Generator[Event, None, None]:
        monkeypatch.setattr(engine, "stream", stream)
        raise ContextOverflowError("The prompt does not fit.")

    monkeypatch.setattr(engine, "stream", refuse)
    assert main(["edit", str(path), str(other), "Rename x", "--yes"]) == 4
    assert (path.read_text(), other.read_text()) == (OLD, NEW)
    assert f"{path} was left unchanged. The prompt does not fit." in capsys.readouterr().err


def test_json_has_what_was_done_before_ctrl_c(
    answers: Answer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (other := path.with_name("other.py")).write_text(OLD)
    answers(fenced(NEW), ENDLESS, interrupts=1)
    assert main(["edit", str(path), str(other), "Rename x", "--yes", "--json"]) == 130
    found = json.loads(capsys.readouterr().out)["files"]
    assert [(one["file"], one["written"]) for one in found] == [(str(path), True)]


def test_a_check_tells_of_what_went_wrong_first(answers: Answer, path: Path) -> None:
    (other := path.with_name("other.py")).write_text(OLD)
    answers("No.", fenced(NEW), fenced("def f(:\n"))
    assert main(["edit", str(path), str(other), "Rename x", "--check"]) == 4
    assert main(["edit", str(path), "Rename x", "--check"]) == 4


def test_a_check_of_a_pipe_shows_the_diff(
    answers: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(fenced(NEW))
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(OLD.encode())))
    assert main(["edit", "-", "Rename x", "--check"]) == 1
    assert DIFF in capsys.readouterr().out


@pytest.mark.parametrize(
    ("editor", "sentence"),
    [
        ("false", "returned non-zero exit status 1."),
        ("vi '", "vi ' failed: No closing quotation."),
        ("rm", "cannot be read: No such file or directory."),
        ("/absent", "failed: [Errno 2] No such file or directory: '/absent'."),
    ],
)
def test_an_editor_that_fails_leaves_the_doubt(
    answers: Answer,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    editor: str,
    sentence: str,
) -> None:
    answers(fenced("def f(:\n"))
    monkeypatch.setenv("VISUAL", editor)
    monkeypatch.setattr(sys, "stdin", Terminal("e\nn\n"))
    assert main(["edit", str(path), "Rename x"]) == 0
    err = capsys.readouterr().err
    assert f"{sentence}\n" in err
    assert err.count("apply anyway?") == 2


def test_the_diff_after_an_editor_is_safe_on_a_terminal(
    answers: Answer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(fenced(NEW.replace("pass", "pass  # \x1b]0;title\x07")))
    monkeypatch.setenv("VISUAL", "true")
    monkeypatch.setattr(sys, "stdin", Terminal("e\nn\n"))
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    assert main(["edit", str(path), "Rename x"]) == 0
    assert "\x1b]0" not in shown.getvalue()


def test_ctrl_c_changes_nothing(answers: Answer, path: Path) -> None:
    answers(ENDLESS, interrupts=1)
    assert main(["edit", str(path), "Rename x", "--yes"]) == 130
    assert path.read_text() == OLD


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["file.py", " "], "The INSTRUCTION is empty"),
        (["absent.py", "x", "--yes"], "absent.py cannot be read: No such file"),
        (["file.py", "x", "--lines", "1", "--function", "f"], "Name --lines or a --function"),
        (["file.py", "file2.py", "x", "--lines", "1"], "are for one file"),
        (
            ["file.py", "x", "--output", "y", "--yes"],
            "--output leaves the edited file unchanged; omit --yes",
        ),
        (["-", "x", "--yes"], "Standard input cannot be changed; omit --yes"),
        (["file.py", "x", "--lines", "a"], "'a' is not a whole number"),
        (["file.py", "x", "--lines", "9:12", "--yes"], "has 6 lines; there are no `lines` 9:12"),
        (["file.py", "x", "--function", "h", "--yes"], "has no function h; it has f, g."),
        (["empty.py", "x", "--yes"], "empty.py is empty; it was skipped.\n"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    answers: Answer,
    path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    answers()
    with chdir(path.parent):
        Path("empty.py").write_text("\n\n")
        assert main(["edit", *words]) == 2
    assert sentence in capsys.readouterr().err
