"""Edits that change a name everywhere it is used."""

import ast
import random
import re
import textwrap
from dataclasses import replace

from models.training.edits.base import (
    OWN,
    Edit,
    Lines,
    Pool,
    Splice,
    edit_of,
    fresh_name,
    has_multiline_string,
    names_inside_strings,
    spliced,
)
from models.training.functions import Function

_TWO = 0.3  # of requests rename two variables where there are two
_UNNAMED = 0.25  # of methods become functions without a name for what `self` was
_OBJECT = "obj"  # the parameter that replaces `self` then if the body uses it


def renamable(function: Function) -> list[str]:
    """Parameters and local variables whose every use can be found and changed."""
    node = function.node
    bound = stored(node) | {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
    hidden = names_inside_strings(node)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Global | ast.Nonlocal):
            hidden |= set(inner.names)
        elif isinstance(inner, ast.ExceptHandler) and inner.name:
            hidden.add(inner.name)
        elif isinstance(inner, ast.alias):
            hidden |= {inner.name, inner.asname or inner.name}
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            hidden.add(inner.name)
        elif isinstance(inner, ast.ClassDef):  # what it stores are attributes, too
            hidden |= {inner.name, *stored(inner)}
        elif isinstance(inner, ast.Call) and called(inner) == node.name:
            hidden |= {keyword.arg or "" for keyword in inner.keywords}
        elif isinstance(inner, ast.keyword) and inner.arg:
            hidden |= {inner.arg} & nested_parameters(node)
        elif isinstance(inner, ast.MatchAs | ast.MatchStar | ast.MatchMapping):
            hidden |= {getattr(inner, "name", None) or "", getattr(inner, "rest", None) or ""}
    return sorted(bound - hidden - {*OWN, "_", "__class__"})


def stored(node: ast.AST) -> set[str]:
    """Names that are given a value."""
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def called(call: ast.Call) -> str:
    """The name, or the attribute, that is called; empty where it is neither."""
    return getattr(call.func, "id", "") or getattr(call.func, "attr", "")


def nested_parameters(node: ast.AST) -> set[str]:
    """Names of parameters of functions defined inside."""
    return {
        argument.arg
        for inner in ast.walk(node)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and inner is not node
        for argument in ast.walk(inner.args)
        if isinstance(argument, ast.arg)
    }


def renamed(function: Function, old: str, new: str) -> list[Splice]:
    """Splices that rename one variable."""
    lines = Lines(function.text)
    starts = {
        lines.start(node)
        for node in ast.walk(function.node)
        if (isinstance(node, ast.Name) and node.id == old)
        or (isinstance(node, ast.arg) and node.arg == old)
    }
    return [(start, start + len(old), new) for start in sorted(starts)]


def rename_variable(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """One local name, or two at once, changed wherever it is used."""
    candidates = renamable(function)
    if not candidates:
        return None
    part, words = "one", {"old": rng.choice(candidates), "new": fresh_name(function, rng, pool)}
    splices = renamed(function, words["old"], words["new"])
    if len(candidates) > 1 and rng.random() < _TWO:
        old2 = rng.choice([name for name in candidates if name != words["old"]])
        new2 = fresh_name(function, rng, pool)
        if new2 == words["new"]:
            return None
        part, words = "two", words | {"old2": old2, "new2": new2}
        splices += renamed(function, old2, new2)
    return edit_of(function, rng, f"rename_variable: {part}", splices, **words)


def rename_function(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """The function's own name, and its calls of itself by that name."""
    node, old = function.node, function.node.name
    if old.startswith("__") or old in names_inside_strings(node) or old in renamable(function):
        return None
    attributes = (one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute))
    if old in attributes:
        return None  # perhaps a call of itself
    if function.is_method and renamed(function, old, ""):
        return None  # another function of that name
    new = fresh_name(function, rng, pool)
    header = Lines(function.text).offset(node.lineno, node.col_offset)
    start = function.text.index(f"def {old}", header) + len("def ")
    splices = [(start, start + len(old), new), *renamed(function, old, new)]
    return edit_of(function, rng, "rename_function", splices, old=old, new=new)


def rename_attribute(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """An attribute of `self`, outside f-strings."""
    lines = Lines(function.text)
    if "self" in names_inside_strings(function.node):
        return None
    found = [
        node
        for node in ast.walk(function.node)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ]
    if not found or any(node.lineno != node.end_lineno for node in found):
        return None
    old, new = rng.choice(found).attr, fresh_name(function, rng, pool)
    ends = [lines.end(node) for node in found if node.attr == old]
    splices = [(end - len(old), end, new) for end in ends]
    return edit_of(function, rng, "rename_attribute", splices, old=old, new=new)


def method_to_function(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """A method as it stands in its class, indented, to a function of a named object."""
    arguments = function.node.args.args
    if not function.is_method or not arguments or arguments[0].arg != "self":
        return None
    plain = not function.node.decorator_list and "super()" not in function.text
    hidden = names_inside_strings(function.node) | nested_parameters(function.node)
    if not plain or "self" in hidden or has_multiline_string(function.text):
        return None
    if rng.random() < _UNNAMED:
        if re.search(rf"\b{_OBJECT}\b", function.text):
            return None
        part, words, splices = "bare", dict[str, str](), renamed(function, "self", _OBJECT)
        if len(splices) == 1:
            start, end, _ = splices[0]
            splices = [(start, end + 2 * function.text.startswith(", ", end), "")]
    else:
        part, words = "told", {"new": fresh_name(function, rng, pool)}
        splices = renamed(function, "self", words["new"])
    after = spliced(function.text, splices)
    edit = edit_of(function, rng, f"method_to_function: {part}", after, **words)
    return replace(edit, before=textwrap.indent(function.text, "    "))
