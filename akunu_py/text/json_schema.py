"""JSON schemas: what is JSON gets bounds, and the parameters of a tool are told apart.

Schemas are never changed in place. What makes no sense is left to llguidance, which says what is
wrong with it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from akunu_py.errors import shortened
from akunu_py.text.sandbox import validate

_TOO_LARGE: Final = 10**18
"""Numbers stay below it: an integer of 18 digits fits 64 bits, and no double becomes infinite."""
_HOLDS_NAMED: Final = (
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas",
    "dependentRequired", "dependencies",
)  # fmt: skip
_HOLDS_DATA: Final = ("const", "enum", "default", "example", "examples", "x-guidance")
_OPEN_OBJECT: Final = (
    "additionalProperties", "patternProperties", "unevaluatedProperties",
    "$ref", "allOf", "anyOf", "oneOf", "if",
)  # fmt: skip
_MAX_REFERENCES: Final = 8
_LONGEST_REFERENCE: Final = 512
_LONGEST_SAMPLE: Final = 64
_UNKNOWN_FORMAT: Final = "Unknown format"
_NOTE: Final = "left out"
"""Begins a format that stands for a pattern: unknown formats are told, and not followed."""
_NOT_ONLY: Final = re.compile(r"^\^\(\?!\^\[([^\\\]^]+)\]\*\$\)")
"""How the pattern of pydantic's `Decimal` begins: the text is not made of these signs alone."""
JSON_RULES: Final[dict[str, Any]] = {
    "json_allow_general_unicode_escapes": True, "coerce_one_of": True, "lenient": True,
}  # fmt: skip
"""Without the first, only control characters could be written as `\\u00..`, and no others. `oneOf`
is `anyOf`, as in llama-server. What cannot be followed is left out, and told: see `unmet_in`."""
JSON_STYLE: Final[dict[str, Any]] = {"whitespace_pattern": "[ ]?", **JSON_RULES}
"""One space at most between the parts of JSON: a model must not be able to emit blanks forever."""

_PLAIN: Final = (
    # An excerpt of the grammar, perhaps one that was made of a schema; hints for its own users.
    (re.compile(r"(?s)\n +\d+ \| .*|(; following| \(at| and retrieving) .*| \(in regex\)"), ""),
    (re.compile(r"(?s)(regex parse error):.*\nerror"), r"\1"),
    # The place of a schema or an expression in the grammar that was made of it.
    (re.compile(r"(?s)^.*(?:JSON schema|\"%json\"): |^at 1\(8\): (?=invalid)"), ""),
    (re.compile(r"^(?:at )?(\d+)\((\d+)\)"), r"line \1, column \2"),
)
"""Patterns of what llguidance tells its own users, and what to say instead."""
_LONGEST_REASON: Final = 4096
"""A longer one quotes a client's text, on which these patterns would take quadratic time."""

ValueKind = Literal["text", "text or null", "json"]
"""How families that write texts without quotes write the value of a parameter."""


def bounded(schema: Any) -> Any:
    """The schema, with numbers below 10^18 where it says nothing else about their size."""
    return _mapped(schema, _bound)


def closed(schema: Any) -> Any:
    """The schema, with objects that have only the properties it names where it does not say."""
    return _mapped(schema, _close, but=("allOf", "if", "then", "else", "dependentSchemas", "not"))


def readable(schema: Any) -> Any:
    """The schema in words that llguidance knows, without the patterns that it cannot read."""
    return _mapped(schema, _reword)


def json_lark(schema: Any, style: Mapping[str, Any] = JSON_STYLE) -> str:
    """JSON of a schema, as a part of a grammar."""
    schema = readable({} if schema is True else schema)
    styled = schema | {"x-guidance": style} if isinstance(schema, dict) else schema
    return f"%json {json.dumps(styled)}"


