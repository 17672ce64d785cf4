"""Turns the corpus into shards of examples, one file for each kind.

The work folder has `corpus.jsonl` and `tokenizer/`; the shards go to its `shards/`. Those whose
names begin with `probe` are of held-out material, to watch while training, and are not trained on.
Parts are made by as many processes as there are cores; what is drawn for one depends on its name
only.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import sentencepiece as spm

from models.training import combined, corpus, edits, fill_in, questions, refusals, structured
from models.training import tokenizer as tokenizers
from models.training.chats import Chats
from models.training.corpus import SourceFile
from models.training.edits import Pool
from models.training.examples import END_OF_TEXT, Example, Segment, Shard, chat, shard
from models.training.functions import Function, brief_forms, distinct, docstrings, functions_of
from models.training.harder import comments_of, with_comments, with_similar_lines
from models.training.invented import Inventor

SEED = 6
HOLE_EVERY = 700
"""Characters of a file for each hole made in it."""
PASSES_OVER_FUNCTIONS, PASSES_OVER_BRIEF_FORMS = 3, 2
MOST_EDITS = 2
COMPANY = 0.12
"""How often an edit that can is one of two functions."""
SIMILAR, COMMENTED = 0.35, 0.2
"""How many functions get similar lines, and how many get comments."""
SHORT_EDIT, LONG_EDIT = 510, 2000
PROBES = 60
MAX_PROBE = 400
EDIT_PARTS = [f"edits {number}" for number in range(6)]
INVENTED_PARTS = [f"invented {number}" for number in range(8)]
PARTS = [*EDIT_PARTS, *INVENTED_PARTS, "texts", "probes"]
"""What processes make apart from each other."""


@dataclass(frozen=True)
class Sources:
    """What examples are made from; `documents` is how many structured texts to make."""

    training: Sequence[SourceFile]
    functions: Sequence[Function]
    unseen: Sequence[Function]
    pool: Pool
    processor: spm.SentencePieceProcessor
    documents: int


_inherited: list[Sources] = []
"""What a process that makes parts got from the one that started it."""


def build(work: Path, *, documents: int) -> dict[str, int]:
    """Write every shard; returns the number of tokens of each."""
    training, held_out = corpus.read(work, "training"), corpus.read(work, "held_out")
    unseen = functions_in(held_out)
    functions = distinct(functions_in(training), unlike=unseen)
    for drawn in (functions, unseen):
        random.Random(SEED).shuffle(drawn)
    pool, processor = edits.pool_of(functions), tokenizers.load(work / "tokenizer")
    sources = Sources(training, functions, unseen, pool, processor, documents)
    forked = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(None, forked, _inherited.append, (sources,)) as processes:
        made = {name: one for part in processes.map(_part, PARTS) for name, one in part.items()}
    edited = merged(made, EDIT_PARTS)
    for kind in ("short_edits", "refusals", "chats"):
        made[kind] = merged(made, [f"{kind} of {part}" for part in INVENTED_PARTS])
    made["edits"] = by_length(edited, 0, SHORT_EDIT)
    made["long_edits"] = by_length(edited, SHORT_EDIT, LONG_EDIT)
    for name, one in made.items():
        one.save(work / "shards" / f"{name}.npz")
    return {name: len(one.tokens) for name, one in made.items()}


def merged(made: dict[str, Shard], names: Iterable[str]) -> Shard:
    """One shard of those called `names`, which are taken out of `made`."""
    return Shard.of(pair for name in names for pair in made.pop(name).examples())


def _part(name: str) -> dict[str, Shard]:
    """The shards of one of `PARTS`."""
    (sources,) = _inherited
    rng = random.Random(f"{SEED} {name}")
    if name in EDIT_PARTS:
        brief = [form for function in sources.functions for form in brief_forms(function)]
        many = [*sources.functions] * PASSES_OVER_FUNCTIONS + brief * PASSES_OVER_BRIEF_FORMS
        mine = many[EDIT_PARTS.index(name) :: len(EDIT_PARTS)]
        examples = edit_examples(
            mine,
            sources.pool,
            rng,
            most=MOST_EDITS,
            company=COMPANY,
            similar=SIMILAR,
            commented=COMMENTED,
        )
        return {name: shard(examples, sources.processor)}
    if name in INVENTED_PARTS:
        return {f"{kind} of {name}": one for kind, one in _invented_shards(sources, rng)}
    makers = {"texts": _text_shards, "probes": _probes}
    return dict(makers[name](sources, rng))


def functions_in(files: Iterable[SourceFile]) -> list[Function]:
    """The distinct functions of all files that are not tests."""
    return distinct(f for file in files if not file.is_test for f in functions_of(file))


def edit_examples(
    functions: Sequence[Function],
    pool: Pool,
    rng: random.Random,
    *,
    most: int,
    company: float = 0.0,
    similar: float = 0.0,
    commented: float = 0.0,
) -> Iterator[Example]:
    """One to `most` edits of every function in turn, worded as a chat.

    A share of the edits, `company`, is of code that another function stands in as well; a share of
    the functions, `similar`, gets lines like others of theirs, and another, `commented`, comments.
    """
    comments = comments_of(functions)
    for original in functions:
        function = with_similar_lines(original, rng) if rng.random() < similar else original
        if comments and rng.random() < commented:
            function = with_comments(function, comments, rng)
        made = edits.make_several(function, rng, pool, most=rng.randint(1, most))
        if made and company and rng.random() < company:
            other = edits.beside(made[0], rng.choice(functions), rng)
            made = [other] if other else made
        if made:
            yield chat(edits.conversation(made, rng))


def by_length(examples: Shard, low: int, high: int) -> Shard:
    """The examples with more than `low` and at most `high` tokens."""
    return Shard.of(pair for pair in examples.examples() if low < len(pair[0]) <= high)


def _invented_shards(sources: Sources, rng: random.Random) -> Iterator[tuple[str, Shard]]:
    """One part of the invented examples. All parts together have 48 short edits for each structured
    text, and fewer conversations and refusals."""
    inventor, count = Inventor(rng), -(-sources.documents // len(INVENTED_PARTS))
    requests = refusals.Requests(inventor, docstrings(sources.functions))
    asked = list(questions.library_questions(sources.training, rng))
    chats = Chats(inventor, requests, sources.functions, asked, plain_spoken=True)
    for name, turns in (
        ("short_edits", combined.conversations(inventor, 48 * count)),
        ("refusals", refusals.conversations(requests, 20 * count)),
        ("chats", chats.conversations(28 * count)),
    ):
        yield name, shard(map(chat, turns), sources.processor)


def _probes(sources: Sources, rng: random.Random) -> Iterator[tuple[str, Shard]]:
    """A little of what is held out: edits of real functions, invented ones, conversations."""
    unseen, processor = sources.unseen, sources.processor
    real = edit_examples(unseen[: 4 * PROBES], sources.pool, rng, most=1)
    short = by_length(shard(real, processor), 0, MAX_PROBE)
    yield "probe", Shard.of(pair for pair, _ in zip(short.examples(), range(PROBES), strict=False))
    inventor = Inventor(rng, held_out=True)
    requests = refusals.Requests(inventor, docstrings(unseen))
    invented = combined.conversations(inventor, PROBES)
    yield "probe_short", shard(map(chat, invented), processor)
    chats = Chats(inventor, requests, unseen).conversations(PROBES // 2)
    yield "probe_chats", shard(map(chat, chats), processor)


def _text_shards(sources: Sources, rng: random.Random) -> Iterator[tuple[str, Shard]]:
    """Code, holes in it, questions on it, and structured texts."""
    training, processor, count = sources.training, sources.processor, sources.documents
    yield "code", shard(((Segment(file.text),) for file in training), processor)
    cut = (file.text for file in training for _ in range(1 + len(file.text) // HOLE_EVERY))
    lines = (fill_in.told_line_example(function.text, rng) for function in sources.functions)
    bodies = (fill_in.body_example(function.text, rng) for function in sources.functions)
    holes = (*(fill_in.example(text, rng) for text in cut), *lines, *bodies)
    yield "fim", shard((hole for hole in holes if hole is not None), processor)
    yield "questions", shard(map(chat, questions.library_questions(training, rng)), processor)
    texts = structured.texts(rng, sources.pool, count)
    documents: Iterator[Example] = ((Segment(text), Segment(END_OF_TEXT)) for text in texts)
    conversions = map(chat, structured.conversions(rng, sources.pool, 3 * count // 2))
    yield "structured", shard([*documents, *conversions], processor)
