"""What the bundled model can do on text it never saw, quantized and at full precision.

    python -m benchmarks.evaluate_model [--quick] [--model FOLDER] [--full FOLDER] [--data DATA]
    python -m benchmarks.evaluate_model --model FOLDER --others 14    # to choose weights by

Bits per byte, exact matches of fill-ins, exact matches and copy accuracy by kind of edit, and what
a conversation is like: invented short edits, edits of later turns, requests outside the training.
`--full` is the folder that the model was quantized from; where there is none, only the quantized
model is evaluated. The last line printed is one JSON object.
"""

import multiprocessing
import os
import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from typing import Any

from benchmarks.evaluate_model.held_out import (
    AGAIN,
    ANY_WORDS,
    LATER_OWN_WORDS,
    UNDO,
    ChatCase,
    EditCase,
    body_holes,
    correction_cases,
    edit_cases,
    function_holes,
    held_out_files,
    holes,
    humaneval_holes,
    later_edit_cases,
    no_code_cases,
    outside_cases,
    own_words,
    short_edit_cases,
    shuffled_functions,
    two_edit_cases,
    versions,
)
from benchmarks.evaluate_model.outcomes import (
    FACTS,
    LATER_STRANGERS,
    STRANGERS,
    case_outcome,
    facts,
    hard_cases,
    outcome,
)
from benchmarks.evaluate_model.scoring import Scorer, copied_positions
from benchmarks.records import markdown_table, options_of, record
from models.training import edits, fill_in
from models.training.chats import WHAT_CHANGE
from models.training.corpus import SourceFile
from models.training.examples import Turns
from models.training.fill_in import Hole
from models.training.functions import Function, is_function
from models.training.people import Message, conversations_of, read_conversations, shown_code
from models.training.refusals import is_honest

ROOT = Path(__file__).parents[2]
TEXT_WINDOW = 1024
TEXT_BYTES = 200_000
LENGTHS = (150, 250, 400, 600, 1100, 2000)
"""The most tokens of request and answer, for each group of edits of similar length."""
MAX_LINE_LENGTH = 48
"""The most tokens of a line that is filled in."""
MAX_ANSWER_LENGTH = 200
"""In tokens. A longer answer to a request outside the training is a loop, as is a longer body of a
function. An edit is a loop if it is so much longer than the right one."""
Shares = dict[str, dict[str, float]]
ROLES = ("user", "assistant")
SHORT_EDITS, LATER_EDITS, OUTSIDE, WITHOUT_CODE = 300, 200, 120, 60
TWO_EDITS, CORRECTIONS = 60, 60
PER_KIND, HARD_PER_KIND, FILLS = 20, 40, 200
"""Edits, hard cases and holes of each kind."""


def bits_per_byte(scorer: Scorer, files: Iterable[SourceFile]) -> float:
    """Over the first `TEXT_BYTES` of the files, each read in windows without overlap."""
    (start,) = scorer.encode("<|endoftext|>")
    nats = size = 0.0
    for file in files:
        tokens = scorer.encode(file.text)
        size += len(file.text.encode())
        for at in range(0, len(tokens), TEXT_WINDOW):
            before = [start] if at == 0 else [tokens[at - 1]]
            nats += scorer.score(before, tokens[at : at + TEXT_WINDOW]).nats
        if size >= TEXT_BYTES:
            break
    return nats / size / log(2)


def hole_prompt(scorer: Scorer, hole: Hole) -> list[int]:
    """What is asked to fill a hole, cut to the lengths of training."""
    prefix, suffix = hole.prefix[-fill_in.MAX_PREFIX :], hole.suffix[: fill_in.MAX_SUFFIX]
    return scorer.encode(fill_in.prompt(prefix, suffix))


def fill_in_exact(scorer: Scorer, cases: Iterable[Hole]) -> float | None:
    """The share of holes filled exactly, the end of text included; None without cases."""
    exact = []
    for hole in cases:
        answer = scorer.encode(hole.middle) + scorer.encode("<|endoftext|>")
        exact.append(scorer.score(hole_prompt(scorer, hole), answer).exact)
    return sum(exact) / len(exact) if exact else None