def unmet_in(lark: str) -> tuple[str, ...]:
    """See `unmet_of`; a ValueError says why a grammar cannot be followed at all."""
    wrong, told = validate(lark)
    if wrong:
        raise ValueError(told[0])
    return unmet_of(told)


def unmet_of(told: Iterable[str]) -> tuple[str, ...]:
    """What schemas demand that llguidance leaves out, by its warnings. `oneOf` and unknown words
    for `format` are not counted."""
    left = (each.removeprefix(f"{_UNKNOWN_FORMAT}: {_NOTE}: ") for each in told)
    left = (each for each in left if not each.startswith(("oneOf", _UNKNOWN_FORMAT)))
    keys = "Unimplemented keys: "
    return tuple(
        one_line(each.removeprefix(keys).strip("[]").replace('"', "`") if keys in each else each)
        for each in left
    )


def resolved(schema: Any, root: Any) -> Any:
    """The schema that a reference within `root` leads to; the schema itself if it is none."""
    for _ in range(_MAX_REFERENCES):
        reference = get(schema, "$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        if len(reference) > _LONGEST_REFERENCE:
            return schema
        found: Any = root
        for step in reference[2:].split("/"):
            found = get(found, step)
        schema = found
    return schema


def get(schema: Any, name: str) -> Any:
    """What a schema says under a name; None if it is no object or does not say."""
    return schema.get(name) if isinstance(schema, dict) else None


def parameters_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments, which are an object; `tool` is in OpenAI's form."""
    schema = tool["function"].get("parameters")
    if schema is None:
        return {"type": "object", "properties": {}}
    schema = resolved(schema, schema)
    return {"type": "object"} | schema if isinstance(schema, dict) else {"type": "object"}


def properties_of(schema: Any) -> dict[str, Any]:
    """The schemas of an object's properties, by their names."""
    properties = get(schema, "properties")
    return properties if isinstance(properties, dict) else {}


def sample_arguments(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Made-up arguments of a tool, one for each property that its schema names."""
    schema = parameters_of(tool)
    named = properties_of(schema).items()
    return {str(key): _sample(resolved(value, schema)) for key, value in named}


def one_line(reason: str) -> str:
    """What llguidance says is wrong with a grammar, shortened, and without what is its own."""
    reason = shortened(reason, _LONGEST_REASON)
    for pattern, plain in _PLAIN:
        reason = pattern.sub(plain, reason)
    short = " ".join(reason.split()).rstrip(".")[:300]
    return "no text matches it" if short.startswith("NoExtension") else short


def _sample(schema: Any) -> Any:
    values, kind = get(schema, "enum"), get(schema, "type")
    if isinstance(values, list) and values and _is_short(values[0]):
        return values[0]
    kind = kind[0] if isinstance(kind, list) and kind else kind
    samples = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}, "null": None}
    return samples.get(kind, "x") if isinstance(kind, str) else "x"


def _is_short(value: Any) -> bool:
    """Many references may lead to the same sample."""
    return not isinstance(value, list | dict) and len(str(value)) <= _LONGEST_SAMPLE


def value_kind(schema: Any, root: Any) -> ValueKind:
    """Whether the values of a schema are texts, which can then be written without quotes."""
    types = _types(schema, root, set())
    if types == {"string"}:
        return "text"
    return "text or null" if types == {"string", "null"} else "json"


def simplified(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Only the names and types of an object's properties, which every grammar can follow."""
    if not isinstance(schema.get("properties"), dict):
        return {"type": "object"}
    kept = {}
    for name, each in properties_of(schema).items():
        kind = get(resolved(each, schema), "type")
        kept[name] = {"type": kind} if isinstance(kind, str) else {}
    required = [name for name in schema.get("required") or () if name in kept]
    return {"type": "object", "properties": kept, "required": required}


def _types(schema: Any, root: Any, seen: set[int]) -> set[str]:
    """The types that values can have; `any` stands for all that cannot be told. Those that have
    been `seen` add nothing: references may lead to the same schema in a million ways."""
    schema = resolved(schema, root)
    if not isinstance(schema, dict):
        return {"any"}
    if id(schema) in seen:
        return set()
    seen.add(id(schema))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        names = {str: "string", type(None): "null"}
        return {names.get(type(value), "other") for value in values}
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            return set().union(*(_types(each, root, seen) for each in schema[name]))
    given = schema.get("type")
    if isinstance(given, str):
        return {given}
    return set(map(str, given)) if isinstance(given, list) and given else {"any"}


def _mapped(
    schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]], but: tuple[str, ...] = ("not",)
) -> Any:
    """The schema with a change in it and in all schemas that it holds, `but` for some places."""
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for name, held in schema.items():
        if name in but or name in _HOLDS_DATA:
            kept[name] = held
        elif name in _HOLDS_NAMED and isinstance(held, dict):
            kept[name] = {key: _mapped(each, change, but) for key, each in held.items()}
        elif isinstance(held, list):
            kept[name] = [_mapped(each, change, but) for each in held]
        else:
            kept[name] = _mapped(held, change, but)
    return change(kept)


