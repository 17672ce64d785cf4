"""Edits of the lines before a function's body: hints, defaults, parameters, decorators."""

import ast
import random
import re
import textwrap

from models.training.edits.base import (
    OWN,
    Edit,
    Lines,
    Pool,
    edit_of,
    fresh_name,
    has_multiline_string,
    positional,
    spliced,
)
from models.training.functions import Function
from models.training.phrases import CHOICES

_NO_DEFAULT = 0.4  # of parameters are added without a default, where none has one
_LONGEST_SHOWN = 40  # characters of a default or a decorator that a request shows
_FROM = 0.4  # of changes of a default tell the one before, too
_ONLY = 0.5  # of decorators that are the only one are not named
_USUAL = 0.5  # of defaults, types and decorators are one of the usual


def _default(rng: random.Random, pool: Pool) -> str:
    """A usual default, a number or a string."""
    if rng.random() < _USUAL:
        return str(rng.choice(CHOICES["defaults"]))
    number, word = str(rng.randint(2, 999)), rng.choice(pool.names)
    return rng.choice((number, number, f"{rng.randint(0, 9)}.{number}", f'"{word}"', f"'{word}'"))


def _hint(rng: random.Random, pool: Pool) -> str:
    """A usual type, one of any name, or one made of these."""
    hint = str(rng.choice(CHOICES["types"] if rng.random() < _USUAL else pool.names))
    made = (f"list[{hint}]", f"set[{hint}]", f"dict[str, {hint}]", f"{hint} | None")
    return hint if rng.random() < _USUAL or "|" in hint else rng.choice(made)


def _decorator(rng: random.Random, pool: Pool) -> str:
    """A usual decorator, or one of any name."""
    if rng.random() < _USUAL:
        return str(rng.choice(CHOICES["decorators"]))
    name, other = rng.choice(pool.names), rng.choice(pool.names)
    number = rng.randint(0, 99)
    made = (f"{name}({number})", f'{name}("{other}")', f"{name}.{other}", f"{name}.{other}()")
    return rng.choice((name, name, *made))


def _with_defaults(function: Function) -> list[tuple[ast.arg, ast.expr | None]]:
    """The positional parameters, each with its default."""
    parameters, defaults = positional(function), function.node.args.defaults
    missing = len(parameters) - len(defaults)
    return list(zip(parameters, [*[None] * missing, *defaults], strict=True))


