"""Edits of held-out files by the parts of `edit`: are they right, and how much faster with drafts?

    python -m benchmarks.edits --data DATA
    python -m benchmarks.edits --data DATA --requests --name edits_requests

The files are the odd-numbered functions of EditEval and HumanEvalPack, with the instructions of
`replay_data.py`: edits of EditEval, bugs to fix, and names to replace. Each is edited with the
right answer forced upon the bundled model, in each of the three formats, and with its own answer.

`--requests` forces the right answers to requests for the same edits as clients of a server make
them: of `/v1/edits`, of `/v1/apply`, whose update has the changed lines and elisions between them,
and of next-edit models at `/v1/completions`, which have seen the first of the changes and make the
others, with the window as `prediction` and without.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import akunu_py
from akunu_py.bench.contestants import ForcedSampler
from akunu_py.bench.measurement import Spread
from akunu_py.cli.loading import measure_costs_with_bar
from akunu_py.edits.edit import Edit, Question, Wanted, edit_of, request_for
from akunu_py.edits.growing import diff_of
from akunu_py.edits.parts import Part, splice
from akunu_py.edits.reading import FORMATS, WHOLE
from akunu_py.edits.text_file import TextFile
from akunu_py.engine import Engine
from akunu_py.errors import BackendError, EditError
from akunu_py.events import Event
from akunu_py.options import Options
from akunu_py.rounds import Stats
from akunu_py.sequence import Sequence as Request
from benchmarks.records import markdown_table, options_of, progress_line, record
from benchmarks.replay_data import Pair, edit_pairs, fix_pairs, rename_pairs

SETS = {"renames": rename_pairs, "edits": edit_pairs, "fixes": fix_pairs}
RIGHT, OTHER = "right", "another edit"
CONTEXT = 2  # lines around a change, in blocks and diffs


@dataclass(frozen=True)
class Outcome:
    """What became of a file: `RIGHT`, `OTHER`, or the reason for which it stayed as it was."""

    what: str
    stats: Stats

    @property
    def seconds(self) -> float:
        return self.stats.prefill_s + self.stats.decode_s


def edited(
    engine: Engine, path: Path, pair: Pair, options: Options, *, form: str = "", own: bool = False
) -> Outcome:
    """Edits a file as `edit --yes` does, with its own answer or the right one."""
    instruction, before, after = pair
    path.write_text(before, encoding="utf-8", newline="")
    file = TextFile.read(path)
    wanted = Wanted(instruction, answer_format=form or WHOLE)
    edit = edit_of(file, wanted, engine.tokenizer, engine.context_limit)

    def ask(question: Question) -> Generator[Event, None, None]:
        engine.reset()
        prompt, asked = request_for(engine.tokenizer, question, options)
        if own:
            yield from engine.stream(prompt, asked)
            return
        end = sorted(engine.tokenizer.end_tokens)[0]
        forced = [*engine.tokenizer.encode_plain(right_answer(before, after, form)), end]
        yield from engine.stream(Request(prompt, asked, sampler=ForcedSampler(prompt, forced)))

    try:
        list(edit.answer(ask))
        if edit.doubt is None:
            file.write(edit.new)
    except EditError as error:
        edit.doubt = str(error)
    found = path.read_bytes()
    # Empty lines around the text are not the model's.
    if found != splice(before, [(Part.of(before, 0, len(before)), after.strip("\n"))]).encode():
        if edit.doubt is None:
            ast.parse(found)  # an edit that is another one is at least an edit
        else:
            assert found == before.encode()
        return Outcome(_kind(edit) if edit.doubt else OTHER, edit.stats)
    return Outcome(RIGHT, edit.stats)


def _kind(edit: Edit) -> str:
    """The first words of a reason, without what is different in each."""
    words = (edit.doubt or "").split(":")[0].replace(edit.name, "the file").split(" (")[0]
    return words.split(" drops ")[0].rstrip(".")


def right_answer(before: str, after: str, form: str) -> str:
    """The right answer, as a model would give it that sees no common indentation."""
    indent = Part.of(before, 0, len(before)).indent
    before, after = ("".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
                     for text in (before, after))  # fmt: skip
    if form == WHOLE:
        return f"```python\n{after}```"
    old, new = before.rstrip("\n").split("\n"), after.rstrip("\n").split("\n")
    parts = list(_changes(old, new, form))
    return f"```diff\n{''.join(parts)}```" if form == "diff" else "".join(parts)


def _changes(old: Sequence[str], new: Sequence[str], form: str) -> Iterator[str]:
    for group in SequenceMatcher(None, old, new, False).get_grouped_opcodes(CONTEXT):
        (_, i, _, j, _), (_, _, i_end, _, j_end) = group[0], group[-1]
        if form == "diff":
            yield f"@@ -{i + 1},{i_end - i} +{j + 1},{j_end - j} @@\n"
            for tag, a, a_end, b, b_end in group:
                marks = ((" ", old[a:a_end]),) if tag == "equal" else (
                    ("-", old[a:a_end]), ("+", new[b:b_end]))  # fmt: skip
                yield from (f"{mark}{line}\n" for mark, lines in marks for line in lines)
            continue
        search, replace = ("".join(f"{it}\n" for it in side)
                           for side in (old[i:i_end], new[j:j_end]))  # fmt: skip
        yield f"<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n"


FIXED = Options(max_tokens=None, num_draft_tokens=16)
"""Drafts of a fixed length depend on no machine."""
MARKS = "<|editable_region_start|>\n{}<|editable_region_end|>\n"
ZETA = """### Instruction:
You are a code completion assistant and your task is to analyze user edits and then rewrite an \
excerpt that the user provides, suggesting the appropriate edits within the excerpt, taking into \
account the cursor location.

