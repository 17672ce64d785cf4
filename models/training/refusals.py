"""What a small model answers to requests outside its training, and to questions about the library.

It says what it cannot do and what it can, by the kind of request; the first time in a conversation
also what it is, and how to name a larger model. Questions about the most used modules of the
standard library are answered from the docstrings.
"""

import ast
import builtins
import importlib
import inspect
import random
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from models.training import short_edits, wordings
from models.training.corpus import STDLIB, SourceFile
from models.training.examples import Turns
from models.training.invented import Inventor, joined
from models.training.phrases import CHOICES, LISTS, REQUESTS, fill, unmarked

ANSWERS: Mapping[str, tuple[str, str]] = CHOICES["outside"]
"""For each kind of request what is not possible, and what is."""
WHICH_CODE: str = CHOICES["which_code"]
SMALL_TALK: Mapping[str, str] = CHOICES["small_talk"]
_WORD = re.compile(r"(?<![\w'])[A-Za-z_]\w*(?![\w'])")
_STOP = frozenset(LISTS["stop"])
_LAID_OUT = 0.6  # of requests that end with code are laid out as those for edits are
_FORGOTTEN = 0.7  # of requests without code are in the many wordings of those with code
_OPENED, _CLOSED, _MISTYPED = 0.06, 0.06, 0.08
"""How many requests without code get a word before them, or after, or a typo. None of these changes
the answer."""
_SMALL_TALK_REQUESTS = {unmarked(request) for kind in SMALL_TALK for request in REQUESTS[kind]}
_FORMS = [
    re.compile(
        re.escape(CHOICES[name])
        .replace(r"\{opening\}", r"(?P<opening>[^.\n]+\.)")
        .replace(r"\{able\}", r"(?P<able>[^.`\n]+(?:`\w+`[^.`\n]*)?)")
    )
    for name in ("answer", "later_answer")
]
_MAX_TOLD = 200
_WORDINGS, _UNKNOWN_WORDINGS = 6, 2
_METHODS_OF = (str, list, dict, set, bytes, tuple)


def answer(kind: str) -> str:
    """The one answer to a request of a kind."""
    if kind in SMALL_TALK:
        return SMALL_TALK[kind]
    if kind == "no code":
        return WHICH_CODE
    opening, able = ANSWERS[kind]
    return str(CHOICES["answer"]).format(opening=opening, able=able)


def is_small_talk(request: str) -> bool:
    """True for words of small talk, which are answered so whatever else they might mean."""
    return unmarked(request) in _SMALL_TALK_REQUESTS


def is_honest(text: str) -> bool:
    """True for an answer to something outside the training, whatever it says it cannot do and can;
    also for one that says no more than what it is."""
    is_refusal = any(form.fullmatch(text) for form in _FORMS)
    return is_refusal or text == SMALL_TALK["identity"]


def briefly(turns: Turns) -> Turns:
    """The conversation; only its first refusal tells what the model is, and how to name another."""
    brief: Turns = []
    told = False
    for role, content in turns:
        refusal = _FORMS[0].fullmatch(content) if role == "assistant" else None
        said = content
        if refusal and told:
            said = CHOICES["later_answer"].format(**refusal.groupdict())
        brief.append((role, said))
        told = told or refusal is not None
    return brief


class Requests:
    """Draws requests of a kind; `inventor` says from which part of the words and templates.

    `shown` is the code in the last one, or empty.
    """

    def __init__(self, inventor: Inventor, docstrings: Sequence[str]) -> None:
        self._inventor, self.rng = inventor, inventor.rng
        self.shown = ""
        self._made: Mapping[str, Callable[[], str]] = {
            "name": inventor.name,
            "docstring": lambda: inventor.rng.choice(docstrings),
            "code": self._code,
        }

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
        return request if words == request else wordings.request(words, self.shown, self.rng)

    def _typed(self, request: str) -> str:
        """The request with a word before it or after it, or with letters swapped or left out."""
        draw, choose = self.rng.random, self.rng.choice
        if draw() < _OPENED:
            request = choose(CHOICES["openers"]) + request
        if draw() < _CLOSED:
            request = request.rstrip(".?!") + choose(CHOICES["closers"])
        words = [found for found in _WORD.finditer(request) if len(found[0]) > 3]
        words = [found for found in words if found[0].lower() not in _STOP]
        if words and draw() < _MISTYPED:
            at = choose(words).start() + self.rng.randint(1, 2)
            first, second = request[at], request[at + 1]
            slip = choose((second + first, second, first + first + second))
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
            request = wordings.small(request)
        elif chance < 0.2:
            request = request.rstrip(".?!")
        return request, answer(kind)

    def outside(self) -> tuple[str, str]:
        """A request outside the training, of any kind, and its answer."""
        return self.turn(self.rng.choice(tuple(ANSWERS)))

    def small_talk(self) -> tuple[str, str]:
        """A greeting, a question about the model itself, or thanks."""
        return self.turn(self.rng.choice(tuple(SMALL_TALK)))


