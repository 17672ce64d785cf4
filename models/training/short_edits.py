"""Edits of short invented code, asked for as people do: what a model is tried out with.

Also requests for two edits at once, edits with a mistake that is put right, and requests whose code
was forgotten.
"""

import ast
import builtins
import random
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from models.training import edits, phrases, wordings
from models.training.edits import Edit, Pool, bodies
from models.training.edits.base import (
    OWN,
    body_start,
    closed,
    docstring_node,
    edit_of,
    ends_open,
    own_body,
    positional,
)
from models.training.functions import Function, is_function
from models.training.invented import Inventor, in_two_lines, joined
from models.training.phrases import CHOICES

DESCRIBE = "describe"
KINDS: Mapping[str, float] = CHOICES["short_edits"]
_HOLDERS = ("Qzaxu", "Wzaxu")
"""Stand for new names until the edit is made; real ones may be letters that occur in the code."""
_HOLDER = re.compile("(?:{0})(?:_(?:{0}))?".format("|".join(_HOLDERS)))
_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r"`([^`]+)`")
_ERROR = re.compile(r"`(\w+)`")
_OPERATOR = re.compile(r"(?<= )(?:[-+*/<>&|^%]|[<>=!]=|and|or|is not|is|not in|in)(?= )")
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_PLACED = re.compile(r" at the (?:top|end)|\bline \d|(?:first|last|second|third|[a-z]+th) line\b")
"""Finds words that name a line by its place. Such a place counts in the whole code."""
_IN_COMPANY, _IN_CLASS = 0.05, 0.05  # of code is one of two functions, and a class of one method
_STACKED = 0.35  # of decorators to remove have another one above
_ONE_LINE = 0.75  # of functions of one statement stand in one line
_STATEMENTS = 0.35  # of edits that can are of the body alone
_ALIKE = 0.65  # of expressions are replaced by one that differs in one place
_SMALL = 0.35  # of replacements are of an operator or a number alone, if it occurs once
_WHOLE_RETURN, _DOTTED = 0.12, 0.4  # of replacements are of a `return`; of new callees have a dot
_ATTEMPTS = 20
_OWN_NAMES = 0.4  # of docstrings name the function or its parameters
_ERRORS = sorted(
    name
    for name, one in vars(builtins).items()
    if isinstance(one, type) and issubclass(one, Exception)
)
_OTHER_ERROR, _INVENTED_ERROR = 0.5, 0.4  # of try blocks catch an unusual error; of these, no known
TOGETHER = 0.07  # of requests are for two edits at once


def description(function: Function) -> str:
    """What a docstring says of a function of which nothing but its code is known."""
    given = [a.arg for a in positional(function) if a.arg not in OWN]
    values = " and ".join(filter(None, (", ".join(given[:-1]), *given[-1:])))
    returns = any(isinstance(n, ast.Return) and n.value for n in ast.walk(function.node))
    verb, link = ("Compute", "from") if returns else ("Run", "with")
    return f"{verb} {function.node.name}{f' {link} {values}' if values else ''}."


def _documented(kind: str, function: Function, inventor: Inventor) -> Edit | None:
    """A docstring with a text from the request, or with words of which that tells nothing."""
    text = "" if kind == DESCRIBE else _docstring(function, inventor)
    if docstring_node(function) or not own_body(function):
        return None
    at, indent, _ = body_start(function)
    splice = (at, at, f'{indent}"""{text or description(function)}"""\n')
    edit = edit_of(function, inventor.rng, kind, [splice], text=text)
    return replace(edit, kind="add_docstring")


def _docstring(function: Function, inventor: Inventor) -> str:
    """Words, often with names of the function among them."""
    words = inventor.words(2, 6).split()
    if inventor.rng.random() < _OWN_NAMES:
        names = [a.arg for a in function.node.args.args] + [function.node.name]
        for name in inventor.rng.choices(names, k=inventor.rng.randint(1, 3)):
            words.insert(inventor.rng.randint(1, len(words)), name)
    return f"{wordings.large(' '.join(words))}."


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
        operators = CHOICES["other_operators"].get(part[0], CHOICES["small_comparisons"])
        usual = names if part[0] in names else operators
    other = rng.choice([one for one in usual if one != part[0]])
    return old[: part.start()] + other + old[part.end() :]


