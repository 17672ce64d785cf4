"""The cases that the bundled model is evaluated on: code, names and texts its training never saw.

They are made from the running interpreter's standard library and the installed held-out packages,
with fixed seeds; two machines with the same versions get the same cases.
"""

import gzip
import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from models.training import edits, fill_in, refusals, short_edits
from models.training.chats import Chats
from models.training.corpus import (
    HELD_OUT_PACKAGES,
    SourceFile,
    package_files,
    standard_library,
)
from models.training.edits import Edit, Pool
from models.training.examples import Turns
from models.training.fill_in import Hole
from models.training.functions import Function, distinct, docstrings, functions_of
from models.training.invented import Inventor
from models.training.phrases import REQUESTS, is_held_out, unmarked

SEED = 11
_ATTEMPTS = 500
OWN_WORDS = Path(__file__).with_name("own_words.txt")
"""Conversations written by hand. Of the first 29, wordings were made for the training; the others
are by somebody who had not seen its wordings."""
LATER_OWN_WORDS = OWN_WORDS.with_name("own_words_2.txt")
"""More of them, by others. Nobody had read them when the weights of course 11 were chosen; those of
the courses after it have been scored by them as well."""
ANY_WORDS = "?"
"""Stands in these files for any answer without code."""
AGAIN, UNDO = "the code again", "undo"
"""Kinds of later turns that ask for the last code, and for the one before it or before all."""
_NAME = re.compile(r"\w{2,}")
HUMANEVAL = Path("humaneval_infilling", "HumanEval-SingleLineInfilling.jsonl.gz")


@dataclass(frozen=True)
class EditCase:
    """An edit of a function, and the chat that asks for it."""

    function: Function
    edit: Edit
    request: Turns
    answer: str


@dataclass(frozen=True)
class ChatCase:
    """The turns before an answer, the last of them the user's, and the answer expected."""

    kind: str
    request: Turns
    answer: str


def held_out_files() -> list[SourceFile]:
    """Every held-out file of this machine that is not a test."""
    packages = [d for d in distributions() if d.metadata["Name"] in HELD_OUT_PACKAGES]
    files = [*standard_library(), *(file for d in packages for file in package_files(d))]
    return [file for file in files if file.held_out and not file.is_test]


def versions() -> dict[str, str]:
    found = {d.metadata["Name"]: d.version for d in distributions()}
    return {name: found[name] for name in sorted(HELD_OUT_PACKAGES & set(found))}


def shuffled_functions(files: list[SourceFile]) -> list[Function]:
    """The files' distinct functions in a fixed random order."""
    functions = distinct(function for file in files for function in functions_of(file))
    random.Random(SEED).shuffle(functions)
    return functions


def edit_cases(functions: list[Function], pool: Pool, per_kind: int) -> Iterator[EditCase]:
    """`per_kind` edits of every kind, on the first functions that allow them."""
    for kind in edits.KINDS:
        rng = random.Random(f"{SEED} {kind}")
        made = 0
        for function in functions:
            edit = edits.make_kind(kind, function, rng, pool)
            if edit is None:
                continue
            *request, (_, answer) = edits.conversation([edit], rng)
            yield EditCase(function, edit, request, answer)
            made += 1
            if made == per_kind:
                break


def short_edit_cases(count: int) -> Iterator[ChatCase]:
    """Edits of invented code with held-out names and bodies, as many of each kind, asked for in
    many wordings."""
    inventor = Inventor(random.Random(f"{SEED} short"), held_out=True)
    kinds = list(short_edits.KINDS)
    for index in range(count):
        kind, edit = short_edits.drawn(inventor, kinds[index % len(kinds)])
        *request, (_, answer) = short_edits.conversation(kind, edit, inventor.rng)
        yield ChatCase(kind, request, answer)


def two_edit_cases(count: int) -> Iterator[ChatCase]:
    """Requests for two edits of invented code at once, with held-out names and bodies."""
    inventor = Inventor(random.Random(f"{SEED} two"), held_out=True)
    for _ in range(count):
        *request, (_, answer) = short_edits.request_for_two(inventor)
        yield ChatCase("two edits", request, answer)


def correction_cases(count: int) -> Iterator[ChatCase]:
    """Second messages that put right a name or value of the first, of held-out code."""
    inventor = Inventor(random.Random(f"{SEED} corrections"), held_out=True)
    chats = Chats(inventor, refusals.Requests(inventor, []), [])
    made = 0
    while made < count:
        turns = chats.correct([])
        if turns:
            yield ChatCase("correction", turns[:-1], turns[-1][1])
            made += 1


