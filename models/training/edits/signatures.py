"""Edits of the lines before a function's body: hints, defaults, parameters, decorators."""

from __future__ import annotations

import ast
import random
import re
import textwrap

from models.training.edits.base import (
    Edit,
    Lines,
    Pool,
    fresh_name,
    has_multiline_string,
    phrase,
    spliced,
)
from models.training.functions import Function
from models.training.phrases import official

_TYPES = (
    "int",
    "str",
    "float",
    "bool",
    "bytes",
    "list",
    "dict",
    "object",
    "list[str]",
    "dict[str, int]",
    "int | None",
    "str | None",
    "Path",
    "Any",
    "tuple[int, int]",
)
_DEFAULTS = ("None", "True", "False", "0", "1", "10", '""', "()", "-1", '"utf-8"')
_NO_DEFAULT = 0.4
"""How often a parameter is added without a default, where none has one."""
_LONGEST_SHOWN = 40
"""Characters of a default or a decorator that a request shows."""
_FROM = 0.4
"""How many changes of a default tell the one before, too."""
_ONLY = 0.5
"""How many decorators that are the only one are not named."""
_USUAL = 0.5
"""How often a default, a type or a decorator is one of the usual."""
_DECORATORS = (
    "staticmethod",
    "classmethod",
    "property",
    "cache",
    "lru_cache(maxsize=None)",
    "override",
    "final",
    "wraps(func)",
    "contextmanager",
    "pytest.fixture",
)


def _default(rng: random.Random, pool: Pool) -> str:
    """A usual default, a number or a string."""
    if rng.random() < _USUAL:
        return rng.choice(_DEFAULTS)
    number, word = str(rng.randint(2, 999)), rng.choice(pool.names)
    return rng.choice((number, number, f"{rng.randint(0, 9)}.{number}", f'"{word}"', f"'{word}'"))


def _hint(rng: random.Random, pool: Pool) -> str:
    """A usual type, one of any name, or one made of these."""
    hint = rng.choice(_TYPES if rng.random() < _USUAL else pool.names)
    made = (f"list[{hint}]", f"set[{hint}]", f"dict[str, {hint}]", f"{hint} | None")
    return hint if rng.random() < _USUAL or "|" in hint else rng.choice(made)


def _decorator(rng: random.Random, pool: Pool) -> str:
    """A usual decorator, or one of any name."""
    if rng.random() < _USUAL:
        return rng.choice(_DECORATORS)
    name, other = rng.choice(pool.names), rng.choice(pool.names)
    number = rng.randint(0, 99)
    made = (f"{name}({number})", f'{name}("{other}")', f"{name}.{other}", f"{name}.{other}()")
    return rng.choice((name, name, *made))