def replaced(function: Function, inventor: Inventor) -> Edit | None:
    """An expression changed in one of its places, or into something else; sums count as well, and
    so do operators and numbers by themselves."""
    rng, statements = inventor.rng, function.node.body[1 if docstring_node(function) else 0 :]
    usable, fresh = bodies.replaceable(function, statements, (ast.expr,)), inventor.name()
    text = function.text
    known = {node.id for node in ast.walk(function.node) if isinstance(node, ast.Name)}
    small = [part[0] for find in (_OPERATOR, _NUMBER) for part in find.finditer(text)]
    small = [part for part in small if text.count(part) == 1]
    returned = re.findall(r"\breturn [^\n#]*[^\s#]", text)
    if returned and text.count(returned[0]) == 1 and rng.random() < _WHOLE_RETURN:
        made = inventor.expression([*sorted(known), fresh], 1)
        other = f"return {rng.choice((*CHOICES['replaced_returns'], made))}"
        return bodies.with_replaced(function, rng, returned[0], other)
    if small and rng.random() < _SMALL:
        old = rng.choice(small)
        new = alike(f" {old} ", rng, ())
    elif usable:
        old = rng.choice(usable)
        new = alike(old, rng, sorted({*known, fresh})) if rng.random() < _ALIKE else None
        if new is None and f"{old}(" in text:  # what is called stays a name
            new = f"{fresh}.{inventor.name()}" if rng.random() < _DOTTED else fresh
    else:
        return None
    new = new.strip() if new else inventor.expression([fresh], 1)
    return bodies.with_replaced(function, rng, old, new)


def _prepared(kind: str, function: Function, inventor: Inventor) -> Function:
    """The function, with the decorator or the `async` that the edit will remove."""
    rng, name = inventor.rng, inventor.name()
    listed = len(function.node.decorator_list)
    if kind == "drop_decorator" and (not listed or (listed == 1 and rng.random() < _STACKED)):
        made = (name, name, f"{name}.{inventor.name()}", f"{name}({rng.randint(0, 99)})")
        chosen = rng.choice((*CHOICES["removed_decorators"], *made, *made))
        decorated = replace(function, text=f"@{chosen}\n{function.text}")
        return _prepared(kind, decorated, inventor) if not listed else decorated
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
    if kind in CHOICES["need_a_body"] and "\n" not in shown:
        function = replace(function, text=in_two_lines(function))
    if kind in (DESCRIBE, "add_docstring"):
        edit = _documented(kind, function, inventor)
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
        kind = given or phrases.drawn(KINDS, rng)
        for _ in range(_ATTEMPTS):
            function = inventor.function()
            one_line = joined(function.text) if rng.random() < _ONE_LINE else None
            edit = make(kind, replace(function, text=one_line or function.text), inventor)
            if edit:
                cut = kind in CHOICES["statements_too"] and rng.random() < _STATEMENTS
                return kind, _statements(edit) if cut else _surrounded(kind, edit, inventor)


def _surrounded(kind: str, edit: Edit, inventor: Inventor) -> Edit:
    """The edit as it is, mostly, or in a class, or beside another function."""
    if _PLACED.search(edit.instruction):
        return edit
    chance, name = inventor.rng.random(), inventor.name()
    if chance < _IN_COMPANY:
        return edits.beside(edit, inventor.function(), inventor.rng) or edit
    if chance > _IN_COMPANY + _IN_CLASS or kind in CHOICES["kept_apart"]:
        return edit
    header = f"class {wordings.large(name)}:\n"
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


def _invented_error(inventor: Inventor) -> str:
    return "".join(word.capitalize() for word in inventor.name().split("_")) + "Error"


def _with_other_error(edit: Edit, inventor: Inventor) -> Edit:
    """The try block for another error."""
    rng, quoted = inventor.rng, _ERROR.findall(edit.instruction)
    if not quoted:
        return edit
    old, new = quoted[-1], rng.choice(_ERRORS)
    if rng.random() < _INVENTED_ERROR:
        new = _invented_error(inventor)
    words = edit.instruction.replace(f"`{old}`", f"`{new}`")
    body, _, handler = edit.after.rpartition(f"except {old}")
    return replace(edit, instruction=words, after=f"{body}except {new}{handler}")


def _statements(edit: Edit) -> Edit:
    """The edit of the body alone, where the header stays as it is and nothing is returned."""
    (header, *before), (same, *after) = edit.before.split("\n"), edit.after.split("\n")
    plain = header == same and before and after and "return" not in edit.before + edit.after
    plain = plain and not _PLACED.search(edit.instruction)
    if not plain or "self" in edit.before or before[0].lstrip().startswith('"""'):
        return edit
    words = re.sub(r" (?:this|the) function$", " this code", edit.instruction)
    texts = (textwrap.dedent("\n".join(lines)) for lines in (before, after))
    return Edit(edit.kind, words, *texts)