### User Edits:

User edited file.py:
```diff
{}```

### User Excerpt:

```file.py
{}```

### Response:
"""
SWEEP = """<|file_sep|>file.py.diff
original:
{}updated:
{}<|file_sep|>original/file.py
{}<|file_sep|>current/file.py
{}<|file_sep|>updated/file.py
"""


def first_change(before: str, after: str) -> str:
    """The text after the first of several changes; if there is only one, before it."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    codes = SequenceMatcher(None, old, new, False).get_opcodes()
    changes = [(i, i_end, j, j_end) for tag, i, i_end, j, j_end in codes if tag != "equal"]
    if len(changes) < 2:
        return before
    i, i_end, j, j_end = changes[0]
    return "".join([*old[:i], *new[j:j_end], *old[i_end:]])


def elided(before: str, after: str) -> str:
    """An update as large models write it: changed lines with one around them, and elisions."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    parts, at = list[str](), 0
    for group in SequenceMatcher(None, old, new, False).get_grouped_opcodes(1):
        j, j_end = group[0][3], group[-1][4]
        parts += ["# ... existing code ...\n"] * (j > at) + new[j:j_end]
        at = j_end
    return "".join(parts + ["# ... existing code ...\n"] * (at < len(new)))


def as_requests(engine: Engine, pair: Pair) -> Iterator[tuple[str, list[int], Options, str]]:
    """The requests for an edit: what kind each is, its prompt, options, and the right answer."""
    instruction, before, after = pair
    for kind, update in (("/v1/edits", ""), ("/v1/apply", elided(before, after))):
        file = TextFile.of("file.py", before.encode())
        wanted = Wanted(instruction * (not update), update=update)
        edit = edit_of(file, wanted, engine.tokenizer, engine.context_limit)
        prompt, options = request_for(engine.tokenizer, edit.questions[0], FIXED)
        yield kind, prompt, options, right_answer(before, after, WHOLE)
    current = first_change(before, after)
    old, new = (next(iter(set(one.splitlines()) - set(other.splitlines())), "") + "\n"
                for one, other in ((before, current), (current, before)))  # fmt: skip
    sweep = SWEEP.format(old, new, before, current)
    zeta = ZETA.format(diff_of(before, current, "file.py"), MARKS.format(current))
    for kind, text, window, answer in (
        ("Sweep's next edit", sweep, current, after),
        ("Zeta's next edit", zeta, MARKS.format(current), MARKS.format(after)),
    ):
        prompt = engine.tokenizer.encode(text)
        yield kind, prompt, FIXED, answer
        with_window = replace(FIXED, references=(window,))
        yield f"{kind}, with `prediction`", prompt, with_window, answer


def requests_body(engine: Engine, pairs: Sequence[tuple[str, Pair]]) -> str:
    sums: dict[str, Stats] = {}
    found = [one for _, pair in pairs for one in as_requests(engine, pair)]
    kinds = list(dict.fromkeys(kind for kind, *_ in found))
    found.sort(key=lambda one: kinds.index(one[0]))  # what is learnt of one kind fits no other
    progress = progress_line("requests")
    end = sorted(engine.tokenizer.end_tokens)[0]
    for turn, (kind, prompt, options, answer) in enumerate(found, 1):
        engine.reset()
        forced = [*engine.tokenizer.encode_plain(answer), end]
        request = Request(prompt, options, sampler=ForcedSampler(prompt, forced))
        sums.setdefault(kind, Stats()).include(list(engine.stream(request))[-1].stats)
        progress(turn, len(found))
    rows = [(kind, str(one.generated_tokens), f"{one.tokens_per_forward:.2f}")
            for kind, one in sums.items()]  # fmt: skip
    said = (
        f"{len(pairs)} edits, as requests to a server, with drafts of {FIXED.num_draft_tokens} "
        "tokens at most; right answers forced upon ember:"
    )
    return f"{said}\n\n{markdown_table(('request', 'tokens', 'tokens per pass'), rows)}"


def main() -> None:
    parser = options_of(__doc__ or "", name="edits", data=True, quick="two of each kind")
    parser.add_argument("--requests", action="store_true", help="as requests to a server")
    options = parser.parse_args()
    each = 2 if options.quick else 20
    engine = akunu_py.load()
    pairs = [
        (kind, pair)
        for kind, make in SETS.items()
        for pair in islice(islice(make(options.data), 1, None, 2), each)
    ]
    if options.requests:
        record(options.name, "Edits as requests", requests_body(engine, pairs))
        return
    engine.costs.alone()
    with suppress(BackendError):  # a busy machine: planned as on a similar one
        engine.costs.trust(measure_costs_with_bar(engine))
    drafting, plain = Options(max_tokens=None), Options(max_tokens=None, drafter="none")
    lanes: dict[str, Callable[[Path, Pair], Outcome]] = {
        form: partial(edited, engine, options=drafting, form=form) for form in FORMATS
    }
    lanes["plain"] = partial(edited, engine, options=plain, form=WHOLE)
    lanes["own"] = partial(edited, engine, options=drafting, own=True)
    found: dict[str, list[Outcome]] = {name: [] for name in lanes}
    progress = progress_line("edits")
    with TemporaryDirectory() as folder:
        # What is learnt of answers of one kind is not true of others, so each kind has its time.
        for kinds in ((WHOLE, "plain"), *((name,) for name in (*FORMATS[1:], "own"))):
            for turn, (_, pair) in enumerate([pairs[0], *pairs]):  # the first once more, to warm up
                for name in kinds[:: 1 if turn % 2 else -1]:
                    outcome = lanes[name](Path(folder) / "file.py", pair)
                    if turn:
                        found[name].append(outcome)
                progress(turn, len(pairs))
    record(options.name, "Edits of held-out files", _body(pairs, found))


def _body(pairs: Sequence[tuple[str, Pair]], found: dict[str, list[Outcome]]) -> str:
    rows = []
    for form in FORMATS:
        outcomes, total = found[form], sum(it.stats.target_forwards for it in found[form])
        tokens = sum(one.stats.generated_tokens for one in outcomes)
        rights = sum(one.what == RIGHT for one in outcomes)
        rows.append((form, f"{rights} of {len(outcomes)}", str(tokens), f"{tokens / total:.2f}"))
    both = list(zip(found[WHOLE], found["plain"], strict=True))
    decoding = Spread.of([b.stats.decode_s / a.stats.decode_s for a, b in both])
    whole = Spread.of([b.seconds / a.seconds for a, b in both])
    reasons = Counter(one.what for one in found["own"] if one.what not in (RIGHT, OTHER))
    shown = []
    for kind in SETS:
        own = [one.what for one, (of, _) in zip(found["own"], pairs, strict=True) if of == kind]
        right, other = own.count(RIGHT), own.count(OTHER)
        shown.append((kind, *map(str, (len(own), right, other, len(own) - right - other))))
    return "\n\n".join(
        [
            f"{len(pairs)} files. Right answers forced upon ember; right means right to the byte:",
            markdown_table(("format", "right", "tokens", "tokens per pass"), rows),
            f"With whole texts, {decoding:.2f} times as fast as with `--no-speculate`, and "
            f"{whole:.2f} times with the time for the prompt (medians of files, and quartiles).",
            "Ember's own answers; what is refused leaves the file as it was, and what is another "
            "edit is still valid Python:",
            markdown_table(("instructions", "files", "right", OTHER, "refused"), shown),
            "Reasons: " + ", ".join(f"{it} ({n})" for it, n in reasons.most_common()) + ".",
        ]
    )


if __name__ == "__main__":
    main()
