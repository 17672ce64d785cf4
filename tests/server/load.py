"""Load: many simultaneous clients, of all contracts, some of which hang up in the middle.

Every answer is compared with the answer to the same request when it is alone. Errors that a server
under load may return are counted apart from the others. Knows a server by its address only.
"""

import json
import socket
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from math import isclose
from random import Random
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

BUSY: Final = (429, 503)
"""The statuses of a server that cannot take another request."""
PATIENCE_S: Final = 600.0
_MAX_STAY_IN_ANSWER_S: Final = 0.1
_TOLERANCE: Final = 0.01
"""How far a log-probability may be from the one alone: a batch rounds differently."""
_AT_ONCE: Final = 1 << 16
_LEAVING: Final = 1 / 3
_TEXTS: Final = (
    "import os\n\n\ndef size_of(path):\n    return ",
    "def mean(values):\n    total = 0\n    for value in values:\n        ",
    "class Tally:\n    def __init__(self):\n        self.n = 0\n\n    def add(self):\n        ",
    "Rename `width` to `w`:\ndef area(width, height):\n    return width * height\n",
)
_COLOURS: Final = {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 4}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "paint",
        "parameters": {"type": "object", "properties": {"colours": _COLOURS},
                       "required": ["colours"], "additionalProperties": False},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """A request whose answer is greedy or has a seed, so that it can be repeated."""

    path: str
    body: dict[str, Any]

    @property
    def choices(self) -> int:
        return int(self.body.get("n", 1))


@dataclass(frozen=True)
class Visit:
    """What a client does: asks a question, and may hang up.

    Attributes:
        stay_s: the seconds after which it hangs up, whatever has arrived; None stays to the end.
        stays_for_answer: whether these seconds begin with the first bytes of the answer.
    """

    question: Question
    stay_s: float | None = None
    stays_for_answer: bool = False