def add_hint(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """A type on one parameter that has none, or on what the function returns."""
    text, lines, node = function.text, Lines(function.text), function.node
    hint = _hint(rng, pool)
    positional = node.args.posonlyargs + node.args.args
    defaults = [None] * (len(positional) - len(node.args.defaults)) + [*node.args.defaults]
    bare = [
        (parameter, default)
        for parameter, default in zip(positional, defaults, strict=True)
        if not parameter.annotation and parameter.arg not in ("self", "cls")
    ]
    if bare and rng.random() < 0.7:
        chosen, default = rng.choice(bare)
        instruction = phrase(rng, official("add_hint: parameter"), name=chosen.arg, hint=hint)
        end = lines.end(chosen)
        splice = (end, end, f": {hint}")
        if default:
            splice = (end, lines.start(default), f": {hint} = ")
        return Edit("add_hint", instruction, text, spliced(text, [splice]))
    header = re.compile(r"\)[ ]*:[ ]*$", re.MULTILINE)
    closings = list(header.finditer(text, lines.start(node), lines.start(node.body[0])))
    if node.returns or not closings:
        return None
    instruction = phrase(rng, official("add_hint: return"), hint=hint)
    at = closings[-1].start() + 1
    return Edit("add_hint", instruction, text, spliced(text, [(at, at, f" -> {hint}")]))


def _has_hints(node: ast.AST) -> bool:
    """True if a function in the node has a type on a parameter or on what it returns."""
    return any(
        (isinstance(inner, ast.arg) and inner.annotation is not None)
        or (isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.returns is not None)
        for inner in ast.walk(node)
    )


def drop_hints(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """No annotations on parameters and result."""
    text, lines, node = function.text, Lines(function.text), function.node
    if any(isinstance(inner, ast.AnnAssign) for inner in ast.walk(node)):
        return None
    splices = []
    arguments = node.args
    defaults: dict[str, ast.expr] = {}
    positional = arguments.posonlyargs + arguments.args
    if arguments.defaults:
        named = positional[-len(arguments.defaults) :]
        defaults |= {a.arg: d for a, d in zip(named, arguments.defaults, strict=True)}
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    defaults |= {a.arg: d for a, d in pairs if d is not None}
    extra = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    for argument in positional + arguments.kwonlyargs + extra:
        if argument.annotation is None:
            continue
        start = lines.start(argument) + len(argument.arg)
        default = defaults.get(argument.arg)
        if default is None:
            splices.append((start, lines.end(argument), ""))
        else:
            splices.append((start, lines.start(default), "="))
    if node.returns is not None:
        arrow = text.rindex("->", 0, lines.start(node.returns))
        start = len(text[:arrow].rstrip())
        splices.append((start, lines.end(node.returns), ""))
    if not splices or any(map(_has_hints, node.body)):
        return None
    return Edit("drop_hints", phrase(rng, official("drop_hints")), text, spliced(text, splices))


def add_default(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """A default on the last parameter that has none."""
    text, lines, arguments = function.text, Lines(function.text), function.node.args
    positional = arguments.posonlyargs + arguments.args
    without = positional[: len(positional) - len(arguments.defaults)]
    if not without or without[-1].arg in ("self", "cls"):
        return None
    chosen, value = without[-1], _default(rng, pool)
    end = lines.end(chosen)
    added = f" = {value}" if chosen.annotation else f"={value}"
    instruction = phrase(rng, official("add_default"), name=chosen.arg, value=value)
    return Edit("add_default", instruction, text, spliced(text, [(end, end, added)]))


def drop_default(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """No default on the first parameter that has one."""
    text, lines, arguments = function.text, Lines(function.text), function.node.args
    if not arguments.defaults:
        return None
    positional = arguments.posonlyargs + arguments.args
    chosen = positional[-len(arguments.defaults)]
    value = arguments.defaults[0]
    instruction = phrase(rng, official("drop_default"), name=chosen.arg)
    after = spliced(text, [(lines.end(chosen), lines.end(value), "")])
    if text[lines.end(value) : lines.end(value) + 1] not in (",", ")"):
        return None
    return Edit("drop_default", instruction, text, after)


def change_default(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """Another default for a parameter that has one."""
    text, lines, arguments = function.text, Lines(function.text), function.node.args
    positional = arguments.posonlyargs + arguments.args
    defaults = arguments.defaults
    pairs = list(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
    if not pairs:
        return None
    chosen, default = rng.choice(pairs)
    old, value = lines.segment(default), _default(rng, pool)
    if value == old or len(old) > _LONGEST_SHOWN or "`" in old or "\n" in old:
        return None
    part = "change_default: from" if rng.random() < _FROM else "change_default: to"
    instruction = phrase(rng, official(part), name=chosen.arg, old=old, value=value)
    after = spliced(text, [(lines.start(default), lines.end(default), value)])
    return Edit("change_default", instruction, text, after)


def drop_parameter(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """One parameter less, with its type and its default; what uses it stays."""
    text, lines, arguments = function.text, Lines(function.text), function.node.args
    first_default = len(arguments.args) - len(arguments.defaults)
    usable = [i for i, a in enumerate(arguments.args) if a.arg not in ("self", "cls")]
    if arguments.posonlyargs or not usable:
        return None
    index = rng.choice(usable)
    chosen = arguments.args[index]
    last = arguments.defaults[index - first_default] if index >= first_default else chosen
    start, end = lines.start(chosen), lines.end(last)
    if text.startswith(", ", end):
        end += 2
    elif text.startswith(")", end):
        start -= 2 * text.endswith(", ", 0, start)
    else:
        return None
    instruction = phrase(rng, official("drop_parameter"), name=chosen.arg)
    return Edit("drop_parameter", instruction, text, spliced(text, [(start, end, "")]))


def add_parameter(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """One more parameter after the others, with a default or without."""
    text, lines, node = function.text, Lines(function.text), function.node
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        return None
    name, value = fresh_name(function, rng, pool), _default(rng, pool)
    plain = not arguments.defaults and rng.random() < _NO_DEFAULT
    part = "add_parameter: without a default" if plain else "add_parameter: with a default"
    instruction = phrase(rng, official(part), name=name, value=value)
    added = name if plain else f"{name}={value}"
    if arguments.args:
        last = arguments.defaults[-1] if arguments.defaults else arguments.args[-1]
        at, added = lines.end(last), f", {added}"
        if text[at : at + 1] not in (",", ")"):
            return None
    else:
        at = text.index("(", lines.start(node)) + 1
    return Edit("add_parameter", instruction, text, spliced(text, [(at, at, added)]))


def make_async(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """`async` before `def`."""
    inside = list(ast.walk(function.node))
    yields = any(isinstance(node, ast.Yield) for node in inside)
    returns = any(isinstance(node, ast.Return) and node.value for node in inside)
    delegates = any(isinstance(node, ast.YieldFrom) for node in inside)
    # An asynchronous generator may do neither.
    if delegates or (yields and returns) or isinstance(function.node, ast.AsyncFunctionDef):
        return None
    at = Lines(function.text).start(function.node)
    after = spliced(function.text, [(at, at, "async ")])
    return Edit("make_async", phrase(rng, official("make_async")), function.text, after)


def make_sync(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """No `async` before `def`, where nothing is awaited."""
    waits = (ast.Await, ast.AsyncFor, ast.AsyncWith)
    inside = (inner for node in function.node.body for inner in ast.walk(node))
    if not isinstance(function.node, ast.AsyncFunctionDef) or any(
        isinstance(inner, waits) or getattr(inner, "is_async", 0) for inner in inside
    ):
        return None
    at = Lines(function.text).start(function.node)
    after = spliced(function.text, [(at, at + len("async "), "")])
    return Edit("make_sync", phrase(rng, official("make_sync")), function.text, after)


def drop_decorator(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """One decorator less; if it is the only one, it is often not named."""
    lines, decorators = Lines(function.text), function.node.decorator_list
    if not decorators:
        return None
    chosen = rng.choice(decorators)
    name, row = lines.segment(chosen), chosen.lineno - 1
    all_lines = function.text.split("\n")
    if all_lines[row].strip() != f"@{name}" or len(name) > _LONGEST_SHOWN or "`" in name:
        return None
    if len(decorators) == 1 and rng.random() < _ONLY:
        words = phrase(rng, official("drop_decorator: the only one"))
    else:
        words = phrase(rng, official("drop_decorator: one"), name=name)
    after = "\n".join(all_lines[:row] + all_lines[row + 1 :])
    return Edit("drop_decorator", words, function.text, after)


def decorate(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """A decorator on top of a function that has none."""
    if function.node.decorator_list:
        return None
    name = _decorator(rng, pool)
    instruction = phrase(rng, official("decorate"), name=name)
    return Edit("decorate", instruction, function.text, f"@{name}\n{function.text}")


def function_to_method(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """A `self` in front of the parameters, and the whole indented by four."""
    node, text = function.node, function.text
    first = [argument.arg for argument in node.args.posonlyargs + node.args.args][:1]
    is_method = function.is_method or first in (["self"], ["cls"])
    if is_method or node.decorator_list or has_multiline_string(text):
        return None
    at = text.index("(", Lines(text).start(node)) + 1
    empty = text[at : at + 1] == ")"
    if text[at : at + 1] == "\n":
        return None
    after = spliced(text, [(at, at, "self" if empty else "self, ")])
    instruction = phrase(rng, official("function_to_method"))
    return Edit("function_to_method", instruction, text, textwrap.indent(after, "    "))
