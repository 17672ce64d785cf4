"""Edits of short invented code, asked for as people do: what a model is tried out with."""

from __future__ import annotations

import ast
import builtins
import random
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from models.training import edits, wordings
from models.training.edits import Edit, Pool, bodies
from models.training.edits.base import (
    body_start,
    docstring_node,
    ends_open,
    own_body,
    phrase,
    spliced,
)
from models.training.functions import Function
from models.training.invented import Inventor, in_two_lines, joined
from models.training.phrases import official

DESCRIBE = "describe"
KINDS: dict[str, float] = dict.fromkeys(edits.KINDS, 1.0) | {
    "rename_variable": 6.0,
    "rename_function": 3.0,
    "rename_attribute": 2.5,
    "method_to_function": 2.5,
    "change_indent": 1.5,
    "replace_expression": 14.0,
    "insert_line": 7.0,
    "delete_line": 6.0,
    "drop_comments": 3.0,
    "drop_hints": 1.5,
    "change_quotes": 1.5,
    "apply_diff": 1.5,
    "add_hint": 6.0,
    "add_parameter": 5.0,
    "add_default": 4.0,
    "drop_default": 3.0,
    "change_default": 5.0,
    "drop_parameter": 5.0,
    "drop_decorator": 2.0,
    "make_sync": 1.5,
    "wrap_in_try": 4.5,
    "guard": 6.0,
    "add_docstring": 2.0,
    "drop_docstring": 1.5,
    DESCRIBE: 4.0,
}
"""How often each kind is asked for."""
_NEED_A_BODY = frozenset({"wrap_in_try", "add_docstring", "guard", DESCRIBE})
_STATEMENTS_TOO = frozenset(
    (
        *("rename_variable", "replace_expression", "change_quotes", "drop_comments"),
        *("delete_line", "insert_line", "repeat_code"),
    )
)
_HOLDERS = ("Qzaxu", "Wzaxu")
"""Stand for new names until the edit is made; real ones may be letters that occur in the code."""
_HOLDER = re.compile("(?:{0})(?:_(?:{0}))?".format("|".join(_HOLDERS)))
_WORD = re.compile(r"\w+")
_OPERATOR = re.compile(r"(?<= )(?:[-+*/<>&|^%]|[<>=!]=|and|or|is not|is|not in|in)(?= )")
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_OTHER_OPERATORS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys("+-*/", "+-*/"),
    **dict.fromkeys("&|^%", "&|^%"),
    "and": ("or",),
    "or": ("and",),
    "is": ("is not", "==", "!="),
    "is not": ("is", "!=", "=="),
    "in": ("not in",),
    "not in": ("in",),
}
_COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")
_KEPT_APART = frozenset(
    (
        *("function_to_method", "method_to_function", "change_indent", "apply_diff"),
        *("repeat_code", "change_quotes", "drop_comments", "decorate"),
        *("rename_function", "add_docstring", DESCRIBE),
    )
)
"""Kinds that are about more than a function's own lines, or may be meant for a class."""
PLACED = re.compile(r" at the (?:top|end)|\bline \d|(?:first|last|second|third|[a-z]+th) line\b")
"""Finds words that name a line by its place. Such a place counts in the whole code."""
_IN_COMPANY, _IN_CLASS = 0.05, 0.05
"""How often code is two functions of which one is edited, and how often a class of one method."""
_ALIKE = 0.65
"""How often an expression is replaced by one that differs from it in one place."""
_SMALL = 0.35
"""How often an operator or a number that occurs once is all that is replaced."""
_RETURNED = ("None", "True", "False", "0", "1", '""', "[]")
_WHOLE_RETURN, _DOTTED = 0.12, 0.4
"""How often a whole `return` is replaced, and how often the new name of a call has a dot."""
_ATTEMPTS = 20
_OWN_NAMES = 0.4
"""How many docstrings name the function or its parameters."""
_ERROR = re.compile(r"`(\w+)`")
OTHER_ERRORS = sorted(
    name
    for name, one in vars(builtins).items()
    if isinstance(one, type) and issubclass(one, Exception)
)
_OTHER_ERROR, _INVENTED_ERROR = 0.5, 0.4
"""How often a try block catches another error than the usual ones, and how often that is one which
no library has."""


def description(function: Function) -> str:
    """What a docstring says of a function of which nothing but its code is known."""
    arguments = function.node.args
    given = [a.arg for a in arguments.posonlyargs + arguments.args if a.arg not in ("self", "cls")]
    values = " and ".join(filter(None, (", ".join(given[:-1]), *given[-1:])))
    returns = any(isinstance(n, ast.Return) and n.value for n in ast.walk(function.node))
    verb, link = ("Compute", "from") if returns else ("Run", "with")
    return f"{verb} {function.node.name}{f' {link} {values}' if values else ''}."