@dataclass(frozen=True)
class Answer:
    """What came: the status, and each choice's text and log-probabilities. Tool calls are text."""

    status: int
    texts: dict[int, str]
    logprobs: dict[int, list[float]]

    def equals(self, other: "Answer") -> bool:
        """Whether they say the same, up to rounding."""
        return (
            (self.status, self.texts) == (other.status, other.texts)
            and self.logprobs.keys() == other.logprobs.keys()
            and all(
                len(own) == len(other.logprobs[index])
                and all(
                    isclose(one, two, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
                    for one, two in zip(own, other.logprobs[index], strict=True)
                )
                for index, own in self.logprobs.items()
            )
        )


@dataclass
class LoadOutcome:
    """How the requests of a load ended: with the same answer as alone, with a status of `BUSY`, by
    the client, with another answer, or in any other way. `choices` and `left_choices` are how many
    answers those asked for that got one, and that hung up."""

    answered: int = 0
    refused: int = 0
    left: int = 0
    choices: int = 0
    left_choices: int = 0
    slowest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.answered + self.refused + self.left + len(self.wrong) + len(self.failed)

    def include(self, other: "LoadOutcome") -> None:
        for name in ("answered", "refused", "left", "choices", "left_choices", "wrong", "failed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.slowest_s = max(self.slowest_s, other.slowest_s)


def _asked(text: str, tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    greedy, turns = {"temperature": 0}, [{"role": "user", "content": text}]
    options = greedy | {"num_predict": tokens}
    gap = {"input_prefix": text, "input_suffix": "\n", "id_slot": -1}
    chat = {"messages": turns, "max_tokens": tokens}
    seeded = {"temperature": 1, "seed": 5}
    yield "/completion", greedy | {"prompt": text, "n_predict": tokens}
    yield "/infill", greedy | gap | {"n_predict": tokens}
    yield "/v1/completions", greedy | {"prompt": text, "max_tokens": tokens}
    yield "/v1/chat/completions", greedy | chat
    yield "/v1/messages", greedy | chat
    yield "/v1/responses", greedy | {"input": text, "max_output_tokens": tokens}
    yield "/v1/fim/completions", greedy | {"prompt": text, "suffix": "\n", "max_tokens": tokens}
    yield "/api/generate", {"prompt": text, "raw": True, "options": options}
    yield "/api/chat", {"messages": turns, "options": options}
    yield "/v1/completions", greedy | {"prompt": text, "max_tokens": tokens, "logprobs": 2}
    yield "/v1/chat/completions", greedy | chat | {"logprobs": True, "top_logprobs": 2}
    yield "/completion", greedy | {"prompt": text, "n_predict": tokens, "repeat_penalty": 1.2}
    yield "/completion", greedy | {"prompt": text, "n_predict": tokens, "n_probs": 3, "priority": 1}
    yield "/v1/chat/completions", greedy | chat | {"json_schema": _COLOURS}
    yield "/v1/completions", seeded | {"prompt": text, "max_tokens": tokens}
    yield "/v1/completions", seeded | {"prompt": text, "max_tokens": tokens, "n": 3}
    yield "/v1/chat/completions", seeded | chat | {"n": 3, "frequency_penalty": 0.5}
    yield "/completion", seeded | {"prompt": text, "n_predict": tokens, "n": 3}


def _asked_for_calls(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    turns = {"messages": [{"role": "user", "content": text}], "max_tokens": 100}
    required = {"tools": [_TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    yield "/v1/chat/completions", turns | required | {"temperature": 0}
    yield "/v1/chat/completions", turns | required | {"temperature": 1, "seed": 3, "n": 3}


class Load:
    """Puts a load on a server: requests of every contract, with several prompts, streamed and not;
    with `tools`, calls as well, each for one of the `models` if there are any. A third of them
    hangs up, within `stays_s`."""

    def __init__(
        self,
        url: str,
        *,
        tokens: int,
        tools: bool = False,
        stays_s: float = 0.5,
        models: Sequence[str] = (),
    ) -> None:
        self._url = url
        self._questions = [
            Question(path, body | named | {"stream": streams})
            for named in ([{"model": model} for model in models] or [{}])
            for text, streams in product(_TEXTS, (False, True))
            for path, body in (*_asked(text, tokens), *(_asked_for_calls(text) if tools else ()))
        ]
        self._stays_s = stays_s
        self._draw = Random(0)
        self._expected: dict[int, Answer] = {}  # by the question's identity

    def plan(self, requests: int) -> list[Visit]:
        """Chooses requests, and asks for the answers alone that are not known yet."""
        draw = self._draw
        visits = []
        for _ in range(requests):
            question = draw.choice(self._questions)
            if draw.random() >= _LEAVING:
                visits.append(Visit(question))
            elif question.body["stream"]:
                stay_s = draw.uniform(0, _MAX_STAY_IN_ANSWER_S)
                visits.append(Visit(question, stay_s, stays_for_answer=True))
            else:
                visits.append(Visit(question, draw.uniform(0, self._stays_s)))
        with httpx2.Client(base_url=self._url, timeout=PATIENCE_S) as client:
            asked = [visit.question for visit in visits if visit.stay_s is None]
            for question in sorted(asked, key=lambda one: str(one.body.get("model"))):
                if id(question) not in self._expected:
                    self._expected[id(question)] = _ask(client, question)
        return visits

    def run(self, visits: Sequence[Visit], clients: int) -> LoadOutcome:
        shares = [visits[start::clients] for start in range(clients)]
        outcome = LoadOutcome()
        with ThreadPoolExecutor(clients) as pool:
            for one in pool.map(self._serve_share, shares):
                outcome.include(one)
        return outcome

    def _serve_share(self, visits: Sequence[Visit]) -> LoadOutcome:
        outcome = LoadOutcome()
        with httpx2.Client(base_url=self._url, timeout=PATIENCE_S) as client:
            for visit in visits:
                question = visit.question
                if visit.stay_s is not None:
                    self._leave(visit, visit.stay_s)
                    outcome.left += 1
                    outcome.left_choices += question.choices
                    continue
                begun = monotonic()
                answer = _ask(client, question)
                outcome.slowest_s = max(outcome.slowest_s, monotonic() - begun)
                _book(outcome, question, answer, self._expected[id(question)])
        return outcome

    def _leave(self, visit: Visit, stay_s: float) -> None:
        """Sends a request and hangs up after a while, whatever has arrived by then."""
        address = urlsplit(self._url)
        content = json.dumps(visit.question.body).encode()
        head = f"POST {visit.question.path} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(content)}\r\n\r\n"
        where = (address.hostname or "", address.port or 80)
        with socket.create_connection(where, timeout=PATIENCE_S) as connection:
            connection.sendall(head.encode() + content)
            if visit.stays_for_answer:
                connection.recv(_AT_ONCE)
            leaving = monotonic() + stay_s
            while (left_s := leaving - monotonic()) > 0:
                connection.settimeout(left_s)
                try:
                    if not connection.recv(_AT_ONCE):
                        return
                except TimeoutError:
                    return


def _ask(client: httpx2.Client, question: Question) -> Answer:
    try:
        response = client.post(question.path, json=question.body)
    except httpx2.HTTPError as error:
        return Answer(0, {0: repr(error)}, {})
    if response.status_code != httpx2.codes.OK:
        return Answer(response.status_code, {0: response.text}, {})
    texts: dict[int, str] = defaultdict(str)
    logprobs: dict[int, list[float]] = defaultdict(list)
    for line in response.text.splitlines():
        data = line.removeprefix("data: ")
        if data.startswith(("{", "[{")):
            read = json.loads(data)
            for part in read if isinstance(read, list) else [read]:
                for index, text, values in _pieces(part):
                    texts[index] += text
                    logprobs[index] += values
    return Answer(response.status_code, dict(texts), dict(logprobs))


def _pieces(answer: dict[str, Any]) -> Iterator[tuple[int, str, list[float]]]:
    """The choices of an answer of any contract, or of a part of a stream: the number of each, its
    text and its log-probabilities."""
    kind = str(answer.get("type") or answer.get("object") or "")
    if answer.get("error"):
        yield 0, f"broken off: {answer['error']}", []
    elif "choices" in answer:
        for choice in answer["choices"]:
            given = choice.get("logprobs") or {}
            values = [entry["logprob"] for entry in given.get("content") or []]
            values += given.get("token_logprobs") or []
            yield choice["index"], _text(choice), values
    elif kind in ("content_block_delta", "response.output_text.delta"):
        delta = answer["delta"]
        yield 0, delta if isinstance(delta, str) else delta.get("text", ""), []
    elif kind == "message":
        yield 0, "".join(block.get("text", "") for block in answer["content"]), []
    elif kind == "response":
        parts = [part for item in answer["output"] for part in item.get("content") or []]
        yield 0, "".join(part.get("text", "") for part in parts), []
    elif not kind:
        values = [entry["logprob"] for entry in answer.get("completion_probabilities", [])]
        yield answer.get("index", 0), _text(answer), values


def _text(part: dict[str, Any]) -> str:
    part = part.get("message") or part.get("delta") or part
    text = str(part.get("content") or part.get("text") or part.get("response") or "")
    for call in part.get("tool_calls") or []:
        text += call["function"].get("name", "") + call["function"].get("arguments", "")
    return text


def _book(outcome: LoadOutcome, question: Question, got: Answer, expected: Answer) -> None:
    if got.status in BUSY:
        outcome.refused += 1
    elif got.status != httpx2.codes.OK:
        outcome.failed.append(f"{question.path}: {got.status} {got.texts[0]}")
    else:
        outcome.choices += question.choices
        if got.equals(expected):
            outcome.answered += 1
        else:
            outcome.wrong.append(f"{question.path}, {question.body}: {got}, not {expected}")