def fillings(
    scorer: Scorer, cases: Iterable[Hole], most: int, *, one_line: bool = False
) -> dict[str, float]:
    """Shares of functions with a hole: filled exactly, ended, and Python again.

    A filling of over `most` tokens does not end; nor does one of more than a line where only
    `one_line` is missing.
    """
    found = Tally("exact", "ends", "parses", kinds=("all",))
    for hole in cases:
        answer, ended, _ = scorer.answer(hole_prompt(scorer, hole), most)
        if one_line:
            ended = ended and bool(answer.strip()) and "\n" not in answer
        found.add(
            ("all",),
            ended and answer == hole.middle,
            ended,
            ended and is_function(f"{hole.prefix}{answer}{hole.suffix}"),
        )
    return found.shares["all"]


def real_edits(scorer: Scorer, cases: Iterable[EditCase]) -> tuple[Shares, Shares]:
    """Exact answers, nats per answer, tokens right and copied tokens right: by kind and of all, and
    by length."""
    by_kind: Shares = defaultdict(lambda: defaultdict(float))
    by_length: Shares = {f"up to {most:,}": defaultdict(float) for most in LENGTHS}
    for case in cases:
        prompt = scorer.chat_prompt(case.request)
        answer = scorer.encode(f"{case.answer}<|im_end|>")
        length = len(prompt) + len(answer)
        if length > LENGTHS[-1]:
            continue
        score = scorer.score(prompt, answer)
        copied = copied_positions(scorer.encode(edits.fenced(case.edit.before)), answer)
        band = list(by_length)[bisect_left(LENGTHS, length)]
        for row in (by_kind[case.edit.kind], by_kind["all"], by_length[band]):
            row["cases"] += 1
            row["exact"] += score.exact
            row["refused"] += not score.hits[0]
            row["nats"] += score.nats
            row["tokens"] += len(answer)
            row["right"] += int(score.hits.sum())
            row["copied"] += len(copied)
            row["copied_right"] += int(score.hits[copied].sum())
    return _edit_shares(by_kind), _edit_shares(by_length)


def _edit_shares(counts: Shares) -> Shares:
    return {
        group: {
            "cases": row["cases"],
            "exact": row["exact"] / row["cases"],
            "refused": row["refused"] / row["cases"],
            "nats": row["nats"] / row["cases"],
            "tokens_right": row["right"] / row["tokens"],
            "copied_right": row["copied_right"] / max(1.0, row["copied"]),
        }
        for group, row in counts.items()
        if row["cases"]
    }


def chat_edits(scorer: Scorer, cases: Iterable[ChatCase]) -> Shares:
    """For each kind and for all edits: cases, and the shares of answers that are exact, that do not
    begin as code does, that repeat the given code unchanged, and that do not end."""
    found = Tally("exact", "refused", "unchanged", "loops")
    for case in cases:
        prompt, answer = scorer.chat_prompt(case.request), scorer.encode(f"{case.answer}<|im_end|>")
        score = scorer.score(prompt, answer)
        text, ended = case.answer, True
        if not score.exact:
            text, ended, _ = scorer.answer(prompt, len(answer) + MAX_ANSWER_LENGTH)
        given = "\n".join(content for _, content in case.request)
        is_code = ended and text.startswith("```")
        unchanged = not score.exact and case.kind != UNDO and is_code and code_of(text) in given
        kinds = {case.kind, "all"} - ({"all"} if case.kind == AGAIN else set())
        found.add(kinds, score.exact, not score.hits[0], unchanged, not ended)
    return found.shares


def by_hand(scorer: Scorer, conversations: Iterable[Turns]) -> Shares:
    """The shares of right answers to messages that were written by hand: first requests for edits,
    later ones, and others, to which any answer without code is right, or the question what to
    change. A later request follows the model's own answers, right or wrong."""
    found = Tally("exact", kinds=("first", "later", "others"))
    for conversation in conversations:
        said: Turns = []
        for (_, request), (_, right) in zip(conversation[::2], conversation[1::2], strict=True):
            said.append(("user", request))
            answer, ended, _ = scorer.answer(scorer.chat_prompt(said), MAX_ANSWER_LENGTH)
            kind, exact = "later" if len(said) > 1 else "first", answer == edits.fenced(right)
            if right in (ANY_WORDS, WHAT_CHANGE):
                kind = "others"
                exact = "```" not in answer if right == ANY_WORDS else answer == right
            found.add((kind,), ended and exact)
            said.append(("assistant", answer))
    return found.shares