def documented(function: Function, rng: random.Random, text: str | None) -> Edit | None:
    """A docstring: `text`, or words of which the request tells nothing."""
    if docstring_node(function) or not own_body(function):
        return None
    at, indent, _ = body_start(function)
    line = f'{indent}"""{text or description(function)}"""\n'
    words = phrase(rng, official("add_docstring" if text else DESCRIBE), text=text or "")
    return Edit("add_docstring", words, function.text, spliced(function.text, [(at, at, line)]))


def alike(old: str, rng: random.Random, names: Sequence[str]) -> str | None:
    """An expression with another operator, number or name than `old`; None if it has none."""
    found = [*_OPERATOR.finditer(old), *_NUMBER.finditer(old)]
    found += [name for name in _WORD.finditer(old) if name[0] in names and len(names) > 1]
    if not found:
        return None
    part = rng.choice(found)
    if part[0].isdigit():
        usual: Sequence[str] = ("0", "1", "2", "10", str(rng.randint(0, 999)))
    else:
        usual = names if part[0] in names else _OTHER_OPERATORS.get(part[0], _COMPARISONS)
    other = rng.choice([one for one in usual if one != part[0]])
    return old[: part.start()] + other + old[part.end() :]


def replaced(function: Function, inventor: Inventor) -> Edit | None:
    """An expression changed in one of its places, or into something else; sums count as well, and
    so do operators and numbers by themselves."""
    rng, statements = inventor.rng, function.node.body[1 if docstring_node(function) else 0 :]
    usable, fresh = bodies.replaceable(function, statements, (ast.expr,)), inventor.name()
    text = function.text
    small = [part[0] for find in (_OPERATOR, _NUMBER) for part in find.finditer(text)]
    small = [part for part in small if text.count(part) == 1]
    returned = re.findall(r"\breturn [^\n#]*[^\s#]", text)
    if returned and text.count(returned[0]) == 1 and rng.random() < _WHOLE_RETURN:
        names = sorted({node.id for node in ast.walk(function.node) if isinstance(node, ast.Name)})
        other = f"return {rng.choice((*_RETURNED, inventor.expression([*names, fresh], 1)))}"
        return bodies.with_replaced(function, rng, returned[0], other)
    if small and rng.random() < _SMALL:
        old = rng.choice(small)
        new = alike(f" {old} ", rng, ())
    elif usable:
        old = rng.choice(usable)
        known = {node.id for node in ast.walk(function.node) if isinstance(node, ast.Name)}
        new = alike(old, rng, sorted({*known, fresh})) if rng.random() < _ALIKE else None
        if new is None and f"{old}(" in text:  # what is called stays a name
            new = f"{fresh}.{inventor.name()}" if rng.random() < _DOTTED else fresh
    else:
        return None
    new = new.strip() if new else inventor.expression([fresh], 1)
    return bodies.with_replaced(function, rng, old, new)


def _docstring(function: Function, inventor: Inventor) -> str:
    """Words, often with names of the function among them."""
    words = inventor.words(2, 6).split()
    if inventor.rng.random() < _OWN_NAMES:
        names = [a.arg for a in function.node.args.args] + [function.node.name]
        for name in inventor.rng.choices(names, k=inventor.rng.randint(1, 3)):
            words.insert(inventor.rng.randint(1, len(words)), name)
    text = " ".join(words)
    return f"{text[:1].upper()}{text[1:]}."


def _prepared(kind: str, function: Function, inventor: Inventor) -> Function:
    """The function, with the decorator or the `async` that the edit will remove."""
    rng, name = inventor.rng, inventor.name()
    if kind == "drop_decorator" and not function.node.decorator_list:
        usual = ("staticmethod", "classmethod", "property", "cache", "lru_cache(maxsize=None)")
        made = (name, name, f"{name}.{inventor.name()}", f"{name}({rng.randint(0, 99)})")
        return replace(function, text=f"@{rng.choice((*usual, *made, *made))}\n{function.text}")
    if kind == "make_sync" and function.text.startswith("def "):
        return replace(function, text=f"async {function.text}")
    return function


def make(kind: str, function: Function, inventor: Inventor) -> Edit | None:
    """An edit of a kind, or None where the function does not lend itself to it.

    The code before it is the function's text as it is: a method is not indented, either. Only a
    change to four spaces begins with other indentation, and a decorator or an `async` to remove is
    added first.
    """
    function = _prepared(kind, function, inventor)
    rng, shown = inventor.rng, function.text
    if kind in _NEED_A_BODY and "\n" not in shown:
        function = replace(function, text=in_two_lines(function))
    if kind in (DESCRIBE, "add_docstring"):
        text = None if kind == DESCRIBE else _docstring(function, inventor)
        edit = documented(function, rng, text)
    elif kind == "replace_expression":
        edit = replaced(function, inventor)
    else:
        pool = Pool(_HOLDERS, [inventor.expression([inventor.name()], 1) for _ in range(3)])
        edit = edits.make_kind(kind, function, rng, pool)
    edit = _with_names(edit, inventor) if edit else None
    if edit and kind == "wrap_in_try" and rng.random() < _OTHER_ERROR:
        edit = _with_other_error(edit, inventor)
    if edit is None or not edits.is_sound(edit):
        return None
    return edit if kind == "change_indent" else replace(edit, before=shown)


