"""Real requests: edits, fixes, renames, fill-ins, chats; and some from packages that are installed.

Reads the data sets from a folder that holds them under their own names; absent ones are skipped.
The constants of `auto` were fitted on the even-numbered requests, so the odd ones count. Neither
the bundled model nor its head has seen the packages.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path
from random import Random
from typing import Any, Final

from akunu_py.bench.replay import ReplayCase
from akunu_py.bench.workloads import Sample, encode_samples, is_prose, make_workloads
from akunu_py.text.tokenizer import Message, Tokenizer
from models.training.corpus import package_files

COSTS = ("m4-pro", "m4-pro-8b", "m5-max", "m3-ultra", "cpu-25m", "cpu-135m")
PARTS = {"even": slice(0, None, 2), "odd": slice(1, None, 2), "all": slice(None)}
PACKAGES: Final = (
    "anyio", "click", "h11", "markdown-it-py", "pluggy", "uvicorn", "llguidance", "mlx-lm",
)  # fmt: skip
"""The first five are held out by `models/training/corpus.py`; its texts have none of the others."""
LEAST_PROSE, LEAST_LINES, MOST_BEFORE = 450, 12, 900
"""Characters of a passage, lines of a function and of a table, characters before an answer."""
Pair = tuple[str, str, str]
"""An instruction, a text, and the text after it was followed."""
NEW_NAMES = ("total", "current_value", "entries", "k", "result_so_far", "item_index")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file, gzipped or not; none if there is no file."""
    if not path.exists():
        return
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        yield from map(json.loads, lines)


def asked(kind: str, request: str, answer: str) -> Sample:
    return Sample(kind, answer, messages=({"role": "user", "content": request},))


def edits(data: Path) -> Iterator[Sample]:
    """EditEval: an instruction and code, answered by edited code."""
    yield from _samples("edits", edit_pairs(data))


def fixes(data: Path) -> Iterator[Sample]:
    """HumanEvalPack: a function with a bug, answered by the fixed function."""
    yield from _samples("fixes", fix_pairs(data))


def renames(data: Path) -> Iterator[Sample]:
    """HumanEvalPack's functions with the name they use most renamed, by a rule of this file."""
    yield from _samples("renames", rename_pairs(data))


def _samples(kind: str, pairs: Iterator[Pair]) -> Iterator[Sample]:
    for instruction, before, after in pairs:
        yield asked(kind, f"{instruction}\n```python\n{before}```", f"```python\n{after}```")


def edit_pairs(data: Path) -> Iterator[Pair]:
    for row in read_lines(data / "editeval" / "edit_eval.jsonl"):
        yield row["instruction"].strip(), f"{row['input']}\n", f"{row['output']}\n"


def fix_pairs(data: Path) -> Iterator[Pair]:
    for row in read_lines(data / "humanevalpack" / "python.jsonl"):
        codes = (row["declaration"] + row[key] for key in ("buggy_solution", "canonical_solution"))
        yield f"Fix the bug in {row['entry_point']}.", *codes


def rename_pairs(data: Path) -> Iterator[Pair]:
    for row in read_lines(data / "humanevalpack" / "python.jsonl"):
        code = row["declaration"] + row["canonical_solution"]
        names = Counter(
            node.id if isinstance(node, ast.Name) else node.arg
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.arg)
            or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        )
        uses = {name: len(re.findall(rf"\b{name}\b", code)) for name in names}
        old = max(sorted(uses), key=lambda name: uses[name])
        new = NEW_NAMES[len(code) % len(NEW_NAMES)]
        yield f"Rename `{old}` to `{new}`.", code, re.sub(rf"\b{old}\b", new, code)


def fill_ins(data: Path) -> Iterator[Sample]:
    """HumanEval infilling: single lines and random spans."""
    for name in ("SingleLine", "RandomSpan"):
        light = "Light" if name == "RandomSpan" else ""
        path = data / "humaneval_infilling" / f"HumanEval-{name}Infilling{light}.jsonl.gz"
        for row in read_lines(path):
            middle = row["canonical_solution"]
            yield Sample("fill-ins", middle, prompt=row["prompt"], suffix=row["suffix"])


def chats(data: Path) -> Iterator[Sample]:
    """MT-bench: both turns of the questions that have a reference answer."""
    questions = {
        row["question_id"]: row["turns"] for row in read_lines(data / "mt_bench/question.jsonl")
    }
    for row in read_lines(data / "mt_bench" / "reference_gpt-4.jsonl"):
        turns_before: list[Message] = []
        turns = zip(questions[row["question_id"]], row["choices"][0]["turns"], strict=True)
        for question, answer in turns:
            turns_before.append({"role": "user", "content": question})
            yield Sample("chats", answer, messages=tuple(turns_before))
            turns_before.append({"role": "assistant", "content": answer})


def unseen_samples(count: int) -> Iterator[Sample]:
    """Up to `count` requests of each of six kinds, from `PACKAGES`."""
    library = {
        file.path.replace("/", "."): file.text
        for package in PACKAGES
        for file in package_files(distribution(package))
        if not file.is_test
    }
    yield from make_workloads(count, ("edit", "fill-in", "question"), library)
    prose, code, tables = list[Sample](), list[Sample](), list[Sample]()
    for path, text in library.items():
        lines, rows = text.splitlines(keepends=True), list[str]()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            rows.append(f'    ("{path}", "{node.name}", {node.lineno}),\n')
            paragraphs = (ast.get_docstring(node) or "").split("\n\n")
            told = "\n\n".join(filter(is_prose, paragraphs))
            if len(told) >= LEAST_PROSE:
                cut = told.rfind(" ", 0, len(told) // 3)
                prose.append(Sample("prose", told[cut:], prompt=told[:cut]))
            end = node.end_lineno or 0
            if end - node.lineno >= LEAST_LINES:
                begin = node.lineno + LEAST_LINES // 3
                before, rest = ("".join(part) for part in (lines[:begin], lines[begin:end]))
                code.append(Sample("continued Python", rest, prompt=before[-MOST_BEFORE:]))
        if len(rows) >= LEAST_LINES:
            first = "FUNCTIONS = [\n" + "".join(rows[: LEAST_LINES // 2])
            tables.append(Sample("table", "".join(rows[LEAST_LINES // 2 :]), prompt=first))
    for samples in (prose, code, tables):
        yield from Random("unseen").sample(samples, min(count, len(samples)))


DATA_SETS = {
    "edits": edits,
    "fixes": fixes,
    "renames": renames,
    "fill-ins": fill_ins,
    "chats": chats,
}


def read_sets(
    data: Path, names: Sequence[str], part: str, tokenizer: Tokenizer
) -> dict[str, list[ReplayCase]]:
    """The requests of every set that exists, or every other one of them."""
    sets: dict[str, list[ReplayCase]] = {}
    for name in names:
        samples = list(DATA_SETS[name](data))[PARTS[part]]
        if not samples:
            print(f"{name}: not in the data folder, skipped", file=sys.stderr)
        sets |= encode_samples(tokenizer, samples)
    return sets
