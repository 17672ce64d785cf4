"""A process that tries grammars and templates of others, and is killed where one takes too long or
too much memory.

Neither llguidance nor Jinja can be interrupted, and a kilobyte of either can take days and all
memory. So each is tried there first. The outcome is kept by content, that of a killed one as well.
"""

import os
import pickle
import re
import resource
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from hashlib import blake2b
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from signal import ITIMER_PROF, SIGHUP, SIGINT, SIGKILL, SIGTERM, setitimer
from threading import Event, Lock
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from akunu_py.errors import QueueFullError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

CLIENT_LEFT: Final[ContextVar[Event | None]] = ContextVar("client_left", default=None)
"""Set where nobody waits for the outcome any more."""

_CPU_S: Final = 2
"""A hundred tools take 0.1 s."""
_MEMORY_BYTES: Final = 256 << 20
_MOST_BYTES: Final = 1 << 20
_WALL_S: Final = 60.0
"""Only where the machine gives the process no time."""
_TEMPLATE_CPU_S: Final = 0.5
"""The largest template takes 0.1 s, and the library to be imported as long."""
_MOST_CHARACTERS: Final = 1 << 20
"""Of a rendered template, for so short a conversation."""
_LOOK_S: Final = 0.05
_MOST_WAITING: Final = 64
"""More new grammars than honest clients send at once: each takes some milliseconds."""
_KEPT: Final = 256
_MOST_KEPT_BYTES: Final = 1 << 16
"""Of an outcome: a grammar, or a reason, which may quote the client."""
_NICENESS: Final = 10
_FIRST_MASK_S: Final = 0.05
"""Masks are computed between forward passes, of which they would take as much as a few."""
_LIMITS: Final[dict[str, Any]] = {
    "step_lexer_fuel": 100_000,
    "max_items_in_row": 20_000,
    "max_lexer_states": 20_000,
    "verbose_errors": False,
}
"""The library's defaults allow 15 ms for a token, and 500 MB for the states of an answer; and no
choice of 2,001 texts."""
_BY_OTHERS: Final = (-SIGKILL, -SIGTERM, -SIGINT, -SIGHUP)
TOO_COMPLEX: Final = "compiling it takes too much time or memory"


class Guide(NamedTuple):
    """A tokenizer for llguidance: its description by the `tokenizers` library as JSON, the size of
    the vocabulary, and the ids that end an answer, None for its own."""

    tokenizer: str
    vocabulary: int
    ends: tuple[int, ...] | None


class Trial(NamedTuple):
    """What became of a grammar: why it cannot be used, if it cannot, and the seconds of CPU that it
    took."""

    reason: str
    seconds: float = 0.0


def make_tokenizer(guide: Guide) -> "LLTokenizer":
    """The tokenizer; a ValueError if llguidance cannot read it."""
    from llguidance import LLTokenizer  # noqa: PLC0415  (most requests do not need it)

    ends = None if guide.ends is None else list(guide.ends)
    return LLTokenizer(guide.tokenizer, n_vocab=guide.vocabulary, eos_token=ends)


def make_matcher(tokenizer: "LLTokenizer", grammar: str) -> "LLMatcher":
    """The matcher of a grammar, which may be in an error state."""
    from llguidance import LLMatcher  # noqa: PLC0415  (most requests do not need it)
    from llguidance._lib import LLParserLimits  # noqa: PLC0415  (it is exported nowhere else)

    return LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))


def validate(grammar: str) -> tuple[bool, list[str]]:
    """Whether a grammar is wrong, and why, or what is left out of it."""
    return trial_process().run(_validate, grammar) or (True, [TOO_COMPLEX])


def gbnf_to_lark(grammar: str, tokens: Mapping[str, int]) -> str:
    """See `gbnf.gbnf_to_lark`."""
    converted = trial_process().run(_convert, grammar, tuple(sorted(tokens.items())))
    wrong, text = converted or (True, TOO_COMPLEX)
    if wrong:
        raise ValueError(text)
    return str(text)


def matches_empty(pattern: str) -> bool:
    """Whether a client's pattern matches the empty text, as far as Python can tell."""
    return bool(trial_process().run(_match_empty, pattern))


@cache
def runs_away(template: str) -> bool:
    """Whether a plain conversation takes too much time or memory to render with a template."""
    with suppress(ValueError), closing(TrialProcess(cpu_s=_TEMPLATE_CPU_S)) as process:
        return process.run(_render, template) is None
    return True


def try_out(guide: Guide, grammar: str) -> Trial:
    """Compiles a grammar and computes its first mask."""
    return trial_process().run(_try_out, grammar, guide=guide) or Trial(TOO_COMPLEX)


