"""Turns the corpus into shards of examples, one file for each kind.

The work folder has `corpus.jsonl` and `tokenizer/`; the shards go to its `shards/`. `probe.npz`
holds edits of held-out functions, to watch while training, and is not trained on.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece as spm

from models.training import corpus, edits, fill_in, questions, refusals, short_edits, structured
from models.training import tokenizer as tokenizers
from models.training.chats import Chats
from models.training.corpus import SourceFile
from models.training.edits import Pool
from models.training.examples import END_OF_TEXT, Example, Segment, Shard, chat, shard
from models.training.functions import Function, brief_forms, distinct, docstrings, functions_of
from models.training.invented import Inventor

SEED = 4
HOLE_EVERY = 700
"""Characters of a file for each hole made in it."""
PASSES_OVER_FUNCTIONS, PASSES_OVER_BRIEF_FORMS = 2, 2
MOST_EDITS = 2
SHORT_EDIT, LONG_EDIT = 510, 2000
PROBES = 60
MAX_PROBE = 400


def functions_in(files: Iterable[SourceFile]) -> list[Function]:
    """The distinct functions of all files that are not tests."""
    return distinct(f for file in files if not file.is_test for f in functions_of(file))


def edit_examples(
    functions: Sequence[Function], pool: Pool, rng: random.Random, *, most: int
) -> Iterator[Example]:
    """One to `most` edits of every function in turn, worded as a chat."""
    for function in functions:
        made = edits.make_several(function, rng, pool, most=rng.randint(1, most))
        if made:
            yield chat(edits.conversation(made, rng))


def by_length(examples: Shard, low: int, high: int) -> Shard:
    """The examples with more than `low` and at most `high` tokens."""
    picked = [
        examples.example(i)
        for i in range(len(examples))
        if low < examples.starts[i + 1] - examples.starts[i] <= high
    ]
    return Shard.of(picked)


def invented_shards(
    functions: Sequence[Function],
    count: int,
    rng: random.Random,
    processor: spm.SentencePieceProcessor,
) -> Iterator[tuple[str, Shard]]:
    """What is made up: `count` times 25 short edits, and fewer conversations and refusals."""
    inventor = Inventor(rng)
    requests = refusals.Requests(inventor, docstrings(functions))
    chats = Chats(inventor, requests, functions)
    for name, turns in (
        ("short_edits", short_edits.conversations(inventor, 25 * count)),
        ("refusals", refusals.conversations(requests, 10 * count)),
        ("chats", chats.conversations(10 * count)),
    ):
        yield name, shard(map(chat, turns), processor)


def invented_probes(
    functions: Sequence[Function], rng: random.Random, processor: spm.SentencePieceProcessor
) -> Iterator[tuple[str, Shard]]:
    """The same in little, of the held-out part, to watch while training."""
    inventor = Inventor(rng, held_out=True)
    requests = refusals.Requests(inventor, docstrings(functions))
    short = short_edits.conversations(inventor, PROBES)
    yield "probe_short", shard(map(chat, short), processor)
    chats = Chats(inventor, requests, functions).conversations(PROBES // 2)
    yield "probe_chats", shard(map(chat, chats), processor)


def build(work: Path, *, documents: int) -> dict[str, int]:
    """Write every shard; returns the number of tokens of each.

    `documents` is how many structured texts to make.
    """
    processor = tokenizers.load(work / "tokenizer")
    training, held_out = corpus.read(work, "training"), corpus.read(work, "held_out")
    unseen = functions_in(held_out)
    functions = distinct(functions_in(training), unlike=unseen)
    rng = random.Random(SEED)
    rng.shuffle(functions)
    pool = edits.pool_of(functions)
    made = dict(_text_shards(training, functions, pool, processor, rng, documents))
    brief = [form for function in functions for form in brief_forms(function)]
    many = functions * PASSES_OVER_FUNCTIONS + brief * PASSES_OVER_BRIEF_FORMS
    edited = shard(edit_examples(many, pool, rng, most=MOST_EDITS), processor)
    made["edits"] = by_length(edited, 0, SHORT_EDIT)
    made["long_edits"] = by_length(edited, SHORT_EDIT, LONG_EDIT)
    made |= dict(invented_shards(functions, documents, rng, processor))
    rng.shuffle(unseen)
    probes = shard(edit_examples(unseen[: 4 * PROBES], pool, rng, most=1), processor)
    short = by_length(probes, 0, MAX_PROBE)
    made["probe"] = Shard.of([short.example(i) for i in range(min(PROBES, len(short)))])
    made |= dict(invented_probes(unseen, rng, processor))
    for name, one in made.items():
        one.save(work / "shards" / f"{name}.npz")
    return {name: len(one.tokens) for name, one in made.items()}


def _text_shards(
    training: Sequence[SourceFile],
    functions: Sequence[Function],
    pool: Pool,
    processor: spm.SentencePieceProcessor,
    rng: random.Random,
    count: int,
) -> Iterator[tuple[str, Shard]]:
    """Everything but the edits."""
    yield "code", shard(((Segment(file.text),) for file in training), processor)
    cut = (file.text for file in training for _ in range(1 + len(file.text) // HOLE_EVERY))
    lines = (fill_in.told_line_example(function.text, rng) for function in functions)
    holes = (*(fill_in.example(text, rng) for text in cut), *lines)
    yield "fim", shard((hole for hole in holes if hole is not None), processor)
    yield "questions", shard(map(chat, questions.library_questions(training, rng)), processor)
    texts = structured.texts(rng, pool, count)
    documents: Iterator[Example] = ((Segment(text), Segment(END_OF_TEXT)) for text in texts)
    conversions = map(chat, structured.conversions(rng, pool, 3 * count // 2))
    yield "structured", shard([*documents, *conversions], processor)
