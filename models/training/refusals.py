"""What a small model answers to requests outside its training: what it is, what it can do, and
how to name a larger model.

The answer depends on the kind of request, and takes up a word of it where there is one.
"""

from __future__ import annotations

import keyword
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from models.training import short_edits, wordings
from models.training.invented import Inventor, joined
from models.training.phrases import LISTS, REQUESTS, fill, unmarked

ANSWERS: Mapping[str, tuple[str, str, str]] = {
    "write": ("I cannot write new code.", "rename {word} in code you paste", "make it async"),
    "explain": (
        "I know nothing about that.",
        "rename {word} in your code",
        "add a docstring to it",
    ),
    "world": (
        "I know nothing about that.",
        "rename a variable to {word}",
        "remove comments from your code",
    ),
    "maths": ("I cannot calculate.", "replace a number in your code", "give a parameter a default"),
    "talk": (
        "I am no good at conversation.",
        "call a function {word}",
        "wrap its body in a try block",
    ),
    "translate": (
        "I cannot help with that.",
        "add the parameter {word} to a function",
        "change its quotes",
    ),
    "other": (
        "I know no language but Python.",
        "rename {word} in Python code",
        "remove its type hints",
    ),
    "judge": (
        "I cannot judge, run or improve code.",
        "rename {word}",
        "make one change that you describe",
    ),
    "act": (
        "I cannot help with that.",
        "rename {word} in code you paste here",
        "delete a line of it",
    ),
    "inject": (
        "There is nothing more to me than edits.",
        "replace {word} in your code",
        "remove its docstring",
    ),
    "nonsense": (
        "I do not understand that.",
        "rename {word} in code you paste",
        "add a decorator to it",
    ),
    "foreign": (
        "I do not understand that.",
        "rename a variable in code you paste",
        "make it async",
    ),
}
"""For each kind of request what is not possible, and two things that are. A small model mistakes
one kind for another, so what is said holds for most of them."""
ANSWER = (
    "{opening} I am ember, a very small model that edits Python. I can {first}, or {second}. "
    "For anything else, name a larger model: python -m akunu_py chat --model NAME"
)
WHICH_CODE = (
    "Which code? Paste it after your request, on the same line or below, such as: "
    "Rename `x` to `total` in: def f(x): return x + 1"
)
SMALL_TALK: Mapping[str, str] = {
    "greeting": "Hello! Paste some Python code and tell me how to change it.",
    "identity": ANSWER.format(
        opening="",
        first="rename a variable in code you paste",
        second="add a docstring to it",
    ).lstrip(),
    "abilities": "I make small edits of Python code: rename a name, change quotes, add a "
    "docstring, make a function async, wrap it in a try block, and so on. Try this: "
    "Rename `x` to `total` in: def f(x): return x + 1",
    "thanks": "You are welcome. What shall we edit next?",
    "bye": "Goodbye!",
}
_WORD = re.compile(r"(?<![\w'])[A-Za-z_]\w*(?![\w'])")
_OWN_NAME = re.compile(r"\bdef ([A-Za-z_]\w*)")
_STOP = frozenset(LISTS["stop"])
_LONGEST = 20
_LAID_OUT = 0.6
"""How many requests that end with code are laid out as those for edits are, such as code first."""
_FORGOTTEN = 0.7
"""How many requests without code are in the many wordings of those with code."""
_OPENED, _CLOSED, _MISTYPED = 0.06, 0.06, 0.08
"""How many requests without code get a word before them, or after, or a typo. None of these changes
the answer."""
_OPENERS = (
    *("hi, ", "hello, ", "hey ", "hey ember, ", "ok, ", "so ", "hm, ", "well, ", "and "),
    *("quick question: ", "one more thing: ", "now ", "please ", "cool, ", "thanks, now "),
)
_CLOSERS = (" please", " pls", " thanks", ", thanks", " lol", ", ok?", " :)", "!!", "...", " then")
_SMALL_TALK_REQUESTS = {unmarked(request) for kind in SMALL_TALK for request in REQUESTS[kind]}


def word_of(request: str) -> str | None:
    """The function that the request shows, or else its last word of four letters and more."""
    own = _OWN_NAME.findall(request)
    words = [w for w in _WORD.findall(request) if len(w) > 3 and w.lower() not in _STOP]
    words = [w for w in words if not keyword.iskeyword(w)]
    found = (own or words or [""])[-1]
    return found if 0 < len(found) <= _LONGEST else None


def answer(kind: str, request: str) -> str:
    """The one answer to a request of a kind."""
    if kind in SMALL_TALK:
        return SMALL_TALK[kind]
    if kind == "no code":
        return WHICH_CODE
    opening, first, second = ANSWERS[kind]
    shown = first.format(word=f"`{word_of(request) or 'x'}`")
    return ANSWER.format(opening=opening, first=shown, second=second)