def add_hint(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """A type on one parameter that has none, or on what the function returns."""
    text, lines, node = function.text, Lines(function.text), function.node
    hint = _hint(rng, pool)
    pairs = _with_defaults(function)
    bare = [(one, value) for one, value in pairs if not one.annotation and one.arg not in OWN]
    if bare and rng.random() < 0.7:
        chosen, default = rng.choice(bare)
        end = lines.end(chosen)
        splice = (end, end, f": {hint}")
        if default:
            splice = (end, lines.start(default), f": {hint} = ")
        return edit_of(function, rng, "add_hint: parameter", [splice], name=chosen.arg, hint=hint)
    header = re.compile(r"\)[ ]*:[ ]*$", re.MULTILINE)
    closings = list(header.finditer(text, lines.start(node), lines.start(node.body[0])))
    if node.returns or not closings:
        return None
    at = closings[-1].start() + 1
    return edit_of(function, rng, "add_hint: return", [(at, at, f" -> {hint}")], hint=hint)


def _has_hints(node: ast.AST) -> bool:
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
    splices, arguments = [], node.args
    extra = [(one, None) for one in (arguments.vararg, arguments.kwarg) if one is not None]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    for argument, default in (*_with_defaults(function), *named, *extra):
        if argument.annotation is None:
            continue
        start = lines.start(argument) + len(argument.arg)
        kept = (lines.start(default), "=") if default else (lines.end(argument), "")
        splices.append((start, *kept))
    if node.returns is not None:
        arrow = text.rindex("->", 0, lines.start(node.returns))
        splices.append((len(text[:arrow].rstrip()), lines.end(node.returns), ""))
    if not splices or any(map(_has_hints, node.body)):
        return None
    return edit_of(function, rng, "drop_hints", splices)


def add_default(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """A default on the last parameter that has none."""
    without = [one for one, default in _with_defaults(function) if default is None]
    if not without or without[-1].arg in OWN:
        return None
    chosen, value = without[-1], _default(rng, pool)
    end = Lines(function.text).end(chosen)
    added = f" = {value}" if chosen.annotation else f"={value}"
    return edit_of(function, rng, "add_default", [(end, end, added)], name=chosen.arg, value=value)


def drop_default(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """No default on the first parameter that has one."""
    lines = Lines(function.text)
    pairs = [(one, default) for one, default in _with_defaults(function) if default is not None]
    if not pairs:
        return None
    chosen, value = pairs[0]
    end = lines.end(value)
    edit = edit_of(function, rng, "drop_default", [(lines.end(chosen), end, "")], name=chosen.arg)
    return edit if function.text[end : end + 1] in (",", ")") else None


def change_default(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """Another default for a parameter that has one."""
    lines = Lines(function.text)
    pairs = [(one, default) for one, default in _with_defaults(function) if default is not None]
    if not pairs:
        return None
    chosen, default = rng.choice(pairs)
    old, value = lines.segment(default), _default(rng, pool)
    if value == old or len(old) > _LONGEST_SHOWN or "`" in old or "\n" in old:
        return None
    part = "change_default: from" if rng.random() < _FROM else "change_default: to"
    splices = [(lines.start(default), lines.end(default), value)]
    return edit_of(function, rng, part, splices, name=chosen.arg, old=old, value=value)


def drop_parameter(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """One parameter less, with its type and its default; what uses it stays."""
    text, lines = function.text, Lines(function.text)
    usable = [pair for pair in _with_defaults(function) if pair[0].arg not in OWN]
    if function.node.args.posonlyargs or not usable:
        return None
    chosen, default = rng.choice(usable)
    start, end = lines.start(chosen), lines.end(default or chosen)
    if text.startswith(", ", end):
        end += 2
    elif text.startswith(")", end):
        start -= 2 * text.endswith(", ", 0, start)
    else:
        return None
    return edit_of(function, rng, "drop_parameter", [(start, end, "")], name=chosen.arg)


def add_parameter(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """One more parameter after the others, with a default or without."""
    text, lines, arguments = function.text, Lines(function.text), function.node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        return None
    name, value = fresh_name(function, rng, pool), _default(rng, pool)
    plain = not arguments.defaults and rng.random() < _NO_DEFAULT
    part = f"add_parameter: {'without' if plain else 'with'} a default"
    added = name if plain else f"{name}={value}"
    at = text.index("(", lines.start(function.node)) + 1
    if arguments.args:
        at = lines.end(arguments.defaults[-1] if arguments.defaults else arguments.args[-1])
        added = f", {added}"
    edit = edit_of(function, rng, part, [(at, at, added)], name=name, value=value)
    return edit if not arguments.args or text[at : at + 1] in (",", ")") else None


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
    return edit_of(function, rng, "make_async", [(at, at, "async ")])


def make_sync(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """No `async` before `def`, where nothing is awaited."""
    waits = (ast.Await, ast.AsyncFor, ast.AsyncWith)
    inside = (inner for node in function.node.body for inner in ast.walk(node))
    if not isinstance(function.node, ast.AsyncFunctionDef) or any(
        isinstance(inner, waits) or getattr(inner, "is_async", 0) for inner in inside
    ):
        return None
    at = Lines(function.text).start(function.node)
    return edit_of(function, rng, "make_sync", [(at, at + len("async "), "")])


def drop_decorator(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """One decorator less; if it is the only one, it is often not named."""
    decorators = function.node.decorator_list
    if not decorators:
        return None
    chosen = rng.choice(decorators)
    name, row = Lines(function.text).segment(chosen), chosen.lineno - 1
    all_lines = function.text.split("\n")
    if all_lines[row].strip() != f"@{name}" or len(name) > _LONGEST_SHOWN or "`" in name:
        return None
    unnamed = len(decorators) == 1 and rng.random() < _ONLY
    part = f"drop_decorator: {'the only one' if unnamed else 'one'}"
    after = "\n".join(all_lines[:row] + all_lines[row + 1 :])
    return edit_of(function, rng, part, after, name=name)


def decorate(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """A decorator on top of a function that has none."""
    if function.node.decorator_list:
        return None
    name = _decorator(rng, pool)
    return edit_of(function, rng, "decorate", f"@{name}\n{function.text}", name=name)


def function_to_method(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """A `self` in front of the parameters, and the whole indented by four."""
    node, text = function.node, function.text
    first = [one.arg for one in positional(function)][:1]
    if (
        function.is_method
        or first in (["self"], ["cls"])
        or node.decorator_list
        or has_multiline_string(text)
    ):
        return None
    at = text.index("(", Lines(text).start(node)) + 1
    if text[at : at + 1] == "\n":
        return None
    after = spliced(text, [(at, at, "self" if text[at] == ")" else "self, ")])
    return edit_of(function, rng, "function_to_method", textwrap.indent(after, "    "))