def outside_cases(functions: list[Function], count: int, *, later: bool) -> Iterator[ChatCase]:
    """Held-out requests outside the training, no two alike, as first messages or after turns."""
    inventor = Inventor(random.Random(f"{SEED} outside {later}"), held_out=True)
    requests = refusals.Requests(inventor, docstrings(functions))
    chats = Chats(inventor, requests, [])
    kinds, asked = tuple(refusals.ANSWERS), set[str]()
    for index in range(count):
        before = chats.conversation(1 + index % 3) if later else []
        for _ in range(_ATTEMPTS):
            request, answer = requests.turn(kinds[index % len(kinds)])
            if unmarked(request) not in asked:
                break
        else:
            raise ValueError(f"there are too few requests of the kind {kinds[index % len(kinds)]}")
        asked.add(unmarked(request))
        yield ChatCase(kinds[index % len(kinds)], [*before, ("user", request)], answer)


def no_code_cases(count: int) -> Iterator[ChatCase]:
    """First messages that ask for an edit of held-out code, and do not show it. Each contains a
    held-out name: a request without any name may also be in the training."""
    inventor = Inventor(random.Random(f"{SEED} no code"), held_out=True)
    made = 0
    while made < count:
        request, _, edit = short_edits.without_code(inventor)
        names = {*_NAME.findall(request)} & {*_NAME.findall(edit.before + edit.after)}
        if any(map(is_held_out, names)):
            yield ChatCase("no code", [("user", request)], refusals.WHICH_CODE)
            made += 1


def later_edit_cases(functions: list[Function], count: int) -> Iterator[ChatCase]:
    """`count` edits as second to fifth turns of conversations on held-out code, with what came
    before; besides, those turns among them that ask for the code again."""
    inventor = Inventor(random.Random(f"{SEED} chats"), held_out=True)
    requests = refusals.Requests(inventor, docstrings(functions))
    chats, made = Chats(inventor, requests, functions), 0
    while True:
        turns = chats.conversation(5)
        for index in range(3, len(turns), 2):
            if turns[index][1].startswith("```"):
                kind = _later_kind(turns[index - 1][1])
                yield ChatCase(kind, turns[:index], turns[index][1])
                made += kind != AGAIN
                if made == count:
                    return


def own_words(path: Path = OWN_WORDS) -> list[Turns]:
    """The conversations of a file: what is said, and the right code or `ANY_WORDS`."""
    conversations: list[Turns] = []
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        turns: Turns = []
        for line in (line for line in block.splitlines() if not line.startswith("# ")):
            mark, rest = line[:2], line[2:]
            if mark == "> ":
                turns += [("user", rest), ("assistant", "")]
            elif mark == ". ":
                turns[-2] = ("user", f"{turns[-2][1]}\n{rest}")
            else:
                turns[-1] = ("assistant", f"{turns[-1][1]}\n{line}".removeprefix("\n"))
        if turns:
            conversations.append(turns)
    return conversations


def _later_kind(request: str) -> str:
    if "def " in request or ("\n" in request and "```diff" not in request):
        return "new code"
    for kind, name in (("undo", UNDO), ("original", UNDO), ("again", AGAIN)):
        if request in REQUESTS[kind]:
            return name
    return "code of an earlier answer"


def holes(files: list[SourceFile], count: int, *, block: bool) -> Iterator[Hole]:
    """Single lines or blocks cut out of windows of held-out files."""
    rng = random.Random(f"{SEED} {block}")
    cut = fill_in.cut_block if block else fill_in.cut_line
    made = 0
    while made < count:
        hole = cut(fill_in.window(rng.choice(files).text, rng), rng)
        if hole is not None and hole.middle.strip():
            yield hole
            made += 1


def function_holes(functions: list[Function], count: int) -> Iterator[Hole]:
    """Single lines of whole functions that follow from the lines around them; headers stay."""
    rng = random.Random(f"{SEED} functions")
    for function in functions[:count]:
        lines = f"{function.text}\n".split("\n")
        rows = fill_in.body_rows(lines)
        if rows:
            yield fill_in.line_hole(lines, rng.choice(rows), indented=True)


def body_holes(functions: list[Function], count: int) -> Iterator[Hole]:
    """Short functions of which only the header and the last line are given."""
    found = (fill_in.body_hole(function.text) for function in functions)
    return itertools.islice((hole for hole in found if hole), count)


def humaneval_holes(data: Path, count: int) -> Iterator[Hole]:
    """Single-line holes of HumanEval-infilling (Bavarian et al. 2022); none if it is absent."""
    path = data / HUMANEVAL
    if not path.exists():
        return
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    for row in random.Random(SEED).sample(rows, min(count, len(rows))):
        middle = row["canonical_solution"].rstrip("\n")
        ending = row["canonical_solution"][len(middle) :]
        yield Hole(row["prompt"], middle, ending + row["suffix"])
