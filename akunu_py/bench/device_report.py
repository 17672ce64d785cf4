"""`doctor --report`: how a model performs on a machine, as Markdown and JSON for an issue, and
steps 4 to 8 of the first hour on a Mac (see `docs/macs.md`).

The report has figures, versions, and the names of the device and the model, but no paths, prompts
or answers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final, cast

import mlx.core as mx
from mlx_lm import stream_generate

from akunu_py.bench import FORCED, OWN
from akunu_py.bench.contestants import Akunu, Contestant, MlxLm, Task
from akunu_py.bench.cost_report import CostReport
from akunu_py.bench.measurement import Progress, heading, markdown_table
from akunu_py.bench.speedup import (
    SHOWN_NAMES,
    SpeedupReport,
    contest,
    make_tasks,
)
from akunu_py.bench.workloads import encode_samples, make_workloads
from akunu_py.calibration.cost_store import CostStore
from akunu_py.calibration.measure import cost_key
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.device_memory import give_back_memory, unwired, wired_bytes
from akunu_py.options import Options, Sampling
from akunu_py.package import __version__
from akunu_py.tokens import common_prefix_length

CONTEXTS: Final = (128, 1024, 4096, 16384)
"""Context lengths at which the report has costs, as far as model and memory allow."""

COSTS_S: Final = 20.0
"""How many seconds to measure the costs."""

_OTHERS: Final = ("mlx-lm", "auto")
_PROMPTS: Final = 12  # of each kind
_IDENTITY_S: Final = 60.0
_SPEEDUP_S: Final = 90.0
_IDENTITY_TOKENS: Final = range(16, 65)
_SPEEDUP_TOKENS: Final = range(32, 129)
_WORKLOADS: Final = ("edit", "structure", "question")
_REQUESTS: Final = 2  # of each workload
_TURNS: Final = 2  # of each request


KINDS: Final = ("edit", "fill-in", "novel", "random")
"""Kinds of prompts: three of `workloads.py`, and drawn tokens."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, and its kind."""

    kind: str
    tokens: list[int]


def make_prompts(engine: Engine, count: int, max_tokens: int) -> list[Prompt]:
    """`count` prompts of each kind, with room for an answer in the engine's context; the same on
    every run of one Python version."""
    room, vocabulary = engine.context_limit - max_tokens, range(engine.model.vocabulary_size)
    sets = encode_samples(engine.tokenizer, make_workloads(count, KINDS[:-1]))
    prompts = [
        Prompt(kind, list(case.prompt)[-room:]) for kind, cases in sets.items() for case in cases
    ]
    draw = Random(0)
    drawn = (draw.choices(vocabulary, k=draw.randrange(1, 120)) for _ in range(count))
    return [*prompts, *(Prompt(KINDS[-1], tokens[-room:]) for tokens in drawn)]


@dataclass(frozen=True)
class Difference:
    """The first position at which an answer differs from the one without drafts.

    The gap between the two best logits there tells a near-tie, which a kernel for another number of
    rows may decide the other way, from an error.
    """

    prompt: int
    kind: str
    answers: str
    position: int
    top_2_gap: float


def mlx_lm_answer(engine: Engine, prompt: list[int], max_tokens: int) -> list[int]:
    """What mlx-lm's own loop generates greedily, without end tokens."""
    responses = stream_generate(
        engine.model.original, engine.tokenizer.wrapped, prompt, max_tokens=max_tokens
    )
    tokens = [response.token for response in responses]
    return tokens[:-1] if tokens[-1] in engine.tokenizer.end_tokens else tokens


def _top_2_gap(engine: Engine, tokens: list[int]) -> float:
    cache = engine.model.make_cache(len(tokens))
    engine.model.prefill(tokens[:-1], cache)
    logits = engine.model.forward(mx.array(tokens[-1:]), cache)[0].astype(mx.float32)
    best = mx.sort(logits)[-2:]
    return cast(float, (best[1] - best[0]).item())


def find_differences(
    engine: Engine, index: int, prompt: Prompt, plain: list[int], others: Mapping[str, list[int]]
) -> list[Difference]:
    """Where other answers to a prompt begin to differ from the plain one, by their names."""
    found = []
    for name, answer in others.items():
        if answer != plain:
            position = common_prefix_length(plain, answer)
            gap = _top_2_gap(engine, [*prompt.tokens, *plain[:position]])
            found.append(Difference(index, prompt.kind, name, position, gap))
    return found


def identity_table(
    prompts: Sequence[Prompt], differences: Sequence[Difference], others: Sequence[str]
) -> str:
    """How many answers differ from plain decoding, by kind of prompt; a row for each way."""
    all_kinds = [prompt.kind for prompt in prompts]
    kinds = list(dict.fromkeys(all_kinds))
    rows = []
    for other in others:
        wrong = [found for found in differences if found.answers == other]
        largest = f"{max(found.top_2_gap for found in wrong):.1e}" if wrong else "-"
        by_kind = (sum(found.kind == kind for found in wrong) for kind in kinds)
        rows.append([other, *by_kind, len(wrong), largest])
    heads = [f"{kind} (of {all_kinds.count(kind)})" for kind in kinds]
    total = f"all (of {len(all_kinds)})"
    return markdown_table(["plain != ...", *heads, total, "largest top-2 gap"], rows)


@dataclass(frozen=True)
class Identity:
    """Which greedy answers of up to `max_tokens` tokens differ from plain decoding."""

    prompts: Sequence[Prompt]
    differences: Sequence[Difference]
    max_tokens: int

    def as_json(self) -> dict[str, Any]:
        return {
            "prompts": len(self.prompts),
            "max_tokens": self.max_tokens,
            "compared_with_plain": _OTHERS,
            "differences": [asdict(found) for found in self.differences],
        }


