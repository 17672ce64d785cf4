"""Edits of what a function does: try blocks, docstrings, guards, lines and expressions."""

from __future__ import annotations

import ast
import random
import textwrap
from collections.abc import Sequence

from models.training.edits.base import (
    Edit,
    Lines,
    Pool,
    body_start,
    docstring_node,
    fresh_name,
    has_multiline_string,
    own_body,
    phrase,
    spliced,
)
from models.training.functions import Function
from models.training.phrases import WORDINGS, official

_ERRORS = (
    "ValueError",
    "KeyError",
    "TypeError",
    "OSError",
    "IndexError",
    "AttributeError",
    "Exception",
    "RuntimeError",
    "FileNotFoundError",
    "ImportError",
)
_HANDLERS = (
    *(
        (f"returns `{value}` on `{{error}}`", f"except {{error}}:\n    return {value}")
        for value in ("None", "False", "None", "False", "True", "0", "-1", '""', "[]", "{{}}", "()")
    ),
    *(("ignores `{error}`", "except {error}:\n    pass"),) * 4,
    *(("prints the `{error}`", "except {error} as error:\n    print(error)"),) * 4,
)
_ANY_ERROR = 0.12
"""How many try blocks are asked for without the name of an error."""
_CATCH_ALL = "except Exception as error:\n    print(error)"
"""The handler of those."""
_RAISING = 0.3
"""How many guards raise an error and do not return."""
_OTHER_CONDITION = 0.5
"""How many guards are for another condition than that a parameter is None."""
_CONDITION = "condition: "
"""How the sections of `wordings.txt` for a condition begin; the condition as code is the rest."""
_CONDITIONS = [part for part in WORDINGS if part.startswith(_CONDITION)]
_BY_PLACE = 0.25
"""How many lines are inserted at the top or the end of a body, and deleted by their number."""
_LAST = 0.5
"""How many last lines are deleted as such."""
_NUMBERS = ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_RAISED = (
    *("ValueError", "TypeError", "ValueError()", "TypeError()", 'ValueError("missing")'),
    *("RuntimeError", 'TypeError("required")', 'ValueError("no value")'),
)
_RETURNED = ("None", "False", "True", "0", "-1", "1", "[]", '""', "{}", "()")
_REPLACED = (ast.Call, ast.Attribute, ast.Compare, ast.Constant, ast.Subscript)


