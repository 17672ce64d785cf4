"""Edits of what a function does: try blocks, docstrings, guards, lines and expressions."""

import ast
import random
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from models.training.edits.base import (
    OWN,
    Edit,
    Lines,
    Pool,
    body_start,
    docstring_node,
    edit_of,
    fresh_name,
    has_multiline_string,
    inside_strings,
    own_body,
)
from models.training.functions import Function
from models.training.phrases import CHOICES, WORDINGS

_ANY_ERROR = 0.12  # of try blocks are asked for without the name of an error
_RAISING = 0.3  # of guards raise an error and do not return
_OTHER_CONDITION = 0.5  # of guards are for another condition than that a parameter is None
_CONDITION = "condition: "  # begins sections of `wordings.txt`; the condition as code is the rest
_CONDITIONS = [part for part in WORDINGS if part.startswith(_CONDITION)]
_BY_PLACE = 0.25  # of lines go to the top or the end of a body, or are deleted by their number
_LAST = 0.5  # of deleted last lines are called so
_REPLACED = (ast.Call, ast.Attribute, ast.Compare, ast.Constant, ast.Subscript)


def wrap_in_try(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """The statements after the docstring, one level deeper, and a handler after them."""
    if not own_body(function):
        return None
    start, indent, level = body_start(function)
    inner = function.text[start:]
    if has_multiline_string(textwrap.dedent(inner)) or not indent.isspace():
        return None
    error = rng.choice(CHOICES["errors"])
    part, handler, words = "bare", CHOICES["catch_all"], dict[str, str]()
    if rng.random() >= _ANY_ERROR:
        what, handler = rng.choice(CHOICES["handlers"])
        part, words = "told", {"what": what.format(error=error)}
    handler = handler.format(error=error).replace("    ", level)
    block = f"{indent}try:\n{textwrap.indent(inner, level)}\n{textwrap.indent(handler, indent)}"
    return edit_of(function, rng, f"wrap_in_try: {part}", function.text[:start] + block, **words)


def _without_docstring(function: Function) -> tuple[str, str, int] | None:
    """The text without its docstring, the docstring's indentation and where it stood."""
    node, text = docstring_node(function), function.text
    if node is None or not own_body(function):
        return None
    lines = Lines(text)
    start, end = lines.offset(node.lineno, 0), lines.end(node) + 1
    if text[end - 1 : end] != "\n" or not text[start : lines.start(node)].isspace():
        return None
    return text[:start] + text[end:].lstrip("\n"), " " * node.col_offset, start


def add_docstring(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """The first line of the function's real docstring, given in the instruction."""
    found = _without_docstring(function)
    if found is None:
        return None
    before, indent, start = found
    line = (ast.get_docstring(function.node) or "").split("\n")[0].strip()
    if not 8 <= len(line) <= 90 or '"' in line or "\\" in line:
        return None
    splices = [(start, start, f'{indent}"""{line}"""\n')]
    return edit_of(replace(function, text=before), rng, "add_docstring", splices, text=line)


def drop_docstring(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """The function without its docstring and the blank lines after it."""
    found = _without_docstring(function)
    return edit_of(function, rng, "drop_docstring", found[0]) if found else None


def guard(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """An early return or an error for a parameter that is None, or for another condition."""
    names = [a.arg for a in function.node.args.args if a.arg not in OWN]
    body = own_body(function)
    if not names or not body or getattr(body[0], "decorator_list", None):
        return None
    name, raises = rng.choice(names), rng.random() < _RAISING
    value = rng.choice(CHOICES["raised"] if raises else (*CHOICES["returned"], rng.choice(names)))
    at, indent, level = body_start(function)
    does = "raise" if raises else "return"
    condition, part, words = f"{name} is None", f"guard: {does}s", {"name": name}
    if rng.random() < _OTHER_CONDITION:
        condition, when = _condition(name, names, rng)
        part, words = f"guard: {does}s if", {"when": when}
    added = f"{indent}if {condition}:\n{indent}{level}{does} {value}\n"
    return edit_of(function, rng, part, [(at, at, added)], value=value, **words)


def _condition(name: str, names: Sequence[str], rng: random.Random) -> tuple[str, str]:
    """A condition on a parameter, perhaps on another one as well, and words for it."""
    others = [one for one in names if one != name]
    part = rng.choice([one for one in _CONDITIONS if others or "{other}" not in one])
    words = {
        "name": name,
        "other": rng.choice(others or names),
        "number": str(rng.choice((1, 2, 10, 100, rng.randint(3, 999)))),
        "type": rng.choice(CHOICES["condition_types"]),
    }
    when = rng.choice(WORDINGS[part].official).format(**words)
    return part.removeprefix(_CONDITION).format(**words), when


def _blocks(function: Function) -> Iterator[list[ast.stmt]]:
    for parent in ast.walk(function.node):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            if isinstance(block, list):
                yield block


def _lonely_lines(function: Function) -> list[tuple[ast.stmt, bool]]:
    """Statements with a line of their own that no other line equals; of each, whether its block has
    other statements."""
    all_lines = [line.strip() for line in function.text.split("\n")]
    docstring, found = docstring_node(function), []
    for block in _blocks(function):
        for statement in block:
            if statement.lineno != statement.end_lineno or statement is docstring:
                continue
            line = all_lines[statement.lineno - 1]
            unique = all_lines.count(line) == 1 and 3 < len(line) <= 60 and "`" not in line
            if unique and ast.get_source_segment(function.text, statement) == line:
                found.append((statement, len(block) > 1))
    return found


def _new_line(function: Function, rng: random.Random, pool: Pool) -> str:
    """A statement with a name that the function does not have."""
    name = fresh_name(function, rng, pool)
    one, other = rng.choice(pool.expressions), rng.choice(pool.expressions)
    line = str(rng.choice(CHOICES["new_lines"]))
    return line.format(name=name, one=one, other=other)


def insert_line(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """A new line before or after one that is quoted, or at the top or the end of the body."""
    if rng.random() < _BY_PLACE:
        return _insert_by_place(function, _new_line(function, rng, pool), rng)
    candidates = _lonely_lines(function)
    if not candidates:
        return None
    statement, _ = rng.choice(candidates)
    all_lines = function.text.split("\n")
    line = all_lines[statement.lineno - 1]
    side = "before" if _leaves(statement) or rng.random() < 0.5 else "after"
    new = _new_line(function, rng, pool)
    indent = line[: len(line) - len(line.lstrip())]
    all_lines.insert(statement.lineno - (side == "before"), indent + new)
    words = {"new": new, "side": side, "line": line.strip()}
    return edit_of(function, rng, "insert_line: beside", "\n".join(all_lines), **words)


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
    return edit_of(function, rng, f"insert_line: at the {place}", [splice], new=new)


def delete_line(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """One statement less, where its block has others; quoted, by its number or as the last."""
    candidates = [statement for statement, removable in _lonely_lines(function) if removable]
    if not candidates:
        return None
    row = rng.choice(candidates).lineno - 1
    all_lines, ordinals = function.text.split("\n"), CHOICES["ordinals"]
    is_last = row + 1 == len(all_lines)
    line = all_lines.pop(row)
    part, words = "quoted", {"line": line.strip()}
    if is_last and rng.random() < _LAST:
        part, words = "last", {}
    elif 1 <= row <= len(ordinals) and rng.random() < _BY_PLACE:
        place = rng.choice((f"line {row + 1}", f"the {ordinals[row - 1]} line"))
        part, words = "number", {"place": place}
    return edit_of(function, rng, f"delete_line: {part}", "\n".join(all_lines), **words)


def replaceable(
    function: Function, statements: Sequence[ast.stmt], kinds: tuple[type[ast.expr], ...]
) -> list[str]:
    """Texts of expressions in the statements, of some kinds, that the function has only once."""
    hidden, lines = set(map(id, inside_strings(function.node))), Lines(function.text)
    targets = {
        lines.segment(node)
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, kinds)
        and id(node) not in hidden
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
    after = function.text.replace(old, new, 1)
    return edit_of(function, rng, "replace_expression", after, old=old, new=new)


def replace_expression(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """An expression that stands in one place, changed into another."""
    usable = replaceable(function, own_body(function), _REPLACED)
    if not usable:
        return None
    old, new = rng.choice(usable), rng.choice(pool.expressions)
    return with_replaced(function, rng, old, new)