def asked_for_code(scorer: Scorer, cases: Iterable[ChatCase]) -> Shares:
    """Of requests without code: the shares of answers that ask for it, and that do not end."""
    found = Tally("asked", "loops", kinds=("all",))
    for case in cases:
        answer, ended, _ = scorer.answer(scorer.chat_prompt(case.request), MAX_ANSWER_LENGTH)
        found.add(("all",), ended and answer == case.answer, not ended)
    return found.shares


def hard(scorer: Scorer, cases: Iterable[ChatCase]) -> Shares:
    """The shares of outcomes for each kind of hard case, and for all."""
    found = Tally(*FACTS)
    for case in cases:
        most = len(scorer.encode(case.answer)) + MAX_ANSWER_LENGTH
        answer = scorer.answer(scorer.chat_prompt(case.request), most)
        what = case_outcome(case, answer.text, ended=answer.ended)
        found.add((case.kind, "all"), *facts(what, [text for _, text in case.request], answer))
    return found.shares


def of_people(scorer: Scorer, conversations: Iterable[list[Message]]) -> Shares:
    """The shares of outcomes of messages, and of conversations by their worst answer."""
    found = Tally(*FACTS, kinds=("messages", "conversations"))
    for conversation in conversations:
        said: Turns = []
        worst = (True, *[False] * (len(FACTS) - 1))
        for message in conversation:
            asked, answered = ([text for role, text in said if role == one] for one in ROLES)
            said.append(("user", message.text))
            answer = scorer.answer(scorer.chat_prompt(said), MAX_ANSWER_LENGTH)
            shown = shown_code([*asked, message.text], answered)
            what = outcome(answer.text, message.accepted, shown=shown, ended=answer.ended)
            true = facts(what, [text for _, text in said], answer)
            found.add(("messages",), *true)
            is_doubted = worst[-1] or true[-1]
            worst = (*max(worst[:-1], true[:-1], key=lambda one: one.index(True)), is_doubted)
            said.append(("assistant", answer.text))
        found.add(("conversations",), *worst)
    return found.shares


def code_of(answer: str) -> str:
    """The code in an answer's block, or the answer itself."""
    return answer.strip().removeprefix("```python").removesuffix("```").strip()


def outside(scorer: Scorer, cases: Iterable[ChatCase]) -> Shares:
    """For each kind of request and for all: the shares of answers that are honest, that are honest
    and begin as the right answer does, and that do not end."""
    found = Tally("honest", "fits", "loops")
    for case in cases:
        answer, ended, _ = scorer.answer(scorer.chat_prompt(case.request), MAX_ANSWER_LENGTH)
        honest = ended and is_honest(answer)
        fits = answer.partition(".")[0] == case.answer.partition(".")[0]
        found.add((case.kind, "all"), honest, honest and fits, not ended)
    return found.shares


class Tally:
    """Counts cases by kind, and of how many each of some `names` is true; `kinds` are those that
    have a row even without cases."""

    def __init__(self, *names: str, kinds: Iterable[str] = ()) -> None:
        self._names = names
        self._counts: Shares = {kind: dict.fromkeys(("cases", *names), 0.0) for kind in kinds}

    def add(self, kinds: Iterable[str], *facts: bool) -> None:
        for kind in kinds:
            row = self._counts.setdefault(kind, dict.fromkeys(("cases", *self._names), 0.0))
            row["cases"] += 1
            for name, fact in zip(self._names, facts, strict=True):
                row[name] += fact

    @property
    def shares(self) -> Shares:
        """Of each kind the number of cases, and the share of them for each name."""
        return {
            kind: {
                key: value if key == "cases" else value / max(1.0, row["cases"])
                for key, value in row.items()
            }
            for kind, row in self._counts.items()
        }


@dataclass(frozen=True)
class Wanted:
    """What to evaluate: a model's folder, the one that `humaneval_infilling` is in, and the share
    of the cases."""

    folder: Path
    data: Path | None
    share: float = 1.0

    def of(self, cases: int) -> int:
        return max(2, round(cases * self.share))


