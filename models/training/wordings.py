"""The many ways in which people ask for an edit.

Edits come with an instruction in one of a few official wordings; here it is put into words as
they are typed: other verbs, with or without quotes around names, politely or not, before or
after the code, in its line or above it.
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
from collections.abc import Mapping, Sequence

from models.training.edits import bodies, layout, names, signatures
from models.training.edits.base import PLACES, Edit, phrase
from models.training.phrases import LISTS

Table = Sequence[tuple[Sequence[str], Sequence[str]]]

_RENAME = (
    "rename {old} to {new} in {it}",
    "rename {old} to {new}",
    "rename {old} as {new} in {it}",
    "rename {old} into {new}",
    "rename variable {old} to {new} in {it}",
    "rename the name {old} to {new}",
    "change {old} to {new} everywhere in {it}",
    "change the name {old} into {new}",
    "{old} should be called {new} in {it}",
    "{old} should be {new}",
    "replace the name {old} by {new} in {it}",
    "replace every {old} with {new} in {it}",
    "{old} -> {new}",
    "use {new} for {old} in {it}",
    "call it {new} instead of {old}",
    "let {old} be called {new}",
    "I would rather call {old} {new}",
    "swap the name {old} for {new}",
    "give {old} the name {new}",
    "the name of {old} should be {new} in {it}",
    "I want {old} to be {new}",
    "I want to call {old} {new}",
    "let us call {old} {new} in {it}",
    "please have {old} renamed to {new}",
    "name {old} {new} in {it}",
    "turn {old} into {new}",
    "rename all {old} to {new}",
    "rename {old} to {new} everywhere",
    "{old} is a bad name, call it {new}",
    "{old} becomes {new}",
    "rename {old} => {new}",
    "can {old} be named {new}?",
    "would you rename {old} to {new}?",
    "make it {new} rather than {old}",
    "change each {old} to {new} in {it}",
    "put {new} wherever it says {old}",
    "{new} is a better name than {old}",
)
_CASUAL: Mapping[str, Table] = {
    "rename_variable": (
        (
            names._RENAME_TWO,
            (
                "rename {old} to {new} and {old2} to {new2}",
                "change {old} to {new} and {old2} to {new2} in {it}",
                "{old} -> {new}, {old2} -> {new2}",
                "rename {old} and {old2} to {new} and {new2}",
                "call {old} {new} and {old2} {new2}",
                "{old} should be {new} and {old2} should be {new2}",
                "rename {old} to {new}, {old2} to {new2} in {it}",
            ),
        ),
        (names._RENAME, _RENAME),
    ),
    "rename_function": (
        (
            names._RENAME_FUNCTION[2:3],
            (
                "rename function {old} to {new} in {it}",
                "the function {old} should be called {new}",
                *_RENAME,
            ),
        ),
        (
            names._RENAME_FUNCTION[0:1] + names._RENAME_FUNCTION[3:],
            (
                "rename this function to {new}",
                "call this function {new}",
                "name the function {new}",
                "the function should be called {new}",
                "change the name of the function to {new}",
                "change the function name to {new}",
                "give the function the name {new}",
                "give it the name {new}",
                "I want the function to be called {new}",
                "its name should be {new}",
                "{new} is a better name for the function",
                "rename it to {new}",
                "rename it {new}",
                "name it {new}",
                "the name should be {new}",
                "rename the def to {new}",
            ),
        ),
        (names._RENAME_FUNCTION[1:2], _RENAME),
    ),
    "rename_attribute": (
        (
            names._RENAME_ATTRIBUTE,
            (
                "rename self.{old} to self.{new} in {it}",
                "rename the attribute {old} to {new}",
                "change self.{old} to self.{new}",
                "self.{old} should be self.{new}",
                "rename self.{old} into self.{new}",
                "call self.{old} self.{new}",
                "self.{old} -> self.{new}",
                "use self.{new} instead of self.{old} in {it}",
                "the attribute {old} should be called {new}",
                "swap self.{old} for self.{new}",
                "change the attribute {old} to {new} in {it}",
            ),
        ),
    ),
    "method_to_function": (
        (
            names._METHOD_TO_FUNCTION,
            (
                "make this a plain function with {new} instead of self",
                "turn the method into a function, {new} in place of self",
                "use {new} instead of self and make it a function",
                "make it a function of {new}",
                "no self please, a function with {new}",
                "convert it to a function taking {new} for self",
                "I want a function, with {new} where self is",
            ),
        ),
    ),
    "add_hint": (
        (
            signatures._ADD_HINT,
            (
                "add the type {hint} to {name} in {it}",
                "annotate {name} with {hint}",
                "{name} is of type {hint}, add the hint",
                "add a type hint {hint} for {name}",
                "type {name} as {hint}",
                "make {name} a {hint}",
                "{name} should be of type {hint}",
                "{name} is a {hint}",
                "{name} should be a {hint} in {it}",
                "{name} has the type {hint}",
                "hint that {name} is {hint}",
                "declare {name} as {hint}",
                "say that {name} is a {hint}",
                "{name}: {hint}",
                "the type of {name} is {hint}",
                "put the type {hint} on {name} in {it}",
            ),
        ),
        (
            signatures._ADD_RETURN,
            (
                "add a return type of {hint} to {it}",
                "it returns {hint}, add the hint",
                "annotate the result as {hint}",
                "add -> {hint} to {it}",
                "it should return {hint}",
                "the return type is {hint}",
                "the function returns a {hint}, say so",
                "set the return type to {hint}",
                "give it the return type {hint}",
                "declare that it returns {hint}",
                "its result is a {hint}",
            ),
        ),
    ),
    "drop_hints": (
        (
            signatures._DROP_HINTS,
            (
                "remove all type hints from {it}",
                "remove the annotations",
                "no type hints please",
                "strip the types from {it}",
                "without type hints",
                "I want no type hints",
                "get rid of the types",
                "take the type hints out of {it}",
                "drop the annotations in {it}",
                "the type hints should go",
                "remove types",
                "no annotations",
                "clean the hints out of {it}",
                "I need it without annotations",
                "lose the type hints",
                "untyped please",
            ),
        ),
    ),
    "add_default": (
        (
            signatures._ADD_DEFAULT,
            (
                "give {name} the default {value} in {it}",
                "give {name} a default of {value}",
                "set the default of {name} to {value}",
                "{name} should default to {value} in {it}",
                "make {value} the default of {name}",
                "make {name} optional with default {value}",
                "default {name} to {value}",
                "if {name} is not given use {value}",
                "add a default of {value} for {name}",
                "{name} = {value} by default",
                "let {name} be {value} by default",
                "the default of {name} should be {value} in {it}",
                "I want {value} as the default of {name}",
                "make {name} optional, {value} if left out",
            ),
        ),
    ),
    "drop_default": (
        (
            signatures._DROP_DEFAULT,
            (
                "remove the default value of {name} in {it}",
                "{name} should have no default",
                "make {name} mandatory in {it}",
                "make the argument {name} required",
                "delete the default for {name}",
                "{name} needs no default",
                "no default for {name}",
                "get rid of the default of {name} in {it}",
                "without the default of {name}",
                "{name} must be given",
                "drop the default for {name}",
                "{name} should not be optional",
                "take away the default of {name}",
            ),
        ),
    ),
    "add_parameter": (
        (
            (*signatures._ADD_PARAMETER[:1], *signatures._ADD_PARAMETER[2:]),
            (
                "add a parameter {name} with default {value} to {it}",
                "add an argument {name} defaulting to {value}",
                "add another parameter {name} = {value} to {it}",
                "it should also take {name}, by default {value}",
                "I need another argument {name} with default {value}",
                "give it a parameter {name} = {value}",
                "add an optional argument {name}, default {value}",
                "extend {it} with a parameter {name} with default {value}",
                "one more parameter please, {name}, {value} by default",
                "let it accept {name}, default {value}",
                "add {name}={value} to the parameters",
            ),
        ),
    ),
    "make_async": (
        (
            signatures._MAKE_ASYNC,
            (
                "make this function async",
                "make the function asynchronous",
                "turn it into a coroutine",
                "convert to async",
                "add async to {it}",
                "make it an async function",
                "async please",
                "I need it to be async",
                "it should be async",
                "make an async version of {it}",
                "asynchronous please",
                "use async def",
                "this should be a coroutine",
                "turn the def into async def",
                "I want an async function",
                "change it to async",
                "async version",
            ),
        ),
    ),
    "decorate": (
        (
            signatures._DECORATE,
            (
                "add @{name} to {it}",
                "decorate {it} with @{name}",
                "put @{name} on top of {it}",
                "add the {name} decorator to {it}",
                "make it @{name}",
                "use @{name} on {it}",
                "it needs @{name}",
                "decorate with {name}",
                "I want @{name} above it",
                "add the decorator {name}",
                "put the {name} decorator on {it}",
                "@{name} please",
                "it should have @{name}",
            ),
        ),
    ),
    "wrap_in_try": (
        (
            bodies._WRAP,
            (
                "wrap it in a try block that {what}",
                "put a try around the body that {what}",
                "add a try block that {what} to {it}",
                "use try and except so that it {what}",
                "make it a try statement that {what}",
                "protect the body with a try that {what}",
                "surround the body with try so that it {what}",
                "I want a try block that {what}",
                "catch errors in {it} with a try that {what}",
                "put it into a try that {what}",
            ),
        ),
    ),
    "add_docstring": (
        (
            bodies._ADD_DOCSTRING,
            (
                'add the docstring "{text}" to {it}',
                'add a docstring saying "{text}"',
                'give it the docstring "{text}"',
                'document it: "{text}"',
                'the docstring should be "{text}"',
                'use "{text}" as docstring',
                'its docstring is "{text}"',
                'write the docstring "{text}" into {it}',
                'docstring: "{text}"',
                'put "{text}" as a docstring into {it}',
                'I want the docstring "{text}"',
                'add this docstring: "{text}"',
            ),
        ),
    ),
    "drop_docstring": (
        (
            bodies._DROP_DOCSTRING,
            (
                "remove the docstring",
                "no docstring",
                "delete the docstring of {it}",
                "get rid of the docstring",
                "take out the docstring",
                "I want no docstring",
                "without the docstring",
                "drop the doc string",
                "it needs no docstring",
                "remove the documentation",
            ),
        ),
    ),
    "guard": (
        (
            bodies._GUARD,
            (
                "return {value} if {name} is None in {it}",
                "if {name} is None return {value}",
                "add a check: if {name} is None, return {value}",
                "when {name} is None it should return {value}",
                "guard against {name} being None, return {value}",
                "return {value} early when {name} is None",
                "return {value} at once if {name} is None",
                "if {name} is None it should give {value}",
                "if there is no {name} return {value}",
                "return {value} for a {name} of None",
                "add an early return of {value} if {name} is None to {it}",
                "it should return {value} when {name} is None",
                "{name} may be None, then return {value}",
                "check {name} for None first and return {value}",
            ),
        ),
    ),
    "insert_line": (
        (
            bodies._INSERT,
            (
                "add {new} {side} {line} in {it}",
                "insert {new} {side} {line}",
                "add a line {new} {side} {line}",
                "write {new} {side} {line}",
                "there should be {new} {side} {line}",
                "I want {new} {side} {line}",
                "{new} goes {side} {line}",
                "put the line {new} {side} {line} in {it}",
                "{side} {line} add {new}",
                "{side} {line} insert {new}",
                "I need a line {new} {side} {line}",
                "{side} {line} comes {new}",
            ),
        ),
    ),
    "delete_line": (
        (
            bodies._DELETE,
            (
                "remove the line {line} from {it}",
                "delete {line}",
                "drop {line} from {it}",
                "take out the line {line}",
                "get rid of {line} in {it}",
                "the line {line} should go",
                "I do not need {line}",
                "without the line {line}",
                "kill the line {line}",
                "erase {line} from {it}",
                "cut the line {line}",
                "{line} is not needed",
                "cross out {line}",
            ),
        ),
    ),
    "replace_expression": (
        (
            bodies._REPLACE,
            (
                "replace {old} with {new} in {it}",
                "replace {old} by {new}",
                "change {old} to {new} in {it}",
                "change {old} into {new}",
                "put {new} in place of {old}",
                "write {new} instead of {old} in {it}",
                "I want {new} instead of {old}",
                "it should say {new}, not {old}",
                "{new} in place of {old}",
                "exchange {old} for {new} in {it}",
                "substitute {new} for {old}",
                "{old} => {new}",
                "make {old} {new}",
                "use {new} rather than {old} in {it}",
                "change it from {old} to {new}",
                "make that {new} instead of {old}",
                "let {old} be {new}",
                "{new} not {old}",
                "where it says {old} write {new}",
                "turn {old} into {new}",
                "swap {old} for {new}",
                "{old} should be {new}",
            ),
        ),
    ),
    "describe": (
        (
            ("Add a docstring to {it}",),
            (
                "add a docstring to {it}",
                "add a docstring",
                "write a docstring for {it}",
                "document {it}",
                "give it a docstring",
                "docstring please",
                "add documentation to {it}",
                "add a doc string to {it}",
                "add a short docstring",
                "it needs a docstring",
                "I want a docstring",
                "put a docstring in {it}",
                "write documentation",
                "a docstring please",
                "explain it in a docstring",
                "docstring for {it}",
            ),
        ),
    ),
    "change_quotes": (
        (
            layout._QUOTES,
            (
                "{kind} quotes",
                "{kind} quotes in {it}",
                "I prefer {kind} quotes",
                "make the quotes {kind}",
                "the strings should have {kind} quotes",
                "all strings with {kind} quotes",
                "change to {kind} quotes",
                "replace the quotes with {kind} ones in {it}",
                "quote the strings with {kind} quotes",
                "switch to {kind} quotes",
                "I want {kind} quotes",
            ),
        ),
    ),
    "change_indent": (
        (
            layout._INDENT,
            (
                "indent with {what}",
                "{what} per level",
                "I use {what} to indent",
                "indentation with {what}",
                "reindent {it} with {what}",
                "make the indentation {what}",
                "the indent should be {what}",
            ),
        ),
    ),
    "function_to_method": (
        (
            signatures._TO_METHOD,
            (
                "make it a method",
                "turn {it} into a method",
                "make a method of it",
                "it should be a method",
                "I need it as a method",
                "add self and make it a method",
                "change it into a method",
                "method please",
                "as a method",
            ),
        ),
    ),
    "drop_comments": (
        (
            ("Remove the comments from {it}", "Delete all comments", "Strip the comments"),
            (
                "remove the comments",
                "remove all comments from {it}",
                "no comments",
                "delete the comments in {it}",
                "without comments",
                "drop every comment from {it}",
                "get rid of the comments",
                "I want no comments",
                "take the comments out of {it}",
                "clean up the comments",
                "no comments please",
                "erase the comments",
                "remove every comment",
                "the comments should go",
                "I do not need the comments",
                "cut the comments from {it}",
            ),
        ),
    ),
}
_PLAIN_SLOTS = ("what", "side", "text", "kind", "other")
"""Slots that no code is put into."""
_PARAMETER = (
    "rename the parameter {old} to {new}",
    "rename the argument {old} to {new}",
    "the parameter {old} should be called {new}",
    "call the argument {old} {new}",
    "change the parameter {old} to {new} in {it}",
    "the argument {old} should be {new}",
    "rename parameter {old} as {new}",
)
"""Besides, where the old name is a parameter."""
_PRINT_LINE = (
    *("remove the print", "delete the print in {it}", "remove the line that prints"),
    *(
        "drop the print",
        "no print please",
        "delete the line with the print",
        "take out the print statement",
        "get rid of the print",
    ),
    *("the print should go", "remove the call to print", "remove the print line from {it}"),
)
"""Besides, where the line to delete is the only one that prints."""
_FIRST_WORDS = frozenset(LISTS["instruction"])
"""What an instruction begins with where it does not begin with a name out of the code."""
_POLITE = ("please {}", "Please {}", "{} please", "can you {}", "Can you {}", "could you {}")
_POLITE_TOO = ("could you please {}", "I want you to {}", "I'd like you to {}", "now {}", "just {}")
_NO_ORDERS = frozenset(
    (
        *("all", "an", "as", "async", "asynchronous", "docstring", "if", "it", "its", "no", "one"),
        *("the", "there", "untyped", "when", "where", "without"),
    )
)
"""First words of instructions that nobody puts after "can you"."""
_QUOTED_PART = re.compile(r"(self\.|@)([`'])([^`']+)\2")
_PREPOSITION = re.compile(r"\s(?:in|from|to|of|for|on top of)$")
_AFTER = (
    *("{i}: {c}",) * 6,
    *("{i}:\n{c}",) * 3,
    *("{i}\n{c}", "{i}\n\n{c}", "{i}:\n\n{c}", "{i}: `{c}`", "{i}. {c}", "{i} - {c}"),
    *("{i}:\n```python\n{c}\n```",) * 4,
    *("{i}\n```python\n{c}\n```", "{i}:\n```\n{c}\n```", "{i}\n```\n{c}\n```"),
)
_BEFORE = (
    *("{c}\n{i}", "{c}\n\n{i}", "{c}\n\n{i}.", "```python\n{c}\n```\n{i}", "`{c}` {i}"),
    *("```\n{c}\n```\n{i}", "{c} - {i}", "Here is my code:\n{c}\n{i}", "I have {c}\n{i}"),
    *("Given {c}, {i}", "In {c}, {i}", "This is my function: {c}. {i}", "{c}  {i}"),
)


def slots(templates: Sequence[str], instruction: str) -> dict[str, str] | None:
    """What one of the templates was filled with to give the instruction, or None."""
    places = "|".join(map(re.escape, sorted(set(PLACES), reverse=True)))
    for template in templates:
        pattern = re.escape(template).replace(r"\ \{it\}", f"(?:{places})")
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", pattern)
        found = re.fullmatch(pattern, instruction)
        if found:
            return found.groupdict()
    return None


def instruction(edit: Edit, kind: str, rng: random.Random) -> str:
    """The edit's instruction in other words, or as it is where it has no others."""
    if rng.random() < 0.3:
        return edit.instruction
    for official, casual in _CASUAL.get(kind, ()):
        found = slots(official, edit.instruction)
        if found is not None:
            pointing = _pointing(edit, found) if rng.random() < 0.25 else ()
            words = phrase(rng, pointing or casual, **_quoted(found, rng))
            return _QUOTED_PART.sub(r"\2\1\3\2", words)
    return edit.instruction


