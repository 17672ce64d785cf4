"""Requests with known answers, from JSON lines or from held-out files of a project.

Text comes in, token ids go out. It knows no drafters and no model.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

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
        gap = fill_prompt(tokenizer, FillRequest(sample.prompt, sample.suffix))
        prompt, ends = gap.tokens, ends | gap.end_tokens
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