@cache
def _prepared(folder: Path) -> tuple[Scorer, list[SourceFile], list[Function]]:
    """The model and what was held out, once for each process."""
    files = held_out_files()
    return Scorer(folder), files, shuffled_functions(files)


def _edits(wanted: Wanted) -> dict[str, Any]:
    scorer, _, functions = _prepared(wanted.folder)
    cases = edit_cases(functions, edits.pool_of(functions), wanted.of(PER_KIND))
    by_kind, by_length = real_edits(scorer, cases)
    return {"edits": by_kind, "edits_by_length": by_length}


def _later_edits(wanted: Wanted) -> dict[str, Any]:
    scorer, _, functions = _prepared(wanted.folder)
    return {"later_edits": chat_edits(scorer, later_edit_cases(functions, wanted.of(LATER_EDITS)))}


def _short_edits(wanted: Wanted) -> dict[str, Any]:
    scorer, _, _ = _prepared(wanted.folder)
    return {
        "short_edits": chat_edits(scorer, short_edit_cases(wanted.of(SHORT_EDITS))),
        "two_edits": chat_edits(scorer, two_edit_cases(wanted.of(TWO_EDITS))),
        "corrections": chat_edits(scorer, correction_cases(wanted.of(CORRECTIONS))),
        "by_hand": by_hand(scorer, own_words()),
        "by_hand_2": by_hand(scorer, own_words(LATER_OWN_WORDS)),
    }


def _outside(wanted: Wanted) -> dict[str, Any]:
    scorer, _, functions = _prepared(wanted.folder)
    return {"no_code": asked_for_code(scorer, no_code_cases(wanted.of(WITHOUT_CODE)))} | {
        key: outside(scorer, outside_cases(functions, wanted.of(OUTSIDE), later=later))
        for key, later in (("outside_first", False), ("outside_later", True))
    }


def _hard_cases(wanted: Wanted) -> dict[str, Any]:
    scorer, _, functions = _prepared(wanted.folder)
    return {
        "hard_cases": hard(scorer, hard_cases(functions, wanted.of(HARD_PER_KIND))),
        "strangers": of_people(scorer, read_conversations(STRANGERS)),
        "strangers_later": of_people(scorer, read_conversations(LATER_STRANGERS)),
        "people": of_people(scorer, conversations_of(held_out=True)),
    }


