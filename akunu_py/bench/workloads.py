"""Workloads: requests with known answers, from JSON lines, from held-out files of a project, or
from the standard library, which every machine has.

The library gives six kinds: `edit` asks for code with a name changed, `fill-in` for lines cut out
of a file, `code` for the rest of a function that has begun, `structure` continues the records of a
table, `question` asks what a library function does, and `novel` continues prose, where drafts fail.
They are the same in every run of one Python version; edits, fill-ins and code come from files that
the bundled model was not trained on.

Text comes in, token ids go out. This knows no drafters and no model.
"""

from __future__ import annotations

import ast
import errno
import gzip
import hashlib
import json
import re
import signal
import sysconfig
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from encodings.aliases import aliases
from html.entities import name2codepoint
from http import HTTPStatus
from math import inf
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from akunu_py.bench import WORKLOADS
from akunu_py.bench.replay import ReplayCase
from akunu_py.errors import InvalidRequestError
from akunu_py.memory.files import LeftOut, read_source, source_files
from akunu_py.memory.segment import Segment, joined_documents, write_segment

if TYPE_CHECKING:
    from akunu_py.text.tokenizer import Message, Tokenizer


FORMS: Final = (
    '{"prompt", "reference"}',
    '{"prompt", "suffix", "middle"}',
    '{"instruction", "input", "output"}',
    '{"messages": [{"role", "content"}, ...]} that end with the assistant',
)
"""The forms of a line; `completion`, `canonical_solution` and so on count as a reference."""

_REFERENCES: Final = (
    "reference", "middle", "canonical_solution", "canonical", "completion", "response", "answer",
    "output", "target",
)  # fmt: skip

MAX_REQUESTS: Final = 200
"""Requests of a project, unless the user wants more or fewer."""

_HELD_OUT: Final = 5
"""One file in this many is held out."""
_MAX_PROMPT: Final = 30_000
"""How many characters of context a request has before its answer."""
_LINES: Final = 20
_LEAST_LINES: Final = 3


@dataclass(frozen=True)
class Sample:
    """A request of a set or workload, and its answer: to `messages`, to a plain `prompt`, or in
    the gap between `prompt` and `suffix`."""

    kind: str
    reference: str
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    suffix: str | None = None


