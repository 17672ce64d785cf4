"""Turns the corpus into shards of examples, one file for each kind.

The work folder has `corpus.jsonl`; the shards go to its `shards/`. Parts are made by as many
processes as there are cores; what is drawn for one depends on its name only.
"""

import multiprocessing
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import sentencepiece as spm

from models.training import corpus, edits, fill_in, refusals, short_edits
from models.training.chats import Chats
from models.training.corpus import SourceFile
from models.training.edits import Pool
from models.training.examples import Example, Segment, Shard, chat, load_tokenizer, shard
from models.training.functions import (
    Function,
    brief_forms,
    comments_of,
    distinct,
    docstrings,
    functions_of,
    with_comments,
    with_similar_lines,
)
from models.training.hard_cases import HardCases
from models.training.invented import Inventor
from models.training.people import People

SEED = 6
HOLE_EVERY = 700  # characters of a file for each hole made in it
PASSES_OVER_FUNCTIONS, PASSES_OVER_BRIEF_FORMS = 3, 2
MOST_EDITS = 2
COMPANY = 0.12  # of edits that can are of one of two functions
SIMILAR, COMMENTED = 0.35, 0.2  # of functions get similar lines, and comments
SHORT_EDIT, LONG_EDIT = 510, 2000
EDIT_PARTS = [f"edits {number}" for number in range(6)]
INVENTED_PARTS = [f"invented {number}" for number in range(8)]
INVENTED_KINDS = {
    "short_edits": 48,
    "refusals": 20,
    "chats": 28,
    "hard_cases": 36,
    "people": 24,
    "remarks": 36,
}  # times `documents`
Shards = Iterator[tuple[str, Shard]]


@dataclass(frozen=True)
class Sources:
    """What examples are made from; `documents` tells how many invented ones to make."""

    training: Sequence[SourceFile]
    functions: Sequence[Function]
    pool: Pool
    processor: spm.SentencePieceProcessor
    documents: int


_inherited: list[Sources] = []
"""What a process that makes parts got from the one that started it."""


def build(work: Path, documents: int) -> dict[str, int]:
    """Write every shard; returns the number of tokens of each."""
    training, held_out = corpus.read(work, "training"), corpus.read(work, "held_out")
    functions = distinct(_functions_in(training), unlike=_functions_in(held_out))
    random.Random(SEED).shuffle(functions)
    pool = edits.pool_of(functions)
    sources = Sources(training, functions, pool, load_tokenizer(), documents)
    forked = multiprocessing.get_context("fork")
    parts = [*EDIT_PARTS, *INVENTED_PARTS, "texts"]
    with ProcessPoolExecutor(None, forked, _inherited.append, (sources,)) as processes:
        made = {name: one for part in processes.map(_part, parts) for name, one in part.items()}
    edited = _merged(made, EDIT_PARTS)
    for kind in INVENTED_KINDS:
        made[kind] = _merged(made, [f"{kind} of {part}" for part in INVENTED_PARTS])
    made["edits"] = _by_length(edited, 0, SHORT_EDIT)
    made["long_edits"] = _by_length(edited, SHORT_EDIT, LONG_EDIT)
    for name, one in made.items():
        one.save(work / "shards" / f"{name}.npz")
    return {name: len(one.tokens) for name, one in made.items()}


def _merged(made: dict[str, Shard], names: Iterable[str]) -> Shard:
    """One shard of those called `names`, which are taken out of `made`."""
    return Shard.of(pair for name in names for pair in made.pop(name).examples())


def _part(name: str) -> dict[str, Shard]:
    (sources,) = _inherited
    rng = random.Random(f"{SEED} {name}")
    if name in EDIT_PARTS:
        return dict(_edit_shards(sources, rng, name))
    if name in INVENTED_PARTS:
        return {f"{kind} of {name}": one for kind, one in _invented_shards(sources, rng)}
    return dict(_text_shards(sources, rng))


def _functions_in(files: Iterable[SourceFile]) -> list[Function]:
    """The distinct functions of all files that are not tests."""
    return distinct(f for file in files if not file.is_test for f in functions_of(file))


def _edit_shards(sources: Sources, rng: random.Random, name: str) -> Shards:
    """Edits of a part of the functions, some made harder to copy or put beside another one."""
    brief = [form for function in sources.functions for form in brief_forms(function)]
    many = [*sources.functions] * PASSES_OVER_FUNCTIONS + brief * PASSES_OVER_BRIEF_FORMS
    functions = many[EDIT_PARTS.index(name) :: len(EDIT_PARTS)]
    comments = comments_of(functions)

    def examples() -> Iterator[Example]:
        for original in functions:
            function = with_similar_lines(original, rng) if rng.random() < SIMILAR else original
            if comments and rng.random() < COMMENTED:
                function = with_comments(function, comments, rng)
            most = rng.randint(1, MOST_EDITS)
            made = edits.make_several(function, rng, sources.pool, most=most)
            if made and rng.random() < COMPANY:
                other = edits.beside(made[0], rng.choice(functions), rng)
                made = [other] if other else made
            if made:
                yield chat(edits.conversation(made, rng))

    yield name, shard(examples(), sources.processor)


def _by_length(examples: Shard, low: int, high: int) -> Shard:
    """The examples with more than `low` and at most `high` tokens."""
    return Shard.of(pair for pair in examples.examples() if low < len(pair[0]) <= high)


def _invented_shards(sources: Sources, rng: random.Random) -> Shards:
    inventor, count = Inventor(rng), -(-sources.documents // len(INVENTED_PARTS))
    requests = refusals.Requests(inventor, docstrings(sources.functions))
    asked = list(refusals.library_questions(sources.training, rng))
    chats = Chats(inventor, requests, sources.functions, asked, plain_spoken=True)
    makers = {
        "short_edits": lambda number: short_edits.conversations(inventor, number),
        "refusals": lambda number: refusals.conversations(requests, number),
        "chats": chats.conversations,
        "hard_cases": HardCases(inventor, sources.functions).conversations,
        "people": People(inventor).conversations,
    }
    made = {name: list(maker(INVENTED_KINDS[name] * count)) for name, maker in makers.items()}
    every = [turns for conversations in made.values() for turns in conversations]
    made["remarks"] = list(chats.with_remarks(every, INVENTED_KINDS["remarks"] * count))
    for name, conversations in made.items():
        yield name, shard(map(chat, map(refusals.briefly, conversations)), sources.processor)


def _text_shards(sources: Sources, rng: random.Random) -> Shards:
    """Code, holes in it, and questions on it."""
    training, processor = sources.training, sources.processor
    yield "code", shard(((Segment(file.text),) for file in training), processor)
    cut = (file.text for file in training for _ in range(1 + len(file.text) // HOLE_EVERY))
    lines = (fill_in.told_line_example(function.text, rng) for function in sources.functions)
    bodies = (fill_in.body_example(function.text, rng) for function in sources.functions)
    holes = (*(fill_in.example(text, rng) for text in cut), *lines, *bodies)
    yield "fim", shard((hole for hole in holes if hole is not None), processor)
    yield "questions", shard(map(chat, refusals.library_questions(training, rng)), processor)