def wrap_in_try(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """The statements after the docstring, one level deeper, and a handler after them."""
    if not own_body(function):
        return None
    text, (start, indent, level) = function.text, body_start(function)
    inner = text[start:]
    if has_multiline_string(textwrap.dedent(inner)) or not indent.isspace():
        return None
    error = rng.choice(_ERRORS)
    if rng.random() < _ANY_ERROR:
        handler, instruction = _CATCH_ALL, phrase(rng, official("wrap_in_try: bare"))
    else:
        what, handler = rng.choice(_HANDLERS)
        instruction = phrase(rng, official("wrap_in_try: told"), what=what.format(error=error))
    deeper = textwrap.indent(inner, level)
    after = text[:start] + f"{indent}try:\n{deeper}\n"
    after += textwrap.indent(handler.format(error=error).replace("    ", level), indent)
    return Edit("wrap_in_try", instruction, text, after)


def _without_docstring(function: Function) -> tuple[str, str, int] | None:
    """The text without its docstring, the docstring's indentation and where it stood."""
    node = docstring_node(function)
    if node is None or not own_body(function):
        return None
    lines = Lines(function.text)
    start, end = lines.offset(node.lineno, 0), lines.end(node) + 1
    if (
        function.text[end - 1 : end] != "\n"
        or not function.text[start : lines.start(node)].isspace()
    ):
        return None
    rest = function.text[end:]
    while rest.startswith("\n"):
        rest = rest[1:]
    return function.text[:start] + rest, " " * node.col_offset, start


def add_docstring(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """The first line of the function's real docstring, given in the instruction."""
    found = _without_docstring(function)
    if found is None:
        return None
    before, indent, start = found
    first_line = (ast.get_docstring(function.node) or "").split("\n")[0].strip()
    if not 8 <= len(first_line) <= 90 or '"' in first_line or "\\" in first_line:
        return None
    after = spliced(before, [(start, start, f'{indent}"""{first_line}"""\n')])
    instruction = phrase(rng, official("add_docstring"), text=first_line)
    return Edit("add_docstring", instruction, before, after)


def drop_docstring(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """The function without its docstring and the blank lines after it."""
    found = _without_docstring(function)
    if found is None:
        return None
    return Edit("drop_docstring", phrase(rng, official("drop_docstring")), function.text, found[0])


def guard(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """An early return or an error for a parameter that is None, or for another condition."""
    names = [a.arg for a in function.node.args.args if a.arg not in ("self", "cls")]
    body = own_body(function)
    if not names or not body or getattr(body[0], "decorator_list", None):
        return None
    name, raises = rng.choice(names), rng.random() < _RAISING
    value = rng.choice(_RAISED if raises else (*_RETURNED, rng.choice(names)))
    at, indent, level = body_start(function)
    does = "raise" if raises else "return"
    if rng.random() < _OTHER_CONDITION:
        condition, when = _condition(name, names, rng)
        words = phrase(rng, official(f"guard: {does}s if"), when=when, value=value)
    else:
        condition = f"{name} is None"
        words = phrase(rng, official(f"guard: {does}s"), name=name, value=value)
    added = f"{indent}if {condition}:\n{indent}{level}{does} {value}\n"
    after = spliced(function.text, [(at, at, added)])
    return Edit("guard", words, function.text, after)


def _condition(name: str, names: Sequence[str], rng: random.Random) -> tuple[str, str]:
    """A condition on a parameter, perhaps on another one as well, and words for it."""
    others = [one for one in names if one != name]
    part = rng.choice([one for one in _CONDITIONS if others or "{other}" not in one])
    words = {
        "name": name,
        "other": rng.choice(others or names),
        "number": str(rng.choice((1, 2, 10, 100, rng.randint(3, 999)))),
        "type": rng.choice(("int", "str", "float", "list", "dict", "bool", "bytes", "tuple")),
    }
    when = rng.choice(WORDINGS[part].official).format(**words)
    return part.removeprefix(_CONDITION).format(**words), when


def _lonely_lines(function: Function) -> list[tuple[ast.stmt, bool]]:
    """Statements with a line of their own that no other line equals; of each, whether its block has
    other statements."""
    all_lines = [line.strip() for line in function.text.split("\n")]
    found = []
    for parent in ast.walk(function.node):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            if not isinstance(block, list):
                continue
            for statement in block:
                if statement.lineno != statement.end_lineno or statement is docstring_node(
                    function
                ):
                    continue
                line = all_lines[statement.lineno - 1]
                unique = all_lines.count(line) == 1 and 3 < len(line) <= 60 and "`" not in line
                if unique and ast.get_source_segment(function.text, statement) == line:
                    found.append((statement, len(block) > 1))
    return found


def _new_line(function: Function, rng: random.Random, pool: Pool) -> str:
    """A statement with a name that the function does not have."""
    name = fresh_name(function, rng, pool)
    return rng.choice(
        (
            f"print({name})",
            f"{name} = {rng.choice(pool.expressions)}",
            f"{name}({rng.choice(pool.expressions)})",
            f'logger.debug("{name}")',
            f"assert {name} is not None",
            f"{name} += 1",
            *(f"import {name}", f"return {name}", f"{name}.clear()"),
            *(f"raise ValueError({name})", f'raise TypeError("{name}")'),
        )
    )


def insert_line(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """A new line before or after one that is quoted, or at the top or the end of the body."""
    if rng.random() < _BY_PLACE:
        return _insert_by_place(function, _new_line(function, rng, pool), rng)
    candidates = _lonely_lines(function)
    if not candidates:
        return None
    statement, _ = rng.choice(candidates)
    line = function.text.split("\n")[statement.lineno - 1]
    side = "before" if _leaves(statement) or rng.random() < 0.5 else "after"
    new = _new_line(function, rng, pool)
    at = Lines(function.text).offset(statement.lineno + (side == "after"), 0)
    indent = line[: len(line) - len(line.lstrip())]
    ended = function.text + "\n"
    after = spliced(ended, [(at, at, f"{indent}{new}\n")])[:-1]
    instruction = phrase(
        rng, official("insert_line: beside"), new=new, side=side, line=line.strip()
    )
    return Edit("insert_line", instruction, function.text, after)


def _leaves(statement: ast.stmt) -> bool:
    """True where nothing after the statement in its block would run."""
    return isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break)


def _insert_by_place(function: Function, new: str, rng: random.Random) -> Edit | None:
    """The new line as the first one after the docstring, or as the last one. Imports at the top
    would be those of a file."""
    body = own_body(function)
    if not body or new.startswith("import "):
        return None
    at, indent, _ = body_start(function)
    splice, place = (at, at, f"{indent}{new}\n"), "top"
    if not _leaves(body[-1]) and rng.random() < 0.5:
        end = len(function.text)
        splice, place = (end, end, f"\n{indent}{new}"), "end"
    words = phrase(rng, official(f"insert_line: at the {place}"), new=new)
    return Edit("insert_line", words, function.text, spliced(function.text, [splice]))


def delete_line(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """One statement less, where its block has others; quoted, by its number or as the last."""
    candidates = [statement for statement, removable in _lonely_lines(function) if removable]
    if not candidates:
        return None
    statement = rng.choice(candidates)
    all_lines = function.text.split("\n")
    row = statement.lineno - 1
    is_last = statement.lineno == len(all_lines)
    line = all_lines.pop(row)
    if is_last and rng.random() < _LAST:
        instruction = phrase(rng, official("delete_line: last"))
    elif 1 <= row <= len(_NUMBERS) and rng.random() < _BY_PLACE:
        place = rng.choice((f"line {row + 1}", f"the {_NUMBERS[row - 1]} line"))
        instruction = phrase(rng, official("delete_line: number"), place=place)
    else:
        instruction = phrase(rng, official("delete_line: quoted"), line=line.strip())
    return Edit("delete_line", instruction, function.text, "\n".join(all_lines))


def replaceable(
    function: Function, statements: Sequence[ast.stmt], kinds: tuple[type[ast.expr], ...]
) -> list[str]:
    """Texts of expressions in the statements, of some kinds, that the function has only once."""
    inside_strings = {
        id(node)
        for joined in ast.walk(function.node)
        if isinstance(joined, ast.JoinedStr)
        for node in ast.walk(joined)
    }
    lines = Lines(function.text)
    targets = {
        lines.segment(node)
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, kinds)
        and id(node) not in inside_strings
        and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        and node.lineno == node.end_lineno
    }
    return sorted(
        text
        for text in targets
        if 2 <= len(text) <= 50 and "`" not in text and function.text.count(text) == 1
    )


def with_replaced(function: Function, rng: random.Random, old: str, new: str) -> Edit:
    """The edit that puts `new` where the expression `old` stands."""
    start = function.text.index(old)
    after = spliced(function.text, [(start, start + len(old), new)])
    instruction = phrase(rng, official("replace_expression"), old=old, new=new)
    return Edit("replace_expression", instruction, function.text, after)


def replace_expression(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """An expression that stands in one place, changed into another."""
    usable = replaceable(function, own_body(function), _REPLACED)
    if not usable:
        return None
    old, new = rng.choice(usable), rng.choice(pool.expressions)
    return with_replaced(function, rng, old, new)