def _reword(schema: dict[str, Any]) -> dict[str, Any]:
    """One schema, whose parts are in words that llguidance knows."""
    if schema.get("uniqueItems") is False:
        schema = {name: held for name, held in schema.items() if name != "uniqueItems"}
    pattern, both = schema.get("pattern"), schema.get("allOf", [])
    if isinstance(pattern, str) and isinstance(both, list):
        if found := _NOT_ONLY.match(pattern):
            pattern = f"^{pattern[found.end() :]}"
            schema |= {"pattern": pattern, "allOf": [*both, {"pattern": f"[^{found[1]}]"}]}
        if not _is_readable(pattern):
            note = {"format": f"{_NOTE}: the pattern {pattern}"}
            schema |= {"pattern": "", "allOf": [*both, note]}
    names = schema.get("propertyNames")
    if not isinstance(names, dict) or schema.keys() & {"properties", "patternProperties"}:
        return schema
    others = {name: held for name, held in schema.items() if name != "propertyNames"}
    rules = {name: held for name, held in names.items() if name not in ("type", "title")}
    match rules:
        case {"enum": [*values]} if len(rules) == 1:
            wanted = f"^({'|'.join(map(re.escape, map(str, values)))})$"
        case {"pattern": str(wanted)} if len(rules) == 1:
            pass
        case _:
            return schema if rules else others
    held = {wanted: others.get("additionalProperties", True)}
    return others | {"patternProperties": held, "additionalProperties": False}


def _is_readable(pattern: str) -> bool:
    schema = {"type": "string", "pattern": pattern}
    return not validate(json.dumps({"grammars": [{"json_schema": schema}]}))[0]


def _bound(schema: dict[str, Any]) -> dict[str, Any]:
    given = schema.get("type")
    types = given if isinstance(given, list) else [given]
    if not ("integer" in types or "number" in types) or "enum" in schema or "const" in schema:
        return schema
    least = _number(schema, "minimum", "exclusiveMinimum")
    most = _number(schema, "maximum", "exclusiveMaximum")
    added = {}
    if least is None and (most is None or most > -_TOO_LARGE):
        added["exclusiveMinimum"] = -_TOO_LARGE
    if most is None and (least is None or least < _TOO_LARGE):
        added["exclusiveMaximum"] = _TOO_LARGE
    return schema | added


def _close(schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties"), schema.get("required") or []
    if not isinstance(properties, dict) or any(name in schema for name in _OPEN_OBJECT):
        return schema
    if not isinstance(required, list) or not all(map(properties.__contains__, required)):
        return schema
    return schema | {"additionalProperties": False}


def _number(schema: dict[str, Any], *names: str) -> float | None:
    values = (schema.get(name) for name in names)
    numbers = [each for each in values if isinstance(each, int | float) and each is not True]
    return numbers[0] if numbers else None