def drawn(inventor: Inventor, given: str | None = None) -> tuple[str, Edit]:
    """A kind, `given` or else drawn by its weight, and an edit of it."""
    rng = inventor.rng
    while True:
        kind = given or rng.choices(list(KINDS), list(KINDS.values()))[0]
        for _ in range(_ATTEMPTS):
            function = inventor.function()
            one_line = joined(function.text) if rng.random() < 0.75 else None
            edit = make(kind, replace(function, text=one_line or function.text), inventor)
            if edit:
                cut = kind in _STATEMENTS_TOO and rng.random() < 0.35
                return kind, _statements(edit) if cut else _surrounded(kind, edit, inventor)


def _surrounded(kind: str, edit: Edit, inventor: Inventor) -> Edit:
    """The edit as it is, mostly, or in a class, or beside another function."""
    if PLACED.search(edit.instruction):
        return edit
    chance, name = inventor.rng.random(), inventor.name()
    if chance < _IN_COMPANY:
        return edits.beside(edit, inventor.function(), inventor.rng) or edit
    if chance > _IN_COMPANY + _IN_CLASS or kind in _KEPT_APART:
        return edit
    header = f"class {name[:1].upper()}{name[1:]}:\n"
    before, after = (header + textwrap.indent(text, "    ") for text in (edit.before, edit.after))
    return replace(edit, before=before, after=after)


def _with_names(edit: Edit, inventor: Inventor) -> Edit:
    """The edit with new names in place of the holders."""
    names: dict[str, str] = {}
    taken = set(_WORD.findall(edit.before))
    for holder in sorted(set(_HOLDER.findall(edit.instruction + edit.after))):
        while (name := inventor.name()) in taken:
            pass
        taken.add(name)
        names[holder] = name
    words, after = (
        _HOLDER.sub(lambda found: names[found[0]], text) for text in (edit.instruction, edit.after)
    )
    return replace(edit, instruction=words, after=after)


def error_of_a_library(inventor: Inventor) -> str:
    """An invented name of an error."""
    return "".join(word.capitalize() for word in inventor.name().split("_")) + "Error"


def _with_other_error(edit: Edit, inventor: Inventor) -> Edit:
    """The try block for another error."""
    rng, quoted = inventor.rng, _ERROR.findall(edit.instruction)
    if not quoted:
        return edit
    old = quoted[-1]
    new = rng.choice(OTHER_ERRORS)
    if rng.random() < _INVENTED_ERROR:
        new = error_of_a_library(inventor)
    words = edit.instruction.replace(f"`{old}`", f"`{new}`")
    body, _, handler = edit.after.rpartition(f"except {old}")
    return replace(edit, instruction=words, after=f"{body}except {new}{handler}")


def _statements(edit: Edit) -> Edit:
    """The edit of the body alone, where the header stays as it is and nothing is returned."""
    (header, *before), (same, *after) = edit.before.split("\n"), edit.after.split("\n")
    plain = header == same and before and after and "return" not in edit.before + edit.after
    plain = plain and not PLACED.search(edit.instruction)
    if not plain or "self" in edit.before or before[0].lstrip().startswith('"""'):
        return edit
    return replace(
        edit,
        instruction=re.sub(r" (?:this|the) function$", " this code", edit.instruction),
        before=textwrap.dedent("\n".join(before)),
        after=textwrap.dedent("\n".join(after)),
    )


def conversation(kind: str, edit: Edit, rng: random.Random) -> list[tuple[str, str]]:
    """One request in its many forms, and the answer."""
    words = wordings.spoken(wordings.instruction(edit, kind, rng), rng, edit)
    content = wordings.request(words, edit.before, rng)
    return [("user", content), ("assistant", edits.fenced(edit.after))]


def without_code(inventor: Inventor) -> tuple[str, str, Edit]:
    """A request whose code was forgotten, its kind, and the edit that was meant."""
    while True:
        kind, edit = drawn(inventor)
        asked = wordings.instruction(edit, kind, inventor.rng)
        words = wordings.spoken(asked, inventor.rng, edit)
        if "\n" not in words:
            marks = ("", ":") if ends_open(words) else ("", "", "", ".", ":")
            return wordings.ended(words, inventor.rng, marks), kind, edit
