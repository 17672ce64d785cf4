"""Runs a command and ends with an exit code.

0: success. 1: a bug in the program. 2: a request that cannot be served; one sentence says why.
3: another rank was lost. 130: the user interrupted it. 141: the reader closed the pipe.
"""

import os
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from signal import SIG_IGN, SIGINT, signal
from typing import Final, NoReturn, TextIO, cast

from akunu_py.cli.parser import PROGRAM, Invocation, parse
from akunu_py.cli.render import printable
from akunu_py.cli.settings import SpeedupSettings
from akunu_py.errors import AkunuError, InvalidRequestError, RankError
from akunu_py.machine.backend import find_backend, launched_rank
from akunu_py.options import ModelOptions

DEBUG_VARIABLE: Final = "AKUNU_DEBUG"
"""If this environment variable is set, errors are printed with a traceback."""

_LAST_STREAM: Final = 2
_DEFECT, _REFUSED, _RANK_LOST, _INTERRUPTED, _NO_READER = 1, 2, 3, 130, 141


def main(words: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code; without `words`, it reads `sys.argv`. Raises
    SystemExit after `--help` and `--version`.
    """
    _fill_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        invocation = parse(sys.argv[1:] if words is None else words)
        if sys.stdout is None:
            raise InvalidRequestError("Standard output is closed, so no answer can be printed.")
        code = _run(invocation)
        sys.stdout.flush()
    except AkunuError as error:
        return _report(str(error), _RANK_LOST if isinstance(error, RankError) else _REFUSED)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output(sys.stdout)
        return _NO_READER
    except OSError as error:
        _drop_output(sys.stdout)
        where = f": {error.filename}" if error.filename else ""
        return _report(f"{error.strerror or error}{where}.", _DEFECT)
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return _report(f"{what} (a bug; {DEBUG_VARIABLE}=1 shows where)", _DEFECT)
    return code


def _fill_closed_streams() -> None:
    """Opens a stand-in for each standard stream that is closed: another file with its number could
    not be read by MLX, or libraries would write to it."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        pass
    os.close(number)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  (`print` would take stdout)


def _run(invocation: Invocation) -> int:
    """Runs the command; under `mlx.launch`, only rank 0 runs it, and the others compute for it."""
    settings, rank = invocation.settings, launched_rank()
    model = getattr(settings, "model", None)
    if rank:
        signal(SIGINT, SIG_IGN)  # a terminal sends it to all processes; rank 0 handles it
    if rank is not None and isinstance(model, ModelOptions):
        if isinstance(settings, SpeedupSettings) or getattr(settings, "report", None):
            raise InvalidRequestError(
                "bench speedup and doctor --report compare with mlx-lm in one process: omit "
                "`mlx.launch`."
            )
        find_backend()
        from akunu_py.ranks.group import connect  # noqa: PLC0415  (imports MLX)

        connect()
    if not rank:
        return int(import_module(invocation.command.module).run(settings))
    if isinstance(model, ModelOptions):
        from akunu_py.cli.loading import load_engine  # noqa: PLC0415  (`--help` does not need it)

        try:
            load_engine(model)
        except SystemExit as ended:
            return cast(int, ended.code)
    return 0


def _report(sentence: str, code: int) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exc()
    rank = launched_rank()
    print(f"{PROGRAM}{f' (rank {rank})' if rank else ''}: {printable(sentence)}", file=sys.stderr)
    return code


def _drop_output(stream: TextIO) -> None:
    """Drops what is still buffered: the flush at exit would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def run() -> NoReturn:
    """Runs the program as a process, and ends it with its exit code."""
    code = main()
    if code == _RANK_LOST:
        sys.stdout.flush()
        os._exit(code)  # MLX may wait forever for the lost rank
    if threading.active_count() > 1:
        from akunu_py.machine.threads import is_computing  # noqa: PLC0415  (not for `--help`)

        if is_computing():
            # The thread runs library code, which cannot be stopped and would crash during exit.
            sys.stdout.flush()
            os._exit(code)
    if launched_rank() is not None:
        from akunu_py.ranks.group import EXIT_CODE  # noqa: PLC0415  (imports MLX)

        EXIT_CODE.set(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