@dataclass(frozen=True)
class DeviceReport:
    """The results; a part is missing if the run was interrupted before it.

    `load` is the mean number of processes that wanted a core at the start; `seconds` excludes the
    measurement of the costs.
    """

    cost: CostReport
    identity: Identity
    speedup: SpeedupReport | None
    checks: Sequence[Check]
    load: float
    seconds: float
    complete: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "akunu": __version__,
            "complete": self.complete,
            "load": self.load,
            "seconds": round(self.seconds, 1),
            **self.cost.as_json(),
            "identity": self.identity.as_json(),
            "speedup": self.speedup and self.speedup.as_json()["rows"],
            "first_hour": [asdict(check) for check in self.checks],
        }

    @property
    def title(self) -> str:
        return f"akunu-py {__version__} on {self.cost.machine['chip']}"

    def markdown(self) -> list[str]:
        machine, model = self.cost.machine, self.cost.model
        parts = [
            f"{heading(machine, model)}; load {self.load:.1f}; "
            f"{model['parameter_bytes'] / 2**20:,.0f} MiB of weights. "
            f"Measured in {self.seconds / 60:.1f} minutes"
            + ("." if self.complete else "; **interrupted**: some parts are missing or short."),
            "## Costs",
            *self.cost.markdown(),
            "## Identity",
            f"Greedy answers of {self.identity.max_tokens} tokens that differ from decoding "
            "without drafts, by kind of prompt. A small gap between the two best logits means a "
            "near-tie.",
            identity_table(self.identity.prompts, self.identity.differences, _OTHERS),
        ]
        speed = ["## Speed", *self.speedup.markdown(SHOWN_NAMES)] if self.speedup else []
        rows = [[check.step, check.what, check.found, check.expected] for check in self.checks]
        hour = ["## The first hour", "Steps 4 to 8 of `docs/macs.md`."]
        hour.append(markdown_table(["step", "what", "found", "expected"], rows))
        return parts + (hour if rows else []) + speed


def make_report(engine: Engine, cost: CostReport, progress: Progress) -> DeviceReport:
    """Compares the answers and the speed of an engine with mlx-lm's.

    The length of the answers depends on what a step costs here, so that the run ends in time. After
    an interrupt, the report has the results so far.
    """
    begun, load = perf_counter(), os.getloadavg()[0]
    speedup, checks = None, list[Check]()
    identity, complete = Identity([], [], 0), False
    with suppress(KeyboardInterrupt):
        first_hour(engine, cost, progress, checks)
        identity, complete = _check_identity(engine, cost, progress)
    if complete:
        try:
            speedup = _measure_speedup(engine, cost, progress)
            complete = speedup.complete
        except KeyboardInterrupt:
            complete = False
    return DeviceReport(cost, identity, speedup, checks, load, perf_counter() - begun, complete)


def _check_identity(engine: Engine, cost: CostReport, progress: Progress) -> tuple[Identity, bool]:
    count = _PROMPTS * len(KINDS)
    max_tokens = _affordable(_IDENTITY_S, (1 + len(_OTHERS)) * count, cost, _IDENTITY_TOKENS)
    prompts = make_prompts(engine, _PROMPTS, max_tokens)
    differences: list[Difference] = []
    done: list[Prompt] = []
    try:
        for index, prompt in enumerate(prompts):
            progress(index, len(prompts))
            plain, auto = (
                _answer(engine, prompt, Options(max_tokens, drafter=name))
                for name in ("none", "auto")
            )
            others = {"mlx-lm": mlx_lm_answer(engine, prompt.tokens, max_tokens), "auto": auto}
            differences += find_differences(engine, index, prompt, plain, others)
            done.append(prompt)
    except KeyboardInterrupt:
        pass
    return Identity(done, differences, max_tokens), len(done) == len(prompts)


def _answer(engine: Engine, prompt: Prompt, options: Options) -> list[int]:
    engine.reset()
    return engine.generate(prompt.tokens, options).token_ids


def _measure_speedup(engine: Engine, cost: CostReport, progress: Progress) -> SpeedupReport:
    contestants: list[Contestant] = [MlxLm(), Akunu("none"), Akunu("auto")]
    samples = make_workloads(_REQUESTS, _WORKLOADS)
    answers = 2 * len(_WORKLOADS) * (1 + _REQUESTS * _TURNS) * len(contestants)
    max_tokens = _affordable(_SPEEDUP_S, answers, cost, _SPEEDUP_TOKENS)
    sets = encode_samples(engine.tokenizer, samples, room=engine.context_limit - max_tokens)
    tasks = make_tasks(sets, max_tokens, (OWN, FORCED))
    rows, complete = contest(
        engine, tasks, contestants, rounds=_TURNS, curve=cost.curve, progress=progress
    )
    return SpeedupReport(cost.machine, cost.model, cost.curve, max_tokens, _TURNS, rows, complete)


def _affordable(seconds: float, answers: int, cost: CostReport, tokens: range) -> int:
    """How many tokens each answer may have if plain decoding of all may take `seconds`."""
    fitting = int(seconds / answers / cost.curve.decode_s(cost.context))
    return min(max(fitting, tokens[0]), tokens[-1])


_TOKENS: Final = 256
_SPEED_TURNS: Final = 3
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
    for turn in range(1 + _SPEED_TURNS):
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
