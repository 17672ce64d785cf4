"""Every way to end has its exit code, and none prints a traceback."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from akunu_py.__main__ import DEBUG_VARIABLE, main
from akunu_py.errors import ModelLoadError
from tests.processes import PROGRAM, run


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Runs `chat` with a program that ends with an error."""

    def run(error: BaseException) -> int:
        def fail(_: object) -> int:
            raise error

        program = ModuleType("program")
        program.run = fail  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "akunu_py.cli.chat", program)
        return main(["chat"])

    return run


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (ModelLoadError("It does not load."), 2, "akunu-py: It does not load.\n"),
        (ModelLoadError("No \x1b[2J\x9b2J."), 2, "akunu-py: No ␛[2J\ufffd2J.\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["our errors are one sentence", "which cannot control the terminal",
         "interruptions are quiet"],
)  # fmt: skip
def test_it_ends_with_a_code_and_a_sentence(
    ends_with: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    shown: str,
) -> None:
    assert ends_with(error) == code
    assert capsys.readouterr() == ("", shown)


def test_defects_say_how_to_debug_them(
    ends_with: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ends_with(RuntimeError("on\nfire")) == 1
    shown = capsys.readouterr().err
    assert shown == "akunu-py: RuntimeError: on fire (a bug; AKUNU_DEBUG=1 shows where)\n"
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    assert ends_with(RuntimeError("on fire")) == 1
    assert "Traceback" in capsys.readouterr().err


def akunu(*words: str, stdin: bytes = b"", stdout: int = subprocess.PIPE) -> tuple[int, str, str]:
    return run(*PROGRAM, *words, stdin=stdin, stdout=stdout)


def test_no_such_model() -> None:
    code, out, err = akunu("generate", "-p", "x", "--model", "./nowhere")
    assert (code, out) == (2, "")
    assert (
        err == "akunu-py: There is no model folder ./nowhere; check the path, or use a hub name.\n"
    )


def test_standard_input_that_is_not_text() -> None:
    code, out, err = akunu("generate", "-p", "-", stdin=b"caf\xe9")
    assert (code, out) == (2, "")
    assert "Standard input is not valid UTF-8 (byte 4)" in err


def test_from_a_pipe_to_a_pipe(tiny_model_dir: Path) -> None:
    model = ("--model", str(tiny_model_dir))
    code, out, err = akunu("chat", *model, "-m", "3", stdin=b"hello\n\nmore\n")
    cut = "This answer is not complete: stopped at the token limit.\n"
    assert (code, err) == (0, cut * 2)
    assert out.endswith("\n")
    assert "\x1b[" not in out


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_output_that_cannot_be_written() -> None:
    script = (
        "import sys, types, akunu_py.__main__ as program\n"
        "sys.modules['akunu_py.cli.chat'] = types.SimpleNamespace(run=lambda _: print('said'))\n"
        "sys.exit(program.main(['chat']))"
    )
    with open("/dev/full", "wb") as full:
        code, _, err = run("-c", script, stdout=full.fileno())
    assert (code, err) == (1, "akunu-py: No space left on device.\n")


def test_a_reader_that_goes_away(tiny_model_dir: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    code, _, err = akunu(
        "generate", "-p", "x", "-m", "3", "--model", str(tiny_model_dir), stdout=write
    )
    os.close(write)
    assert (code, err) == (141, "")


def test_closed_standard_output() -> None:
    command = f"exec {sys.executable} -m akunu_py generate -p x >&-"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


def test_a_busy_engine_does_not_keep_the_process() -> None:
    script = (
        "import threading, akunu_py.__main__ as program\n"
        "from akunu_py.machine.threads import start\n"
        "program.main = lambda: print('said', end='') or 5\n"
        "wait = threading.Event().wait\n"
        "start(wait)\n"
        "program.run()"
    )
    assert run("-c", script)[:2] == (5, "said")


@pytest.mark.parametrize(
    ("command", "out", "err"),
    [
        ('{} generate -p a -m 1 --json --model "$1" <&- | grep -o finish_r', "finish_r\n", ""),
        ("{} generate -p a --model ./nowhere 2>&-", "", ""),
        ('mkdir "$0" && cd "$0" && rmdir "$0" && {} generate -p a', "", "directory was deleted"),
    ],
)
def test_surroundings_that_lack_something(
    tiny_model_dir: Path, tmp_path: Path, command: str, out: str, err: str
) -> None:
    program = command.format(" ".join((sys.executable, *PROGRAM)))
    words = ["sh", "-c", program, str(tmp_path / "gone"), str(tiny_model_dir)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.stdout == out
    assert err in ended.stderr
    assert "FATAL" not in ended.stderr
