"""`bench seeds`: "Trading accuracy for parallelism" measured again, with its defects put right.

A character-level model samples at temperature 1 while a bigram or trigram model drafts; drafts are
verified by rejection, in the engine's own loop. Every drafted answer is paired with a plain one to
the same prompt, run right next to it and in either order; there are several seeds, and a warm-up.
An engine and a text come in, an `Outcome` for every case and draft goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from random import Random
from time import perf_counter
from typing import Final

from akunu_py.bench.seeds.cases import CASES, DRAFTS, PROMPT_CHARACTERS, Case, Size
from akunu_py.bench.seeds.char_text import CharText
from akunu_py.drafting.ngram_model import NGramModel, bigram, trigram
from akunu_py.drafting.ngram_model_drafter import NGramModelDrafter
from akunu_py.engine import Engine
from akunu_py.options import Options, Sampling
from akunu_py.sampling.sampler import Sampler
from akunu_py.stats import Stats

_DENSE_ALPHABET: Final = 256
_PLAIN: Final = "none"

SeedsProgress = Callable[[int, int], None]
"""Called with the pairs done and all that are to do."""


@dataclass(frozen=True)
class Answer:
    """A timed answer: its seconds, prefill included, and the engine's books."""

    seconds: float
    stats: Stats


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, taken next to one another."""

    plain: Answer
    drafted: Answer


@dataclass(frozen=True)
class Outcome:
    """What one draft did in one case."""

    case: Case
    draft: str
    pairs: Sequence[Pair]


def measure_seeds(
    engine: Engine, text: CharText, size: Size, progress: SeedsProgress | None = None
) -> list[Outcome]:
    """Measures every case with every draft.

    Args:
        engine: with a model whose tokens are the text's characters.
        text: its training part is what drafts are counted on; prompts come from the rest.
        size: how much to measure.
        progress: told about pairs done and to do.
    """
    add_statistical_drafters(engine, text)
    contest = list(product(CASES, DRAFTS))
    pairs: dict[tuple[Case, str], list[Pair]] = {entry: [] for entry in contest}
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
    return [Outcome(case, draft, pairs[case, draft]) for case, draft in product(CASES, DRAFTS)]


def add_statistical_drafters(engine: Engine, text: CharText) -> None:
    """Teaches an engine the drafters of all cases, by the names that `drafter_name` gives them."""
    vocabulary, stream = engine.model.vocabulary_size, text.encode(text.training)
    dense = vocabulary <= _DENSE_ALPHABET
    models = {
        "bigram": bigram(vocabulary, [stream], dense=dense),
        "trigram": trigram(vocabulary, [stream], dense=dense),
    }
    for case, draft in product(CASES, DRAFTS):
        make = partial(_make_drafter, models[draft], case.noise)
        engine.speculation.add_drafter(drafter_name(case, draft), make)


def drafter_name(case: Case, draft: str) -> str:
    """What requests call a case's drafter."""
    return f"{draft}, noise {case.noise:g}"


def draw_prompts(text: CharText, seed: int, count: int) -> Iterator[list[int]]:
    """Stretches of the validation part, as token ids, the same for the same seed."""
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
) -> Pair:
    def answer(drafter: str) -> Answer:
        options = Options(
            size.tokens(case),
            Sampling(temperature=1.0, seed=seed),
            drafter=drafter,
            num_draft_tokens=case.drafts,
        )
        engine.reset()
        begun = perf_counter()
        stats = engine.generate(prompt, options).stats
        return Answer(perf_counter() - begun, stats)

    names = [_PLAIN, drafter_name(case, draft)]
    if drafted_first:
        drafted, plain = map(answer, reversed(names))
    else:
        plain, drafted = map(answer, names)
    return Pair(plain, drafted)
