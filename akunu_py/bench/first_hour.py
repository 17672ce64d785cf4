"""Steps 4 to 8 of the first hour on a Mac, which `doctor --report` runs; see `docs/macs.md`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median
from time import perf_counter, sleep
from typing import Final

from akunu_py.bench.contestants import Akunu, Contestant, MlxLm, Task
from akunu_py.bench.cost_report import CostReport
from akunu_py.bench.measurement import Progress
from akunu_py.bench.samples import encode_samples
from akunu_py.bench.workloads import make_workloads
from akunu_py.calibration.cost_store import CostStore
from akunu_py.calibration.measure import cost_key
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.device_memory import give_back_memory, unwired, wired_bytes
from akunu_py.options import Options, Sampling

_TOKENS: Final = 256
_TURNS: Final = 3
_ANSWERS: Final = 5
_PAUSE_S: Final = 5.0
_PREFILLS: Final = (512, 1024, 2048)
_PREFILL_TOKENS: Final = 6_000
_LONG_TOKENS: Final = 20_000
_NAP_S: Final = 0.002
_SAMPLED: Final = Sampling(temperature=0.8, top_k=40, seed=1)


@dataclass(frozen=True)
class Check:
    """A step: what was done, the result, and the expected result; `values` has the figures."""

    step: int
    what: str
    found: str
    expected: str
    values: Sequence[float]


def first_hour(engine: Engine, cost: CostReport, progress: Progress, done: list[Check]) -> None:
    """Adds a check for each step to `done`, so that an interrupt loses only the current one.

    mlx-lm comes last: while it answers, it lets Metal wire all memory.
    """
    checks: list[tuple[int, str, Callable[[], Check]]] = [
        (4, "costs", partial(_costs_are_kept, engine, cost)),
        (6, "answers after pauses", partial(_answers_after_pauses, engine)),
        (7, "chunks of a prompt", partial(_prefill_chunks, engine)),
        (8, "another thread", partial(_other_thread, engine)),
        (5, "mlx-lm, greedy", partial(_plain_speed, engine, Sampling(), "greedy")),
        (5, "mlx-lm, sampled", partial(_plain_speed, engine, _SAMPLED, "sampled")),
    ]
    for index, (step, name, check) in enumerate(checks):
        progress(index, len(checks))
        try:
            done.append(check())
        except InvalidRequestError as error:  # a prompt that the memory does not hold
            done.append(Check(step, name, f"refused: {error}", "a result", []))
        except RuntimeError as error:  # of MLX: its text may have paths
            done.append(Check(step, name, f"failed: {type(error).__name__}", "a result", []))
        engine.reset()


def _costs_are_kept(engine: Engine, cost: CostReport) -> Check:
    kept = CostStore().load(cost_key(engine.model, engine.backend))
    sizes = len(cost.curve.levels[0].verify_s)
    found = f"{sizes}, {'read' if kept == cost.curve.unpadded else 'not read'} back"
    what = "round sizes that were measured, and read back from disk"
    return Check(4, what, found, "16 or more, read back", [sizes])


def _plain_speed(engine: Engine, sampling: Sampling, name: str) -> Check:
    tokens = min(_TOKENS, engine.context_limit // 2)
    samples = make_workloads(1, ("novel",))
    (case,) = encode_samples(engine.tokenizer, samples, room=engine.context_limit - tokens)["novel"]
    task = Task("novel", case, tokens, forced=True, sampling=sampling)
    contestants: tuple[Contestant, Contestant] = (MlxLm(), Akunu("none"))
    ratios = []
    for turn in range(1 + _TURNS):
        theirs, ours = (one.complete(engine, task) for one in contestants)
        if turn and theirs and ours:
            ratios.append(theirs.seconds_per_token / ours.seconds_per_token)
    found = f"{median(ratios):.2f}" if ratios else "no answer"
    return Check(5, f"speed without drafts over mlx-lm's, {name}", found, "0.97 or more", ratios)


def _answers_after_pauses(engine: Engine) -> Check:
    def seconds() -> list[float]:
        found = []
        for _ in range(_ANSWERS):
            sleep(_PAUSE_S)
            begun = perf_counter()
            engine.generate("Hello", Options(1))
            found.append(perf_counter() - begun)
        return found

    wired, name = seconds(), "one token after a pause of 5 s, ms"
    if not wired_bytes():
        return Check(6, name, f"{_range(wired)}, not wired", "all about the same", wired)
    with unwired():
        try:
            others = seconds()
        finally:
            engine.reset()
            give_back_memory()
    found = f"{_range(wired)} wired, {_range(others)} not"
    return Check(6, name, found, "wired no slower", [*wired, *others])


def _range(seconds: Sequence[float]) -> str:
    return f"{1e3 * min(seconds):.0f}-{1e3 * max(seconds):.0f}"


def _prefill_chunks(engine: Engine) -> Check:
    prompt = _drawn(engine, _PREFILL_TOKENS)
    speeds = []
    for step in _PREFILLS:
        seconds = []
        for _ in range(2):  # kernels are compiled at first
            cache = engine.model.make_cache(len(prompt))
            begun = perf_counter()
            engine.model.prefill(prompt, cache, step=step)
            cache.evaluate()
            seconds.append(perf_counter() - begun)
        speeds.append(len(prompt) / min(seconds))
    rates = ", ".join(
        f"{step}: {speed:,.0f}" for step, speed in zip(_PREFILLS, speeds, strict=True)
    )
    what = f"tokens/s of a prompt of {len(prompt):,} tokens in chunks"
    return Check(7, what, rates, "on a GPU, 1024 near the best", speeds)


def _other_thread(engine: Engine) -> Check:
    prompt = _drawn(engine, _LONG_TOKENS)
    with _longest_pause() as pauses:
        engine.generate(prompt, Options(1))
    what = f"longest pause of another thread during a prompt of {len(prompt):,} tokens"
    return Check(8, what, f"{1e3 * max(pauses):.0f} ms", "100 ms or less", [max(pauses)])


@contextmanager
def _longest_pause() -> Generator[list[float], None, None]:
    """The seconds between two moments at which another thread of this process runs."""
    pauses, ended = [0.0], threading.Event()

    def run() -> None:
        last = perf_counter()
        while not ended.wait(_NAP_S):
            now = perf_counter()
            pauses.append(now - last)
            last = now

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield pauses
    finally:
        ended.set()
        thread.join()


def _drawn(engine: Engine, tokens: int) -> list[int]:
    draw, vocabulary = Random(0), range(engine.model.vocabulary_size)
    return draw.choices(vocabulary, k=min(tokens, engine.context_limit - 2))