def read_samples(path: Path) -> Iterator[Sample]:
    """The samples in a file of JSON lines, gzipped or not; blank lines are skipped. The error for a
    line that is no sample names its number.
    """
    kind = path.name.removesuffix(".gz").removesuffix(".jsonl")
    try:
        reader = gzip.open if path.suffix == ".gz" else open
        with reader(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        yield _sample_of(json.loads(line), kind)
                    except ValueError as error:
                        raise InvalidRequestError(
                            f"Line {number} of {path} is not a sample: {error}."
                        ) from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error


def _sample_of(data: Any, kind: str) -> Sample:
    match data:
        case {"messages": messages}:
            return _read_chat(messages, kind)
        case {"prompt": _, "suffix": _}:
            gap = _text(data, "suffix")
            return Sample(kind, _reference(data), prompt=_text(data, "prompt"), suffix=gap)
        case {"instruction": _}:
            return _read_instruction(data, kind)
        case {"prompt": _}:
            return Sample(kind, _reference(data), prompt=_text(data, "prompt"))
        case {}:
            known = ", ".join(sorted(data)) or "no keys"
            raise ValueError(f"it has {known} instead of {'; or '.join(FORMS)}")
    raise ValueError("it is not an object")


def encode_sample(tokenizer: Tokenizer, sample: Sample) -> ReplayCase:
    """A sample as a model with this tokenizer sees it; a gap needs one that fills gaps.

    A conversation is rendered with the chat template; without one, its messages are joined. An
    answer ends with an end token; the continuation of plain text does not.
    """
    from akunu_py.text.fim import FillRequest, fill_prompt  # noqa: PLC0415  (loads libraries)

    ends = tokenizer.end_tokens
    reference = tokenizer.encode_plain(sample.reference)
    closing = sorted(ends)[:1]
    if sample.suffix is not None:
        prompt, more_ends = fill_prompt(tokenizer, FillRequest(sample.prompt, sample.suffix))
        ends |= more_ends
    elif not sample.messages:
        prompt, closing = tokenizer.encode(sample.prompt), []
    elif tokenizer.has_chat_template:
        prompt = tokenizer.encode(tokenizer.render_chat(sample.messages, open_answer=True))
    else:
        contents = (f"{message['content']}\n\n" for message in sample.messages)
        prompt = tokenizer.encode("".join(contents))
    return ReplayCase(prompt, [*reference, *closing], ends)


def encode_samples(
    tokenizer: Tokenizer, samples: Iterable[Sample], room: float = inf
) -> dict[str, list[ReplayCase]]:
    """Encoded samples by kind, without those that have no prompt, no answer, or a prompt of more
    than `room` tokens."""
    cases: dict[str, list[ReplayCase]] = {}
    for sample in samples:
        case = encode_sample(tokenizer, sample)
        if 0 < len(case.prompt) <= room and case.reference:
            cases.setdefault(sample.kind, []).append(case)
    return cases


def _read_chat(messages: Any, kind: str) -> Sample:
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise ValueError("its messages are not a list of objects")
    turns = [{"role": _text(one, "role"), "content": _text(one, "content")} for one in messages]
    if len(turns) < 2 or turns[-1]["role"] != "assistant":
        raise ValueError("its messages do not end with an answer of the assistant")
    return Sample(kind, turns[-1]["content"], messages=tuple(turns[:-1]))


def _read_instruction(data: dict[str, Any], kind: str) -> Sample:
    """Text and answer are fenced, as chat models write them."""
    instruction, answer = _text(data, "instruction").strip(), _reference(data)
    given = _text(data, "input") if data.get("input") else ""
    if given:
        fence = "```" if re.search("^```", given, re.MULTILINE) is None else "````"
        instruction = f"{instruction}\n{fence}\n{given}\n{fence}"
        answer = f"{fence}\n{answer}\n{fence}"
    return Sample(kind, answer, messages=({"role": "user", "content": instruction},))


def _reference(data: dict[str, Any]) -> str:
    for name in _REFERENCES:
        if name in data:
            return _text(data, name)
    raise ValueError(f"it has no answer under any of {', '.join(_REFERENCES)}")


def _text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise ValueError(f"its {name} is not text")
    return value


@dataclass(frozen=True)
class HeldOut:
    """The requests of a project's held-out files, and the memory of its other files."""

    cases: list[ReplayCase]
    memory: Segment


def hold_out(
    project: Path, tokenizer: Tokenizer, folder: Path, *, most: int = MAX_REQUESTS
) -> HeldOut:
    """Splits a project; takes up to `most` requests at random, and refuses a project without any.

    The memory is written to `folder`, which must stay until the end of the replay.
    """
    left_out, draw = LeftOut(), Random(0)
    read = ((file.name, read_source(file, left_out)) for file in source_files(project, left_out))
    texts = [(name, found[1]) for name, found in read if found is not None]
    draw.shuffle(texts)
    count = len(texts) // _HELD_OUT
    requests = [request for name, text in texts[:count] for request in _requests(name, text)]
    if not requests:
        raise InvalidRequestError(f"{project} has too few files to hold some out of a memory.")
    draw.shuffle(requests)
    cases = [
        ReplayCase(tokenizer.encode(before[-_MAX_PROMPT:]), tokenizer.encode_plain(answer))
        for before, answer in requests[:most]
    ]
    documents = [tokenizer.encode_plain(f"\n{text}") for _, text in texts[count:]]
    path = folder / f"{len(list(folder.iterdir()))}.segment"
    write_segment(path, bytes(32), joined_documents(documents))
    return HeldOut(cases, Segment(path))


def _requests(name: str, text: str) -> Iterator[tuple[str, str]]:
    """What is before an answer, and the answer."""
    lines = text.splitlines(keepends=True)
    if name.endswith(".py"):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first, last = node.body[0].lineno, node.end_lineno or 0
                if first > node.lineno and last - first + 1 >= _LEAST_LINES:
                    yield "".join(lines[: first - 1]), "".join(lines[first - 1 : last])
    elif len(lines) >= 2 * _LEAST_LINES:
        middle = len(lines) // 2
        yield "".join(lines[:middle]), "".join(lines[middle : middle + _LINES])


_HELD_OUT_PERCENT: Final = 4
_NEW_NAMES: Final = ("total", "value", "entry", "result_list", "cursor", "payload")
_PREFIX, _SUFFIX = 900, 450
_FIRST_RECORDS, _RECORDS = 6, 30
_FIRST_PROSE, _MIN_PROSE = 160, 450
_DOCSTRING: Final = re.compile(r'(?:\s|#[^\n]*\n)*[rR]?"""(.*?)"""', re.DOTALL)


def make_workloads(
    count: int, kinds: Sequence[str] = WORKLOADS, unseen: Mapping[str, str] | None = None
) -> list[Sample]:
    """`count` requests of each kind, in turn, from the standard library or from other texts (by
    path) that the model was not trained on."""
    makers = {
        "edit": _edits,
        "fill-in": _fill_ins,
        "code": _bodies,
        "structure": _structures,
        "question": _questions,
        "novel": _prose,
    }
    library = dict(_library()) if unseen is None else unseen
    if unseen is None:
        unseen = {path: text for path, text in library.items() if held_out(path)}
    from_unseen = ("edit", "fill-in", "code")
    streams = [
        makers[kind](unseen if kind in from_unseen else library, Random(kind)) for kind in kinds
    ]
    return [sample for _ in range(count) for sample in (next(stream) for stream in streams)]


def held_out(path: str) -> bool:
    """Whether a library file was kept out of `ember`'s training, by the rule of
    `models/training/corpus.py`; `path` is relative to the library.
    """
    digest = hashlib.blake2b(f"python-stdlib/{path}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 100 < _HELD_OUT_PERCENT


def rename_request(source: str, draw: Random) -> tuple[str, str]:
    """A request to rename one name in a function, and the text that answers it."""
    tree = ast.parse(source)
    names = sorted({node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} - {"self"})
    old = draw.choice(names) if names else "self"
    new = draw.choice(_NEW_NAMES)
    renamed = re.sub(rf"\b{re.escape(old)}\b", new, source)
    return f"Rename `{old}` to `{new}` in:\n```python\n{source}```", f"```python\n{renamed}```"


def _edits(library: Mapping[str, str], draw: Random) -> Iterator[Sample]:
    sources = [
        source
        for text in library.values()
        for source in _functions(text)
        if 6 <= source.count("\n") <= 30
    ]
    draw.shuffle(sources)
    while True:
        for source in sources:
            request, answer = rename_request(source, draw)
            yield Sample("edit", answer, messages=({"role": "user", "content": request},))


def _fill_ins(library: Mapping[str, str], draw: Random) -> Iterator[Sample]:
    texts = [text for text in library.values() if text.count("\n") > 60]
    while True:
        lines = draw.choice(texts).splitlines(keepends=True)
        start = draw.randrange(20, len(lines) - 20)
        end = start + draw.randint(2, 6)
        middle = "".join(lines[start:end]).removesuffix("\n")
        if len(middle.strip()) > 40:
            before = "".join(lines[:start])[-_PREFIX:]
            after = "\n" + "".join(lines[end:])[:_SUFFIX]
            yield Sample("fill-in", middle, prompt=before, suffix=after)


def _bodies(library: Mapping[str, str], draw: Random) -> Iterator[Sample]:
    bodies = [body for path, text in library.items() for body in _requests(path, text)]
    draw.shuffle(bodies)
    while True:
        for before, body in bodies:
            lines = body.splitlines(keepends=True)
            prompt = before + "".join(lines[:_LEAST_LINES])
            if len(prompt) > _PREFIX and len(lines) >= 3 * _LEAST_LINES:
                yield Sample("code", "".join(lines[_LEAST_LINES:]), prompt=prompt[-_PREFIX:])


def _structures(_library: Mapping[str, str], draw: Random) -> Iterator[Sample]:
    tables = list(_tables().items())
    while True:
        title, records = draw.choice(tables)
        write = draw.choice(_WRITERS)
        rows = [records[index] for index in sorted(draw.sample(range(len(records)), _RECORDS))]
        lines = [write(title, row) for row in rows]
        head = f"# All entries of {title}, one a line.\n"
        yield Sample(
            "structure",
            "".join(f"{line}\n" for line in lines[_FIRST_RECORDS:]),
            prompt=head + "".join(f"{line}\n" for line in lines[:_FIRST_RECORDS]),
        )


def _questions(library: Mapping[str, str], draw: Random) -> Iterator[Sample]:
    modules = [path for path in library if path[0] != "_" and "/" not in path]
    while True:
        draw.shuffle(modules)
        for path in modules:
            if documented := list(_documented(path, library[path])):
                name, arguments, docstring = draw.choice(documented)
                question = f"What does `{name}` do, and how is it called?"
                answer = f"`{name}` is called as `{name}({arguments})`.\n\n{docstring}"
                yield Sample("question", answer, messages=({"role": "user", "content": question},))


def _prose(library: Mapping[str, str], draw: Random) -> Iterator[Sample]:
    texts = []
    for text in library.values():
        docstring = _DOCSTRING.match(text)
        paragraphs = docstring[1].strip().split("\n\n") if docstring else []
        prose = "\n\n".join(part for part in paragraphs if is_prose(part))
        if len(prose) >= _MIN_PROSE:
            texts.append(prose)
    draw.shuffle(texts)
    while True:
        for prose in texts:
            cut = prose.rfind(" ", 0, _FIRST_PROSE)
            yield Sample("novel", prose[cut:], prompt=prose[:cut])


def _library() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted((*root.glob("*.py"), *root.glob("[a-z]*/*.py"))):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] in ("site-packages", "test", "idlelib", "lib2to3", "encodings"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.isascii() and 400 < len(text) < 120_000:
            yield name, text


def _functions(text: str) -> Iterator[str]:
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            *body, last = lines[node.lineno - 1 : node.end_lineno]
            if {arg.arg for arg in node.args.args} - {"self"}:
                source = "\n".join([*body, last[: node.end_col_offset]])
                yield textwrap.dedent(source) + "\n"


def _documented(path: str, text: str) -> Iterator[tuple[str, str, str]]:
    module = path.removesuffix(".py")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
            docstring = ast.get_docstring(node) or ""
            if 120 <= len(docstring) <= 900:
                yield f"{module}.{node.name}", ast.unparse(node.args), docstring


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph of a docstring is prose, not code, lists or names."""
    letters = sum(character.isalpha() or character.isspace() for character in paragraph)
    return len(paragraph) > 80 and letters > 0.92 * len(paragraph) and "\n  " not in paragraph


def _tables() -> dict[str, list[tuple[str, int]]]:
    return {
        "http.HTTPStatus": [(status.name, int(status)) for status in HTTPStatus],
        "errno.errorcode": [(name, code) for code, name in sorted(errno.errorcode.items())],
        "signal.Signals": [(entry.name, int(entry)) for entry in signal.Signals],
        "html.entities.name2codepoint": sorted(name2codepoint.items()),
        "encodings.aliases": [(name, len(alias)) for name, alias in sorted(aliases.items())],
    }


_WRITERS: Final[tuple[Callable[[str, tuple[str, int]], str], ...]] = (
    lambda title, row: json.dumps({"table": title, "name": row[0], "value": row[1]}),
    lambda title, row: f'INSERT INTO entries VALUES ("{title}", "{row[0]}", {row[1]});',
    lambda title, row: f'    assert lookup("{title}", name="{row[0]}") == {row[1]}',
)