class TrialProcess:
    """Runs one task at a time in the process, which starts with the first; any thread may.
    `waiting` counts tasks that wait or run, `starts` how often the process was started.
    """

    def __init__(self, cpu_s: float = _CPU_S) -> None:
        self.lock = Lock()
        self.waiting = 0
        self.starts = 0
        self._cpu_s = cpu_s
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None
        self._guide: Guide | None = None
        self._known: OrderedDict[tuple[Guide | None, bytes], Any] = OrderedDict()

    def run(self, task: Callable[..., Any], *values: Any, guide: Guide | None = None) -> Any:
        """What a function of this module returns for the values, and for the tokenizer of a guide;
        None if it had to be killed. Raises ValueError if the values are too long, and
        QueueFullError if too many wait, it gets no time, or the client has left.
        """
        asked = pickle.dumps((task, values))
        if len(asked) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        key = guide, blake2b(asked).digest()
        if key in self._known:
            return self._known[key]
        if self.waiting >= _MOST_WAITING:
            raise QueueFullError("Too many new grammars are waiting; try again shortly.")
        self.waiting += 1
        try:
            with self.lock:
                if key in self._known:
                    return self._known[key]
                answer = self._ask(asked, guide)
                found = pickle.loads(answer)
                if len(answer) <= _MOST_KEPT_BYTES:
                    self._known[key] = found
                if len(self._known) > _KEPT:
                    self._known.popitem(last=False)
                return found
        finally:
            self.waiting -= 1

    def _ask(self, asked: bytes, guide: Guide | None) -> bytes:
        left, until = CLIENT_LEFT.get(), perf_counter() + _WALL_S
        _check_client(left)
        link = self._linked(guide)
        try:
            link.send_bytes(asked)
            while not link.poll(_LOOK_S):
                _check_client(left)
                if perf_counter() > until:
                    raise QueueFullError("The machine is too busy for new grammars; try again.")
            return link.recv_bytes()
        except (EOFError, OSError):  # it has ended
            assert self._process is not None
            if self._process.wait() in _BY_OTHERS:
                raise QueueFullError("The trial of a grammar was interrupted; try again.") from None
            self.close()
            return pickle.dumps(None)
        except BaseException:
            self.close()
            raise

    def _linked(self, guide: Guide | None) -> Connection:
        has_ended = self._process is not None and self._process.poll() is not None
        if has_ended or (guide is not None and self._guide not in (None, guide)):
            self.close()
        if self._link is None:
            self._link, other = Pipe()
            code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; "
            code += f"serve({self._cpu_s})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is not for it
            )
            other.close()
            self.starts += 1
        if guide is not None and self._guide is None:
            self._link.send(guide)
            self._guide = guide
        return self._link

    def close(self) -> None:
        """Ends the process; the next task starts another."""
        if self._process is not None and self._link is not None:
            self._process.kill()
            self._process.wait()
            self._link.close()
        self._process = self._link = self._guide = None


def _check_client(left: Event | None) -> None:
    if left is not None and left.is_set():
        raise QueueFullError("The client disconnected.")


@cache
def trial_process() -> TrialProcess:
    """The process of this process."""
    return TrialProcess()


def serve(cpu_s: float) -> None:
    """Does what comes in by descriptor 0 until it is closed."""
    link, tokenizer = Connection(os.dup(0)), None
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            asked = link.recv()
        except EOFError:
            return
        space, hard = resource.RLIMIT_AS, resource.getrlimit(resource.RLIMIT_AS)[1]
        if isinstance(asked, Guide):  # the model's, so it may take what it needs
            resource.setrlimit(space, (hard, hard))
            tokenizer = make_tokenizer(asked)
            continue
        if _STATM.exists():  # macOS does not say, nor hold anyone to a limit
            most = int(_STATM.read_text().split()[0]) * resource.getpagesize() + _MEMORY_BYTES
            resource.setrlimit(space, (most if hard < 0 else min(most, hard), hard))
        task, values = asked
        setitimer(ITIMER_PROF, cpu_s)  # its signal ends the process
        found = task(tokenizer, *values)
        setitimer(ITIMER_PROF, 0)
        link.send(found)


_STATM: Final = Path("/proc/self/statm")


def _validate(_tokenizer: None, grammar: str) -> tuple[bool, list[str]]:
    from llguidance import LLMatcher  # noqa: PLC0415

    return LLMatcher.validate_grammar_with_warnings(grammar)


def _convert(
    _tokenizer: None, grammar: str, tokens: tuple[tuple[str, int], ...]
) -> tuple[bool, str]:
    from akunu_py.text import gbnf  # noqa: PLC0415

    try:
        return False, gbnf.gbnf_to_lark(grammar, dict(tokens).get)
    except ValueError as error:
        return True, str(error)


def _match_empty(_tokenizer: None, pattern: str) -> bool:
    try:
        return re.search(pattern, "") is not None
    except (re.error, RecursionError, OverflowError):
        return False


def _render(_tokenizer: None, template: str) -> int:
    """Renders a template as transformers does, which takes ten times as long to import."""
    from jinja2.ext import loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )

    def refuse(reason: str) -> None:
        raise ValueError(reason)

    sandbox.globals |= {"raise_exception": refuse, "strftime_now": datetime.now().strftime}
    asked = {
        "messages": [{"role": "user", "content": "?"}],
        "add_generation_prompt": True,
        "tools": None,
        "documents": None,
        **{f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad", "unk", "sep", "cls")},
    }
    try:
        length = len(sandbox.from_string(template).render(asked))
    except MemoryError:
        raise
    except Exception:  # whatever else it raises, it ends
        return 0
    if length > _MOST_CHARACTERS:
        raise MemoryError
    return length


def _try_out(tokenizer: "LLTokenizer", grammar: str) -> Trial:
    begun = process_time()
    matcher = make_matcher(tokenizer, grammar)
    compiled = process_time()
    if not matcher.is_error():
        matcher.compute_bitmask()
    ended = process_time()
    if matcher.is_error():
        return Trial(matcher.get_error())
    reason = TOO_COMPLEX if ended - compiled > _FIRST_MASK_S else ""
    return Trial(reason, ended - begun)
