"""Load: many simultaneous clients, of all contracts, some of which hang up in the middle.

Every answer is compared with the answer to the same request when it is alone. Errors that a server
under load may return are counted apart from the others. Knows a server by its address only.
"""

import json
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from random import Random
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

BUSY: Final = (429, 503)
"""The statuses of a server that cannot take another request."""
PATIENCE_S: Final = 600.0
_MAX_STAY_S: Final = 0.5
_AT_ONCE: Final = 1 << 16
_TEXTS: Final = (
    "import os\n\n\ndef size_of(path):\n    return ",
    "def mean(values):\n    total = 0\n    for value in values:\n        ",
    "class Tally:\n    def __init__(self):\n        self.n = 0\n\n    def add(self):\n        ",
    "Rename `width` to `w`:\ndef area(width, height):\n    return width * height\n",
)


@dataclass(frozen=True)
class Question:
    """A request whose answer is greedy or has a seed, so that it can be repeated.

    Attributes:
        path: the endpoint's path.
        body: the JSON object to send.
    """

    path: str
    body: dict[str, Any]


@dataclass
class LoadOutcome:
    """How the requests of a load ended.

    Attributes:
        answered: with the same answer as alone.
        refused: with a status of `BUSY`.
        left: the client hung up.
        wrong: with another answer than alone, as `PATH: TEXT, not TEXT`.
        failed: in any other way.
    """

    answered: int = 0
    refused: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """All of them."""
        return self.answered + self.refused + self.left + len(self.wrong) + len(self.failed)


def questions(tokens: int) -> list[Question]:
    """Every contract, with several prompts, streamed and not.

    Args:
        tokens: how long answers are at most.
    """
    return [
        Question(path, body | {"stream": streams})
        for text, streams in product(_TEXTS, (False, True))
        for path, body in _asked(text, tokens)
    ]


def _asked(text: str, tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    greedy, turns = {"temperature": 0}, [{"role": "user", "content": text}]
    options = greedy | {"num_predict": tokens}
    gap = {"input_prefix": text, "input_suffix": "\n", "id_slot": -1}
    yield "/completion", greedy | {"prompt": text, "n_predict": tokens}
    yield "/infill", greedy | gap | {"n_predict": tokens}
    yield "/v1/completions", greedy | {"prompt": text, "max_tokens": tokens}
    yield "/v1/chat/completions", greedy | {"messages": turns, "max_tokens": tokens}
    yield "/v1/fim/completions", greedy | {"prompt": text, "suffix": "\n", "max_tokens": tokens}
    yield "/api/generate", {"prompt": text, "raw": True, "options": options}
    yield "/api/chat", {"messages": turns, "options": options}
    yield "/v1/completions", greedy | {"prompt": text, "max_tokens": tokens, "logprobs": 2}
    yield "/completion", greedy | {"prompt": text, "n_predict": tokens, "repeat_penalty": 1.2}
    schema = {"json_schema": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 4}}
    yield "/v1/chat/completions", greedy | {"messages": turns, "max_tokens": tokens} | schema
    seeded = {"prompt": text, "max_tokens": tokens, "temperature": 1, "seed": 5}
    yield "/v1/completions", seeded


class Load:
    """Puts a load on a server.

    Args:
        url: the server's address.
        tokens: how long answers are at most.
        leaving: the share of requests whose client hangs up.
        seed: the seed of the choice of requests, and of when clients hang up.
    """

    def __init__(self, url: str, *, tokens: int, leaving: float = 1 / 3, seed: int = 0) -> None:
        self._url = url
        self._questions = questions(tokens)
        self._leaving = leaving
        self._draw = Random(seed)
        with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
            self._expected = [_ask(client, question) for question in self._questions]

    def run(self, requests: int, clients: int) -> LoadOutcome:
        """Lets clients send this many requests."""
        draw = self._draw
        plans = [
            (draw.randrange(len(self._questions)),
             draw.uniform(0, _MAX_STAY_S) if draw.random() < self._leaving else None)
            for _ in range(requests)
        ]  # fmt: skip
        shares = [plans[start::clients] for start in range(clients)]
        with ThreadPoolExecutor(clients) as pool:
            outcomes = list(pool.map(self._serve_share, shares))
        return _sum(outcomes)

    def _serve_share(self, plans: Sequence[tuple[int, float | None]]) -> LoadOutcome:
        """Sends one client's requests, one after another."""
        outcome = LoadOutcome()
        with httpx2.Client(base_url=self._url, timeout=PATIENCE_S) as client:
            for index, stay_s in plans:
                question = self._questions[index]
                if stay_s is not None:
                    self._leave(question, stay_s)
                    outcome.left += 1
                else:
                    _book(outcome, question, _ask(client, question), self._expected[index])
        return outcome

    def _leave(self, question: Question, stay_s: float) -> None:
        """Sends a request and hangs up after a while, whatever has arrived by then."""
        address = urlsplit(self._url)
        content = json.dumps(question.body).encode()
        head = f"POST {question.path} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(content)}\r\n\r\n"
        where = (address.hostname or "", address.port or 80)
        with socket.create_connection(where, timeout=PATIENCE_S) as connection:
            connection.sendall(head.encode() + content)
            leaving = monotonic() + stay_s
            while (left_s := leaving - monotonic()) > 0:
                connection.settimeout(left_s)
                try:
                    if not connection.recv(_AT_ONCE):
                        return
                except TimeoutError:
                    return


def _ask(client: httpx2.Client, question: Question) -> tuple[int, str]:
    """The status of an answer, and its text."""
    try:
        response = client.post(question.path, json=question.body)
    except httpx2.HTTPError as error:
        return 0, repr(error)
    if response.status_code != httpx2.codes.OK:
        return response.status_code, response.text
    return response.status_code, "".join(_texts(response.text))


def _texts(raw: str) -> Iterator[str]:
    """The text in an answer of any contract, streamed or not."""
    for line in raw.splitlines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            yield _text(json.loads(data))


def _text(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return f"broken off: {answer['error']}"
    if "choices" in answer:
        parts = [choice.get("message") or choice.get("delta") or choice
                 for choice in answer["choices"]]  # fmt: skip
        return "".join(part.get("content") or part.get("text") or "" for part in parts)
    if "message" in answer:
        answer = answer["message"]
    return str(answer.get("content") or answer.get("text") or answer.get("response") or "")


def _book(
    outcome: LoadOutcome, question: Question, got: tuple[int, str], expected: tuple[int, str]
) -> None:
    status, text = got
    if status in BUSY:
        outcome.refused += 1
    elif status != httpx2.codes.OK:
        outcome.failed.append(f"{question.path}: {status} {text}")
    elif got != expected:
        outcome.wrong.append(f"{question.path}: {text!r}, not {expected[1]!r}")
    else:
        outcome.answered += 1


def _sum(outcomes: Sequence[LoadOutcome]) -> LoadOutcome:
    numbers = Counter[str]()
    for outcome in outcomes:
        numbers.update(answered=outcome.answered, refused=outcome.refused, left=outcome.left)
    return LoadOutcome(
        **numbers,
        wrong=[line for outcome in outcomes for line in outcome.wrong],
        failed=[line for outcome in outcomes for line in outcome.failed],
    )