def conversations(requests: Requests, count: int) -> Iterator[Turns]:
    """`count` conversations of one or two turns without any code to edit."""
    draw = requests.rng.random
    for _ in range(count):
        turns: Turns = []
        for _ in range(1 + (draw() < 0.3)):
            chance = draw()
            if chance < 0.72 or (turns and requests.shown):  # that would be its code
                said = requests.outside()
            else:
                said = requests.small_talk() if chance < 0.84 else requests.turn("no code")
            turns += [("user", said[0]), ("assistant", said[1])]
        yield turns


def _told(docstring: str | None) -> str | None:
    """The first prose in a docstring's first two paragraphs, a sentence or a few; None without."""
    paragraphs = [part for part in inspect.cleandoc(docstring or "").split("\n\n") if part.strip()]
    for paragraph in paragraphs[:2]:
        text = " ".join(paragraph.split())
        looks_like_signature = "->" in text.split(".")[0] or text.split("(")[0].isidentifier()
        if looks_like_signature or len(text) < 20 or ">>>" in text:
            continue
        if len(text) > _MAX_TOLD:
            cut = text.rfind(". ", 0, _MAX_TOLD)
            text = text[: cut + 1] if cut > 0 else ""
        if text and text.isascii():
            return text if text.endswith((".", "!", "?")) else f"{text}."
    return None


def documented() -> dict[str, str]:
    """Built-ins, familiar modules and their public names with what they do.

    What stands in a held-out file is left out.
    """
    familiar = CHOICES["familiar_modules"]
    holders: dict[str, object] = {"": builtins} | {one.__name__: one for one in _METHODS_OF}
    holders |= {name: importlib.import_module(name) for name in familiar}
    answers = {}
    for holder, found in holders.items():
        things = {name: getattr(found, name) for name in vars(found) if not name.startswith("_")}
        if holder in familiar:
            public = getattr(found, "__all__", things)
            things = {name: thing for name, thing in things.items() if name in public}
            answers[holder] = (found, _told(found.__doc__))
        for name, thing in things.items():
            said = None if inspect.ismodule(thing) else _told(getattr(thing, "__doc__", None))
            answers[f"{holder}.{name}" if holder else name] = (thing, said)
    return {n: said for n, (thing, said) in answers.items() if said and not _is_held_out(thing)}


def _is_held_out(thing: object) -> bool:
    """Whether the source of a part of the standard library is held out."""
    try:
        source = inspect.getsourcefile(inspect.unwrap(thing))  # type: ignore[arg-type]
    except TypeError:  # it is written in C
        return False
    library = Path(sysconfig.get_path("stdlib"))
    if not source or not Path(source).is_relative_to(library):
        return False
    return SourceFile(STDLIB, Path(source).relative_to(library).as_posix(), "").held_out


def _unfamiliar(files: Iterable[SourceFile]) -> Iterator[str]:
    """Public functions and classes of the library's other modules.

    They are more than a small model can remember in one short training.
    """
    for file in files:
        if file.package != STDLIB or file.is_test:
            continue
        parts = PurePosixPath(file.path).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        if module.startswith("_") or module in CHOICES["familiar_modules"]:
            continue
        for node in ast.parse(file.text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                yield f"{module}.{node.name}"


def library_questions(files: Iterable[SourceFile], rng: random.Random) -> Iterator[Turns]:
    """Each familiar name in several wordings with what it does, the others with an honest answer.

    Not every one of those is asked about: there would be more of them than of all else.
    """
    answers = documented()
    others = [name for name in _unfamiliar(files) if name not in answers]
    for name in [*answers, *rng.sample(others, min(len(answers), len(others)))]:
        count = _WORDINGS if name in answers else _UNKNOWN_WORDINGS
        for template in rng.sample(CHOICES["questions"], count):
            question = template.format(name=name)
            said = answers.get(name) or answer("explain")
            yield [("user", question), ("assistant", said)]