def _pointing(edit: Edit, found: Mapping[str, str]) -> Sequence[str]:
    """Wordings that tell what a name or a line is; none where nothing is known of it."""
    old, line = found.get("old", ""), found.get("line", "")
    if edit.kind == "rename_variable" and "old2" not in found:
        return _PARAMETER if old in _parameters(edit.before) else ()
    prints = line.startswith("print(") and edit.before.count("print(") == 1
    return _PRINT_LINE if edit.kind == "delete_line" and prints else ()


def _parameters(code: str) -> set[str]:
    """The names of a function's parameters; none where the code is no function."""
    first = ast.parse(textwrap.dedent(code)).body[0]
    if not isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    return {node.arg for node in ast.walk(first.args) if isinstance(node, ast.arg)}


def _quoted(found: Mapping[str, str], rng: random.Random) -> dict[str, str]:
    """The slots with backquotes around code, mostly, or without."""
    marks = rng.choice(("`", "`", "`", "", "", "", "'"))

    def shown(name: str, value: str) -> str:
        if name in _PLAIN_SLOTS or not value:
            return value
        plain = value.isidentifier() or (marks != "'" and len(value) < 12 and " " not in value)
        return f"{marks}{value}{marks}" if plain else f"`{value}`"

    return {name: shown(name, value) for name, value in found.items()}


