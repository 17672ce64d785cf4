"""What the seed benchmark measures: "Trading accuracy for parallelism" again, its defects fixed.

A character-level model samples at temperature 1 while a bigram or trigram model drafts, and the
engine's own loop verifies the drafts by rejection. Each drafted answer is paired with a plain one
to the same prompt, which runs right before or after it. There are several seeds, and a warm-up.
An engine and a text come in, a `CaseOutcome` for every case and draft goes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from random import Random
from time import perf_counter
from typing import Final

from akunu_py.bench.measurement import Progress
from akunu_py.engine import Engine
from akunu_py.options import Options
from akunu_py.rounds import Stats
from akunu_py.sampling.sampler import Sampler
from benchmarks.seeds.char_text import CharText
from benchmarks.seeds.ngram_model import NGramModel, NGramModelDrafter

PROMPT_CHARACTERS: Final = 24
DRAFTS: Final = {"bigram": 2, "trigram": 3}
"""The drafts by the order of their models."""
_LONGER: Final = 2
_PLAIN: Final = "none"


@dataclass(frozen=True)
class Case:
    """A setting that is measured.

    Attributes:
        name: what it is called in tables; the published figures call it the same.
        num_draft_tokens: how many tokens a round drafts.
        noise: how much of the uniform distribution is mixed into the draft's distributions.
        longer: whether answers are of the longer kind.
    """

    name: str
    num_draft_tokens: int
    noise: float = 0.0
    longer: bool = False


CASES: Final = (
    Case("K=2", 2),
    Case("K=4", 4),
    Case("K=6", 6),
    Case("K=4, noise 0.5", 4, noise=0.5),
    Case("K=4, longer", 4, longer=True),
)


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        seeds: how often prompts are drawn anew.
        requests: prompts of a seed.
        max_tokens: of an answer; one of the longer kind has twice as many.
    """

    seeds: int = 3
    requests: int = 8
    max_tokens: int = 48

    @property
    def longer_tokens(self) -> int:
        return _LONGER * self.max_tokens

    @property
    def pairs(self) -> int:
        return self.seeds * self.requests * len(CASES) * len(DRAFTS)

    def tokens(self, case: Case) -> int:
        return self.longer_tokens if case.longer else self.max_tokens


QUICK: Final = Size(seeds=1, requests=2, max_tokens=16)


@dataclass(frozen=True)
class TimedAnswer:
    """The seconds of an answer, prefill included, and the engine's statistics of it."""

    seconds: float
    stats: Stats


@dataclass(frozen=True)
class AnswerPair:
    """Two answers to one prompt, one measured right after the other."""

    plain: TimedAnswer
    drafted: TimedAnswer


@dataclass(frozen=True)
class CaseOutcome:
    """The pairs of one draft in one case."""

    case: Case
    draft: str
    pairs: Sequence[AnswerPair]


def measure_seeds(
    engine: Engine, text: CharText, size: Size, progress: Progress | None = None
) -> list[CaseOutcome]:
    """Measures every case with every draft.

    Args:
        engine: with a model whose tokens are the text's characters.
        text: the drafts' models are counted on its training part; prompts come from the rest.
        size: how much to measure.
        progress: called after every pair.
    """
    add_statistical_drafters(engine, text)
    contest = list(product(CASES, DRAFTS))
    pairs: dict[tuple[Case, str], list[AnswerPair]] = {entry: [] for entry in contest}
    warm_up = next(draw_prompts(text, 0, 1))
    for case, draft in contest:
        _answer_pair(engine, warm_up, case, draft, seed=0, size=size, drafted_first=False)
    order = Random(0)
    for seed in range(size.seeds):
        for index, prompt in enumerate(draw_prompts(text, seed, size.requests)):
            order.shuffle(contest)
            for case, draft in contest:
                pair = _answer_pair(
                    engine,
                    prompt,
                    case,
                    draft,
                    seed=seed * size.requests + index,
                    size=size,
                    drafted_first=order.random() < 0.5,
                )
                pairs[case, draft].append(pair)
                if progress:
                    progress(sum(map(len, pairs.values())), size.pairs)
    return [CaseOutcome(case, draft, pairs[case, draft]) for case, draft in product(CASES, DRAFTS)]


def add_statistical_drafters(engine: Engine, text: CharText) -> None:
    """Lets requests name the drafters of all cases, as `drafter_name` calls them."""
    vocabulary, stream = engine.model.vocabulary_size, text.encode(text.training)
    models = {name: NGramModel(order, vocabulary, [stream]) for name, order in DRAFTS.items()}
    for case, draft in product(CASES, DRAFTS):
        make = partial(_make_drafter, models[draft], case.noise)
        engine.speculation.add_drafter(drafter_name(case, draft), make)


def drafter_name(case: Case, draft: str) -> str:
    """What requests call the drafter of a case."""
    return f"{draft}, noise {case.noise:g}"


def draw_prompts(text: CharText, seed: int, count: int) -> Iterator[list[int]]:
    """Pieces of the validation part, as token ids, the same for the same seed."""
    part, draws = text.validation, Random(seed)
    for _ in range(count):
        start = draws.randrange(len(part) - PROMPT_CHARACTERS + 1)
        yield text.encode(part[start : start + PROMPT_CHARACTERS])


def _make_drafter(model: NGramModel, noise: float, sampler: Sampler) -> NGramModelDrafter:
    return NGramModelDrafter(model, noise=noise, seed=sampler.seed)


def _answer_pair(
    engine: Engine,
    prompt: Sequence[int],
    case: Case,
    draft: str,
    *,
    seed: int,
    size: Size,
    drafted_first: bool,
) -> AnswerPair:
    def answer(drafter: str) -> TimedAnswer:
        options = Options(
            size.tokens(case),
            temperature=1.0,
            seed=seed,
            drafter=drafter,
            num_draft_tokens=case.num_draft_tokens,
        )
        engine.reset()
        begun = perf_counter()
        stats = engine.generate(prompt, options).stats
        return TimedAnswer(perf_counter() - begun, stats)

    names = [_PLAIN, drafter_name(case, draft)]
    if drafted_first:
        drafted, plain = map(answer, reversed(names))
    else:
        plain, drafted = map(answer, names)
    return AnswerPair(plain, drafted)