def is_small_talk(request: str) -> bool:
    """True for words of small talk, which are answered so whatever else they might mean."""
    return unmarked(request) in _SMALL_TALK_REQUESTS


def is_honest(text: str) -> bool:
    """True for an answer to something outside the training: in the words of any kind, or of
    several, and whatever word it takes up; also for one that says no more than what it is."""
    openings, firsts, seconds = (
        "|".join(re.escape(part) for part in parts) for parts in zip(*ANSWERS.values(), strict=True)
    )
    if text == SMALL_TALK["identity"]:
        return True
    whole = re.escape(ANSWER).replace(r"\{opening\}", f"(?:{openings})")
    whole = whole.replace(r"\{first\}", f"(?:{firsts})").replace(r"\{second\}", f"(?:{seconds})")
    pattern = whole.replace(r"\{word\}", r"`\w+`")
    return bool(re.fullmatch(pattern, text))


class Requests:
    """Draws requests of a kind; `inventor` says from which part of the words and templates.

    `shown` is the code in the last one, or empty.
    """

    def __init__(self, inventor: Inventor, docstrings: Sequence[str]) -> None:
        self._inventor, self._docstrings = inventor, docstrings
        self.shown = ""
        self._made: Mapping[str, Callable[[], str]] = {
            "name": inventor.name,
            "docstring": lambda: inventor.rng.choice(docstrings),
            "code": self._code,
        }

    @property
    def rng(self) -> random.Random:
        return self._inventor.rng

    def _code(self) -> str:
        text = self._inventor.function().text
        one_line = joined(text)
        fence = self.rng.random() < 0.25
        self.shown = text
        if one_line and self.rng.random() < 0.7:
            self.shown = one_line
            return f"`{one_line}`" if fence and self.rng.random() < 0.3 else one_line
        return f"\n```python\n{text}\n```" if fence else f"\n{text}"

    def _laid_out(self, request: str) -> str:
        """The request with its code in one of the layouts of edits, if it ends with plain code."""
        words = request.removesuffix(self.shown).rstrip(" :-\n")
        if words == request:
            return request
        return wordings.request(words, self.shown, self.rng)

    def _typed(self, request: str) -> str:
        """The request with a word before it or after it, or with letters swapped or left out."""
        draw = self.rng.random
        if draw() < _OPENED:
            request = self.rng.choice(_OPENERS) + request
        if draw() < _CLOSED:
            request = request.rstrip(".?!") + self.rng.choice(_CLOSERS)
        words = [found for found in _WORD.finditer(request) if len(found[0]) > 3]
        words = [found for found in words if found[0].lower() not in _STOP]
        if words and draw() < _MISTYPED:
            at = self.rng.choice(words).start() + self.rng.randint(1, 2)
            first, second = request[at], request[at + 1]
            slip = self.rng.choice((second + first, second, first + first + second))
            request = request[:at] + slip + request[at + 2 :]
        return request

    def turn(self, kind: str) -> tuple[str, str]:
        """A request of the kind and its answer."""
        held_out = self._inventor.held_out
        self.shown = ""
        if kind == "no code" and self.rng.random() < _FORGOTTEN:
            return short_edits.without_code(self._inventor)[0], WHICH_CODE
        request = fill(kind, self.rng, self._made, held_out=held_out).strip()
        if self.shown and self.rng.random() < _LAID_OUT:
            request = self._laid_out(request)
        elif not self.shown and kind in ANSWERS and kind != "foreign" and not held_out:
            request = self._typed(request)
        if kind in ANSWERS and is_small_talk(request):
            return self.turn(kind)
        chance = self.rng.random()
        if kind not in ("foreign", "judge") and chance < 0.12 and not request[1:2].isupper():
            request = request[:1].lower() + request[1:]
        elif chance < 0.2:
            request = request.rstrip(".?!")
        return request, answer(kind, request)

    def outside(self) -> tuple[str, str]:
        """A request outside the training, of any kind, and its answer."""
        return self.turn(self.rng.choice(tuple(ANSWERS)))

    def small_talk(self) -> tuple[str, str]:
        """A greeting, a question about the model itself, or thanks."""
        return self.turn(self.rng.choice(tuple(SMALL_TALK)))


def conversations(requests: Requests, count: int) -> Iterator[list[tuple[str, str]]]:
    """`count` conversations of one or two turns without any code to edit."""
    draw = requests.rng.random
    for _ in range(count):
        turns: list[tuple[str, str]] = []
        for _ in range(1 + (draw() < 0.3)):
            chance = draw()
            if chance < 0.72 or (turns and requests.shown):  # that would be its code
                said = requests.outside()
            else:
                said = requests.small_talk() if chance < 0.84 else requests.turn("no code")
            turns += [("user", said[0]), ("assistant", said[1])]
        yield turns
