"""Questions about the standard library.

Those about its most used modules are answered from the docstrings. To the others, the answer is
that the model does not know.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import random
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from models.training import refusals
from models.training.corpus import STDLIB, SourceFile
from models.training.examples import Turns

MAX_ANSWER = 200
_WORDINGS = 6
_UNKNOWN_WORDINGS = 2
_METHODS_OF = (str, list, dict, set, bytes, tuple)
_FAMILIAR = (
    *("os", "os.path", "pathlib", "shutil", "glob", "tempfile", "subprocess", "sys"),
    *("re", "string", "textwrap", "json", "csv", "copy", "datetime", "time"),
    *("math", "random", "statistics", "bisect", "heapq"),
    *("collections", "functools", "itertools", "operator"),
)
_QUESTIONS = (
    "What does {name} do?",
    "What does {name} do?",
    "What does `{name}` do?",
    "What is {name}?",
    "Explain {name}.",
    "What is `{name}` for?",
    "Tell me about {name}",
    "what does {name}() do",
)


def answer_of(docstring: str | None) -> str | None:
    """The first prose in a docstring's first two paragraphs, a sentence or a few; None without."""
    paragraphs = [part for part in inspect.cleandoc(docstring or "").split("\n\n") if part.strip()]
    for paragraph in paragraphs[:2]:
        text = " ".join(paragraph.split())
        looks_like_signature = "->" in text.split(".")[0] or text.split("(")[0].isidentifier()
        if looks_like_signature or len(text) < 20 or ">>>" in text:
            continue
        if len(text) > MAX_ANSWER:
            cut = text.rfind(". ", 0, MAX_ANSWER)
            text = text[: cut + 1] if cut > 0 else ""
        if text and text.isascii():
            return text if text.endswith((".", "!", "?")) else f"{text}."
    return None


def documented() -> dict[str, str]:
    """Built-ins, familiar modules and their public names with what they do.

    What stands in a held-out file is left out.
    """
    holders: dict[str, object] = {"": builtins} | {one.__name__: one for one in _METHODS_OF}
    holders |= {name: importlib.import_module(name) for name in _FAMILIAR}
    answers = {}
    for holder, found in holders.items():
        things = {name: getattr(found, name) for name in vars(found) if not name.startswith("_")}
        if holder in _FAMILIAR:
            public = getattr(found, "__all__", things)
            things = {name: thing for name, thing in things.items() if name in public}
            answers[holder] = (found, answer_of(found.__doc__))
        for name, thing in things.items():
            said = None if inspect.ismodule(thing) else answer_of(getattr(thing, "__doc__", None))
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


def unfamiliar(files: Iterable[SourceFile]) -> Iterator[str]:
    """Public functions and classes of the library's other modules.

    They are more than a small model can remember in one short training.
    """
    for file in files:
        if file.package != STDLIB or file.is_test:
            continue
        parts = PurePosixPath(file.path).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        if module.startswith("_") or module in _FAMILIAR:
            continue
        for node in ast.parse(file.text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                yield f"{module}.{node.name}"


def library_questions(files: Iterable[SourceFile], rng: random.Random) -> Iterator[Turns]:
    """Each familiar name in several wordings with what it does, the others with an honest answer.

    Not every one of those is asked about: there would be more of them than of all else.
    """
    answers = documented()
    others = [name for name in unfamiliar(files) if name not in answers]
    for name in [*answers, *rng.sample(others, min(len(answers), len(others)))]:
        for template in rng.sample(_QUESTIONS, _WORDINGS if name in answers else _UNKNOWN_WORDINGS):
            question = template.format(name=name)
            answer = answers.get(name) or refusals.answer("explain", question)
            yield [("user", question), ("assistant", answer)]