def conversation(kind: str, edit: Edit, rng: random.Random) -> list[tuple[str, str]]:
    """One request in its many forms, and the answer."""
    return _asked(wordings.instruction(edit, kind, rng), edit, rng)


def _asked(instruction: str, edit: Edit, rng: random.Random) -> list[tuple[str, str]]:
    content = wordings.request(wordings.spoken(instruction, rng, edit), edit.before, rng)
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


def two_at_once(
    first_kind: str, first: Edit, inventor: Inventor, *, is_method: bool = False
) -> tuple[Edit, str] | None:
    """An edit combined with a second edit of its result, and a request for both.

    None if the second edit is about something that the first one added or removed, or if the two
    requests cannot be joined in one sentence.
    """
    rng, alone = inventor.rng, CHOICES["alone"]
    if first_kind in alone or not is_function(first.after):
        return None
    kind = phrases.drawn(KINDS, rng)
    # After the rename, the docstring would still have the old name.
    is_stale = first_kind == DESCRIBE and kind.startswith("rename")
    if kind in alone or is_stale or _concerns(kind) == _concerns(first_kind):
        return None
    second = make(kind, Function(first.after, is_method, ""), inventor)
    if second is None or _PLACED.search(f"{first.instruction}\n{second.instruction}"):
        return None
    changed = set(_WORD.findall(first.before)) ^ set(_WORD.findall(first.after))
    for part in _QUOTED.findall(second.instruction):
        is_of_first = part in first.after and part not in first.before
        if is_of_first or changed & set(_WORD.findall(part)):
            return None
    pairs = ((first_kind, first), (kind, second))
    asked = [closed(wordings.instruction(edit, of, rng)) for of, edit in pairs]
    if any("?" in one or "\n" in one or not wordings.begins_as_instruction(one) for one in asked):
        return None
    words: str = rng.choice(CHOICES["joined"])
    return replace(first, after=second.after), words.format(*map(wordings.small, asked))


def _concerns(kind: str) -> str:
    """What edits of a kind add, drop or change: of two that concern the same, one may undo the
    other."""
    same = {DESCRIBE: "docstring", "make_sync": "async", "decorate": "decorator"}
    return same.get(kind) or kind.rpartition("_")[2].removesuffix("s")


def request_for_two(inventor: Inventor) -> list[tuple[str, str]]:
    """A request for two edits with its code, and the answer."""
    while (found := two_at_once(*drawn(inventor), inventor)) is None:
        pass
    edit, asked = found
    return _asked(asked, edit, inventor.rng)


def mistaken(edit: Edit, inventor: Inventor) -> tuple[Edit, str, str] | None:
    """The edit with a wrong name, number, type or error in it, the wrong text, and the right one.

    None unless the edit adds exactly one such text.
    """
    rng, quoted = inventor.rng, _QUOTED.findall(edit.instruction)
    added = {one for one in quoted if not edits.whole(one).search(edit.before)}
    right = added.pop() if len(added) == 1 else ""
    if not re.fullmatch(r"@?\w+", right):
        return None
    right = right.removeprefix("@")
    others: Sequence[str] = [inventor.name()]
    if right.endswith("Error"):
        others = [*_ERRORS, _invented_error(inventor)]
    elif right.isdigit():
        others = [str(rng.randint(0, 999))]
    else:
        known = (CHOICES["mistaken_values"], CHOICES["mistaken_types"])
        others = next((values for values in known if right in values), others)
    wrong = rng.choice(others)
    is_known = edits.whole(wrong).search(f"{edit.before} {edit.after}")
    if is_known or not edits.whole(right).search(edit.after):
        return None
    words = re.sub(rf"`(@?){right}`", rf"`\g<1>{wrong}`", edit.instruction)
    after = edits.whole(right).sub(wrong, edit.after)
    return replace(edit, instruction=words, after=after), wrong, right


def conversations(inventor: Inventor, count: int) -> Iterator[list[tuple[str, str]]]:
    """`count` requests, each with its answer; some are for two edits at once."""
    for _ in range(count):
        if inventor.rng.random() < TOGETHER:
            yield request_for_two(inventor)
        else:
            yield conversation(*drawn(inventor), inventor.rng)
