"""Samples: requests with known right answers, read from JSON lines.

The keys of a line decide how it is read; see `FORMS`. Text comes in, token ids of a tokenizer go
out. Knows no drafters and no model.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from akunu_py.bench.replay import ReplayCase
from akunu_py.errors import InvalidRequestError

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


class _InvalidSampleError(Exception):
    """A line that is not a sample; the text says why, in a few words."""


@dataclass(frozen=True)
class Sample:
    """A request and its answer.

    Attributes:
        kind: the set or workload it belongs to.
        messages: the conversation up to the answer; empty if the prompt is plain text.
        prompt: plain text to continue, or the text before a gap.
        suffix: the text after the gap; None if there is no gap.
    """

    kind: str
    reference: str
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    suffix: str | None = None


def read_samples(path: Path) -> Iterator[Sample]:
    """The samples in a file of JSON lines, gzipped or not; blank lines are skipped.

    Raises:
        InvalidRequestError: if the file cannot be read, or a line is no sample (with its number).
    """
    kind = path.name.removesuffix(".gz").removesuffix(".jsonl")
    try:
        reader = gzip.open if path.suffix == ".gz" else open
        with reader(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        yield _sample_of(json.loads(line), kind)
                    except (ValueError, _InvalidSampleError) as error:
                        raise InvalidRequestError(
                            f"Line {number} of {path} is no sample: {error}."
                        ) from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error


def _sample_of(data: Any, kind: str) -> Sample:
    """The sample in the object of a line, if that has one of `FORMS`."""
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
            raise _InvalidSampleError(f"it has {known} instead of {'; or '.join(FORMS)}")
    raise _InvalidSampleError("it is not an object")


def encode_sample(tokenizer: Tokenizer, sample: Sample) -> ReplayCase:
    """A sample as a model with this tokenizer sees it.

    A conversation is rendered with the chat template; without one, its messages are joined. An
    answer ends with an end token; the continuation of plain text does not.

    Raises:
        InvalidRequestError: if it has a gap and the model cannot fill gaps.
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
    """Encoded samples by their kind; left out are those without a prompt or an answer, and those
    whose prompt has more tokens than there is `room` for."""
    cases: dict[str, list[ReplayCase]] = {}
    for sample in samples:
        case = encode_sample(tokenizer, sample)
        if 0 < len(case.prompt) <= room and case.reference:
            cases.setdefault(sample.kind, []).append(case)
    return cases


def _read_chat(messages: Any, kind: str) -> Sample:
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise _InvalidSampleError("its messages are not a list of objects")
    turns = [{"role": _text(one, "role"), "content": _text(one, "content")} for one in messages]
    if len(turns) < 2 or turns[-1]["role"] != "assistant":
        raise _InvalidSampleError("its messages do not end with an answer of the assistant")
    return Sample(kind, turns[-1]["content"], messages=tuple(turns[:-1]))


def _read_instruction(data: dict[str, Any], kind: str) -> Sample:
    """An instruction about some text; text and answer are fenced, as chat models write them."""
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
    raise _InvalidSampleError(f"it has no answer under any of {', '.join(_REFERENCES)}")


def _text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise _InvalidSampleError(f"its {name} is not text")
    return value