def spoken(words: str, rng: random.Random) -> str:
    """An instruction as people say it: in small letters or large ones, politely or not."""
    if not begins_as_instruction(words):
        return words
    if rng.random() < 0.2 and words.partition(" ")[0].lower() not in _NO_ORDERS:
        words = words[:1].lower() + words[1:]
        return rng.choice((*_POLITE, *_POLITE_TOO)).replace("{}", words)
    first = words[:1].upper() if rng.random() < 0.6 else words[:1].lower()
    return first + words[1:]


def begins_as_instruction(words: str) -> bool:
    """False where the first word may be a name out of the code, which keeps its letters."""
    return words.partition(" ")[0].lower() in _FIRST_WORDS


def ends_open(words: str) -> bool:
    """True where the instruction ends with a word that the code must follow."""
    return bool(_PREPOSITION.search(words))


def request(words: str, code: str, rng: random.Random) -> str:
    """The instruction and the code as one message."""
    is_open = ends_open(words)
    if rng.random() < 0.75 or "```" in words:
        usable = [f for f in _AFTER if "\n" in f or "\n" not in code]
        frame = "{i} {c}" if is_open and "\n" not in code and rng.random() < 0.15 else ""
    else:
        usable = [f for f in _BEFORE if "\n" not in code or f.startswith(("{c}\n", "`", "Here"))]
        usable = [f for f in usable if "\n" not in code or not f.startswith("`{")]
        words = f"{words} {rng.choice(('it', 'this'))}" if is_open else words
        frame = ""
    frame = frame or rng.choice(usable)
    return frame.replace("{i}", "\0", 1).replace("{c}", code, 1).replace("\0", words, 1)
