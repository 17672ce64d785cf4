"""Questions about the standard library, answered from its docstrings."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import random
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from models.training.corpus import STDLIB, SourceFile

Turns = list[tuple[str, str]]

MAX_ANSWER = 200
WORDINGS = 6
# Modules written in C have no file in the corpus, but the same docstrings.
_COMPILED_MODULES = ("math", "itertools", "time", "sys", "gc", "zlib", "_operator", "_functools")
_ALIASES = {"posixpath": "os.path", "_operator": "operator", "_functools": "functools"}
_METHODS_OF = (str, list, dict, set, bytes, tuple)
_FAMILIAR = frozenset(
    (
        *("os", "os.path", "pathlib", "shutil", "glob", "tempfile", "subprocess", "sys"),
        *("re", "string", "textwrap", "json", "csv", "copy", "datetime", "time"),
        *("math", "random", "statistics", "bisect", "heapq"),
        *("collections", "functools", "itertools", "operator"),
    )
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
    """The docstring's first paragraph as a sentence or a few; None where it is no prose."""
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


def module_name(file: SourceFile) -> str:
    """The dotted name that a standard-library file is imported by."""
    parts = PurePosixPath(file.path).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    return _ALIASES.get(name, name)


def documented(files: Iterable[SourceFile]) -> Iterator[tuple[str, str]]:
    """Public names of standard-library files with what they do."""
    for file in files:
        if file.package != STDLIB or file.is_test:
            continue
        module, tree = module_name(file), ast.parse(file.text)
        for node in [tree, *tree.body]:
            if not isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
                continue
            own = getattr(node, "name", "")
            answer = answer_of(ast.get_docstring(node))
            if answer and not own.startswith("_") and not module.startswith("_"):
                yield (f"{module}.{own}" if own else module), answer


def documented_in_c() -> Iterator[tuple[str, str]]:
    """Built-in functions, methods of built-in types, and modules written in C."""
    for module_or_type in (
        builtins,
        *_METHODS_OF,
        *map(importlib.import_module, _COMPILED_MODULES),
    ):
        holder = str(getattr(module_or_type, "__name__", ""))
        prefix = "" if holder == "builtins" else f"{_ALIASES.get(holder, holder)}."
        for name in sorted(vars(module_or_type)):
            answer = answer_of(getattr(getattr(module_or_type, name), "__doc__", None))
            if answer and not name.startswith("_"):
                yield prefix + name, answer


def is_familiar(name: str) -> bool:
    """True for built-ins, modules, and members of the modules that are asked about most."""
    module = name.rpartition(".")[0]
    return not module or module in _FAMILIAR or name in _FAMILIAR


def library_questions(files: Iterable[SourceFile], rng: random.Random) -> Iterator[Turns]:
    """Each familiar documented name in several wordings.

    The rest of the library would be more than a small model can remember in one short training.
    """
    for name, answer in [*documented(files), *documented_in_c()]:
        if is_familiar(name):
            for template in rng.sample(_QUESTIONS, WORDINGS):
                yield [("user", template.format(name=name)), ("assistant", answer)]