def _texts(wanted: Wanted) -> dict[str, Any]:
    scorer, files, functions = _prepared(wanted.folder)
    data, fills = wanted.data, wanted.of(FILLS)
    return {
        "bits_per_byte": bits_per_byte(scorer, files[:: max(1, len(files) // 40)]),
        "fill_line": fill_in_exact(scorer, holes(files, fills, block=False)),
        "fill_block": fill_in_exact(scorer, holes(files, fills, block=True)),
        "humaneval_line": fill_in_exact(scorer, humaneval_holes(data, fills)) if data else None,
        "function_line": fillings(
            scorer, function_holes(functions, 2 * fills), MAX_LINE_LENGTH, one_line=True
        ),
        "function_body": fillings(scorer, body_holes(functions, fills // 2), MAX_ANSWER_LENGTH),
    }


PARTS = (_edits, _later_edits, _texts, _hard_cases, _short_edits, _outside)
"""What processes measure apart from each other, the longest first."""


def evaluate(wanted: Wanted) -> dict[str, Any]:
    os.environ["MKL_NUM_THREADS"] = "1"  # in each of them
    found: dict[str, Any] = {}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as processes:
        for measured in [processes.submit(part, wanted) for part in PARTS]:
            found |= measured.result()
    return found


def other_edits(wanted: Wanted, others: int) -> str:
    """The share of right answers to `others` edits of each kind, and the nats per answer.

    Weights are chosen by it. The functions are others than those of the recorded edits, so that
    these are not what weights are chosen by. The nats tell weights apart that have as many answers
    right.
    """
    scorer, _, functions = _prepared(wanted.folder)
    pool = edits.pool_of(functions)
    recorded = {case.function.text for case in edit_cases(functions, pool, wanted.of(PER_KIND))}
    rest = [function for function in functions if function.text not in recorded]
    by_kind, _ = real_edits(scorer, edit_cases(rest, pool, others))
    found = by_kind["all"]
    right = f"{found['exact']:.1%} of {found['cases']:.0f} other edits are right"
    return f"{right}, {found['nats']:.2f} nats per answer"


def table(results: dict[str, dict[str, Any]]) -> str:
    """The figures of every evaluated form of the model, side by side."""
    names = list(results)
    rows: list[list[object]] = []
    for key in ("bits_per_byte", "fill_line", "fill_block", "humaneval_line"):
        values = [results[name][key] for name in names]
        if None not in values:
            rows.append([key, *(f"{value:.3f}" for value in values)])
    for holes_of in ("function_line", "function_body"):
        for key in ("exact", "ends", "parses"):
            values = [results[name][holes_of][key] for name in names]
            rows.append([f"{holes_of}: {key}", *(f"{value:.3f}" for value in values)])
    overall = markdown_table(["", *names], rows)
    tables = [overall]
    headings = [f"{name}: exact / copied tokens right" for name in names]
    for key, title in (("edits", "edit"), ("edits_by_length", "edit, tokens of all")):
        groups = results[names[0]][key]
        rows = []
        for group in sorted(groups) if key == "edits" else groups:
            cells = [results[name][key][group] for name in names]
            shown = [f"{c['exact']:.2f} / {c['copied_right']:.3f}" for c in cells]
            rows.append([group, f"{cells[0]['cases']:.0f}", *shown])
        tables.append(markdown_table([title, "cases", *headings], rows))
    of_edits = ("exact", "refused", "unchanged", "loops")
    for key, title, shares in (
        ("short_edits", "invented short edit", of_edits),
        ("two_edits", "two edits in one request", of_edits),
        ("later_edits", "edit as second to fifth turn", of_edits),
        ("corrections", "correction of the edit before it", of_edits),
        ("by_hand", "message in own words", ("exact",)),
        ("by_hand_2", "message in later own words", ("exact",)),
        ("no_code", "edit without its code, first message", ("asked", "loops")),
        ("hard_cases", "hard case", FACTS),
        ("strangers", "strangers' first minutes", FACTS),
        ("strangers_later", "other strangers' first minutes", FACTS),
        ("people", "in people's own words", FACTS),
        ("outside_first", "outside, first message", ("honest", "fits", "loops")),
        ("outside_later", "outside, later message", ("honest", "fits", "loops")),
    ):
        headings = [f"{name}: {' / '.join(shares)}" for name in names]
        rows = []
        for kind, first in sorted(results[names[0]][key].items()):
            cells = [results[name][key][kind] for name in names]
            shown = [" / ".join(f"{cell[share]:.2f}" for share in shares) for cell in cells]
            rows.append([kind, f"{first['cases']:.0f}", *shown])
        tables.append(markdown_table([title, "cases", *headings], rows))
    return "\n\n".join(tables)


def main() -> None:
    parser = options_of(__doc__, name="model_evaluation", quick="a tenth of the cases")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "ember")
    parser.add_argument("--full", type=Path, default=ROOT / "models/training/output/full")
    parser.add_argument("--data", type=Path, help="folder with humaneval_infilling/")
    parser.add_argument("--others", type=int, help="only this many other edits of each kind")
    options = parser.parse_args()
    if options.others:
        wanted = Wanted(options.model, None)
        print(other_edits(wanted, options.others))
        return
    if options.data and not options.data.is_dir():
        parser.error(f"there is no folder {options.data}")
    folders = {"quantized": options.model}
    if options.full.is_dir():
        folders["full precision"] = options.full
    results = {
        name: evaluate(Wanted(folder, options.data, 0.1 if options.quick else 1.0))
        for name, folder in folders.items()
    }
    setting = {"python": platform.python_version(), "held_out_packages": versions()}
    if len(results) == 2:
        bits = [results[name]["bits_per_byte"] for name in ("quantized", "full precision")]
        setting["quantization_cost"] = bits[0] / bits[1] - 1
    record(options.name, "What the bundled model can do", table(results), {**setting, **results})


if __name__ == "__main__":
    main()
