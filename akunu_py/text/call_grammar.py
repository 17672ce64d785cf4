"""The grammar of tool calls: tools and a family's layout in, llguidance's variant of Lark out.

A text is written in three ways: as JSON, raw up to the mark after it, or between quotes of the
family's own. Control tokens are named by their ids, because llguidance does not take their spelling
for text.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from akunu_py.errors import InvalidRequestError, UnreadableRequestError
from akunu_py.options import Grammar
from akunu_py.text.answer_parser import AnswerFormat
from akunu_py.text.calls import CDATA, MAX_NAME, NUMBER, TYPE
from akunu_py.text.json_schema import (
    JSON_RULES,
    bounded,
    closed,
    get,
    json_lark,
    one_line,
    parameters_of,
    properties_of,
    resolved,
    simplified,
    unmet_in,
    value_kind,
)
from akunu_py.text.sandbox import matches_empty
from akunu_py.text.tokenizer import any_of

_TEMPLATE_STYLE: Final = {
    "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", **JSON_RULES,
}  # fmt: skip
"""How templates write JSON: on one line, as Python does."""
_NAME: Final = re.compile(r"[\w.-]+")
_KEY: Final = re.compile(r"[^\s<>\"'{}\[\]():=,|&\\]+")
_MAX_DEPTH: Final = 8
_MAX_PARTS: Final = 10_000
_MAX_LENGTH: Final = 1 << 20
"""References make a short schema a long grammar."""
_OF_OBJECTS: Final = (
    "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
    "const", "enum",
)  # fmt: skip
_OF_ALL: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_OF_LISTS: Final = (
    "prefixItems", "uniqueItems", "contains", "minContains", "maxContains", "const", "enum",
)  # fmt: skip
_OF_SCALARS: Final = (
    "minLength", "maxLength", "pattern",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
)  # fmt: skip
"""What schemas may demand of values. Grammars that are not llguidance's own refuse what they do not
meet."""
_PYTHON: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "null": (type(None),), "object": (dict,), "array": (list,),
}  # fmt: skip
_NOTHING: Final = '""'
_CLASSES: Final = {"\\w": "0-9A-Za-z_", "\\d": "0-9"}
"""In the patterns of schemas these are ASCII; in llguidance's expressions they are not."""


class CallGrammar:
    """Writes the grammars of the calls of some tools, which are in OpenAI's form; of `simple` ones,
    it follows only names and types of arguments, so that every schema will do. `control_tokens` are
    ids by their spellings. Raises InvalidRequestError if a name cannot be written in this layout,
    or a schema not be followed.
    """

    def __init__(
        self,
        format_: AnswerFormat,
        tools: Sequence[Mapping[str, Any]],
        control_tokens: Mapping[str, int],
        *,
        one_call: bool,
        simple: Collection[str] = (),
    ) -> None:
        assert format_.layout is not None
        self._format, self._layout = format_, format_.layout
        self._control_tokens = control_tokens
        self._pieces = re.compile(f"({any_of([NUMBER, *control_tokens])})")
        self._one_call, self._simple = one_call, simple
        text_end = format_.layout.quote or format_.layout.value_end.strip()
        self._forbidden = [mark for mark in (text_end, format_.call_end) if mark]
        self._rules: list[str] = []
        self._parts = self._length = 0
        calls = [self._call(tool) for tool in tools]
        self._rules.append(f"call: {' | '.join(calls)}")
        layout, repeats = self._layout, ""
        if layout.between is not None and not one_call:
            repeats = f"({self._text(layout.between)} call)*"
        end = self._text(layout.close + format_.call_end)
        self._rules.append(f"calls: {self._text(layout.start)} call {repeats} {end}")

    def calls_only(self) -> str:
        return self._lark(f"start: {self._marked_calls()}")

    def after_mark(self) -> str:
        """The grammar of a mark, which may begin within a token, and the calls after it; or of the
        header of a message, which may be one of calls."""
        mark = self._format.call_start
        if others := self._format.other_headers:
            other = " | ".join(map(self._text, others))
            again = self._text(self._format.again)
            return self._lark(f"start: ({again})? ({self._text(mark)} calls | {other})")
        pieces = self._split(mark)
        if pieces[0] in self._control_tokens:
            return self._lark(f"start: {self._text(mark)} calls")
        rest = self._text("".join(pieces[1:]))
        return self._lark(
            f"start: mark {rest} calls\nmark[lazy]: /(?s:.*)/ {json.dumps(pieces[0])}"
        )

    def or_answer(self, answer: str) -> str:
        """The grammar of calls, or of an answer, which is JSON of the schema `answer`."""
        schema = closed(bounded(json.loads(answer)))
        start = f"start: {self._marked_calls()} | answer"
        header = self._text(self._format.headers[0]) if self._format.headers else ""
        return self._lark(f"{start}\nanswer: {header} {json_lark(schema)}")

    def _marked_calls(self) -> str:
        calls = f"{self._text(self._format.call_start)} calls"
        is_last = self._one_call or not self._format.call_end
        return calls if is_last else f'{calls} ("\\n"? {calls})*'

    def _lark(self, start: str) -> str:
        return "\n".join(["%llguidance {}", start, *self._rules, ""])

    def _call(self, tool: Mapping[str, Any]) -> str:
        layout, name = self._layout, tool["function"]["name"]
        writable = name.isidentifier() if layout.after_name == "(" else _NAME.fullmatch(name)
        if not writable or len(name) > MAX_NAME:
            raise InvalidRequestError(f"The name {name!r} cannot be written in this model's calls.")
        schema = bounded(parameters_of(tool))
        schema = closed(bounded(simplified(schema)) if name in self._simple else schema)
        if layout.has_json:
            arguments = self._json(schema, schema)
        else:
            arguments = self._members(schema, schema, 0)
        begin = self._text(f"{layout.before_name}{name}{layout.after_name}")
        return self._rule("call", f"{begin} {arguments} {self._text(layout.end)}")

    def _members(self, schema: Mapping[str, Any], root: Any, depth: int) -> str:
        """The names and values of an object, in the schema's order; what is optional may be left
        out. Each rule is for the rest of the members; it begins with a separator or not."""
        properties = dict(properties_of(schema))
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        others = schema.get("additionalProperties", {})
        properties |= {name: others for name in required if name not in properties}
        _refuse_unread(schema, *_OF_ALL, *_OF_OBJECTS)
        if schema.get("minProperties", 0) > len(required):
            raise InvalidRequestError("minProperties is not supported in this model's calls.")
        if schema.get("maxProperties", len(properties)) < len(properties):
            raise InvalidRequestError("maxProperties is not supported in this model's calls.")
        layout = self._layout
        first = rest = ""
        for key, value in reversed(properties.items()):
            writable = key.isidentifier() if layout.separator else _KEY.fullmatch(key)
            if not writable or len(key) > MAX_NAME:
                raise InvalidRequestError(
                    f"The parameter {key!r} cannot be written in this model's calls."
                )
            kind = resolved(value, root)
            type_ = "string" if value_kind(value, root) != "json" else get(kind, "type")
            named = f"{layout.key_start}{key}{layout.key_end}".replace(TYPE, str(type_ or "object"))
            member = f"{self._text(named)} {self._value(value, root, depth)} {rest}"
            member = self._rule("member", member)
            later = f"{self._text(layout.separator)} {member}"
            if key in required:
                first, rest = member, self._rule("rest", later)
            else:
                first = self._rule("first", f"{member} | {first or _NOTHING}")
                rest = self._rule("rest", f"{later} | {rest or _NOTHING}")
        return first

    def _value(self, schema: Any, root: Any, depth: int) -> str:
        layout = self._layout
        if not layout.quote and (layout.quote is None or value_kind(schema, root) == "json"):
            body = f"{self._json(schema, root)} {self._text(layout.value_end)}"
        else:
            body = " | ".join(self._ways(schema, root, depth))
        return self._rule("value", body)

    def _ways(self, schema: Any, root: Any, depth: int) -> Iterator[str]:
        """The ways to write a value whose texts are raw or stand between the family's quotes, and
        what comes after it."""
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise InvalidRequestError("The references in a tool's schema expand to too much.")
        if depth > _MAX_DEPTH:
            raise InvalidRequestError("The schema of a tool is nested too deeply.")
        schema = resolved(schema, root)
        schema = schema if isinstance(schema, dict) else {}
        wrapped = schema.get("allOf")
        if isinstance(wrapped, list) and len(wrapped) == 1:  # how some libraries add a description
            _refuse_unread(schema, *_OF_ALL, *_OF_SCALARS, "type", but="allOf")
            yield from self._ways(wrapped[0], root, depth + 1)
            return
        if "enum" in schema or "const" in schema:
            quote = self._layout.quote or ""
            for value in self._choices(schema):
                text = f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)
                yield self._text(f"{text}{self._layout.value_end}")
            return
        for name in ("anyOf", "oneOf"):
            if name in schema:
                _refuse_unread(schema, *_OF_ALL, *_OF_SCALARS, *_OF_OBJECTS, *_OF_LISTS, but=name)
                for each in schema[name]:
                    yield from self._ways(each, root, depth + 1)
                return
        _refuse_unread(schema, *_OF_ALL)
        types = schema.get("type", ["string", "number", "boolean", "null"])
        for kind in [types] if isinstance(types, str) else types:
            yield self._typed(kind, schema, root, depth + 1)

    def _typed(self, kind: str, schema: dict[str, Any], root: Any, depth: int) -> str:
        if kind == "string":
            return self._string(schema)
        if kind == "null":
            return self._text(f"null{self._layout.value_end}")
        if kind in ("object", "array"):
            return self._nested(kind, schema, root, depth)
        return self._json(schema | {"type": kind}, root)  # with quotes no mark follows a value

    def _string(self, schema: Mapping[str, Any]) -> str:
        """A text that reaches to a mark, or to the quote after it."""
        layout, quote = self._layout, self._layout.quote or ""
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        allowed = [f"/(?s:.{{{least},{most}}})/", f"~{_containing(self._forbidden)}"]
        if not quote:
            allowed.append("~/(?i:null)/")
        elif not layout.nests:
            allowed.append("/[^}]*/")  # mlx-lm's parser ends the call there
        if isinstance(pattern := schema.get("pattern"), str):
            allowed.append(_whole_pattern(pattern))
        expression, end = " & ".join(allowed), quote or layout.value_end
        optional = "?" if _may_be_empty(schema) else ""
        if layout.cdata:
            inner = self._rule("TEXT", f"({expression} & ~{_containing(CDATA[1:])})")
            plain = self._rule("TEXT", f"({expression} & /[^<&\\n]*/) {json.dumps(end)}")
            inside = f"{json.dumps(CDATA[0])} {inner}{optional} {json.dumps(CDATA[1] + end)}"
            return f"{plain} | {inside}"
        if quote or self._split(end)[0] in self._control_tokens:
            text = self._rule("TEXT", f"({expression} & /(?s:.+)/)")
            return f"{self._text(quote)} {text}{optional} {self._text(end)}"
        return self._rule("TEXT", f"({expression}) {json.dumps(end)}")

    def _choices(self, schema: Mapping[str, Any]) -> list[Any]:
        _refuse_unread(schema, *_OF_ALL, *_OF_SCALARS)
        types = schema.get("type")
        types = [types] if isinstance(types, str) else types or ()
        kinds = tuple(kind for name in types for kind in _PYTHON[name])
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        values = [each for each in values if not kinds or _is_one(each, kinds)]
        marks = [*self._forbidden, *self._control_tokens]
        marks += CDATA if self._layout.cdata else ()
        if not values or any(
            isinstance(value, dict | list)
            or (isinstance(value, str) and any(mark in value for mark in marks))
            for value in values
        ):
            raise InvalidRequestError("This model's calls cannot have such constants in them.")
        return values

    def _nested(self, kind: str, schema: Mapping[str, Any], root: Any, depth: int) -> str:
        if not self._layout.nests:
            raise InvalidRequestError("This model's calls cannot have objects and lists in them.")
        if kind == "object":
            return f'"{{" {self._members(schema, root, depth)} "}}"'
        _refuse_unread(schema, *_OF_LISTS)
        item = self._rule("item", " | ".join(self._ways(schema.get("items", {}), root, depth)))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return f'"[" {item} {more} "]"' + ("" if least else ' | "[]"')

    def _json(self, schema: Any, root: Any) -> str:
        if isinstance(schema, dict):
            schema = {
                name: root[name] for name in ("$defs", "definitions") if name in root
            } | schema
        return json_lark(schema, _TEMPLATE_STYLE)

    def _rule(self, name: str, body: str) -> str:
        self._length += len(body)
        if self._length > _MAX_LENGTH:
            raise InvalidRequestError("The references in a tool's schema expand to too much.")
        number = len(self._rules)
        name = f"{name}_{number}" if name.islower() else f"{name}{number}"
        self._rules.append(f"{name}: {body}")
        return name

    def _text(self, text: str) -> str:
        return " ".join(map(self._piece, self._split(text))) if text else ""

    def _split(self, text: str) -> list[str]:
        return [piece for piece in self._pieces.split(text) if piece]

    def _piece(self, piece: str) -> str:
        if piece == NUMBER:
            return "/[0-9]{1,3}/"
        token = self._control_tokens.get(piece)
        return json.dumps(piece) if token is None else f"<[{token}]>"


def make_checked(make: Callable[[], str]) -> Grammar:
    """A grammar, with what it leaves out; one that llguidance cannot follow is refused."""
    try:
        source = make()
        return Grammar("lark", source, headed=True, unmet=unmet_in(source))
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        known = isinstance(error, InvalidRequestError | ValueError)  # or the schema makes no sense
        reason = str(error) if known else f"{type(error).__name__}, {error}"
        raise UnreadableRequestError(
            f"The schemas of the tools cannot be used: {one_line(reason)}."
        ) from None


def _is_one(value: Any, kinds: tuple[type, ...]) -> bool:
    return bool in kinds if isinstance(value, bool) else isinstance(value, kinds)


def _refuse_unread(schema: Mapping[str, Any], *names: str, but: str = "") -> None:
    unread = [name for name in names if name != but and schema.get(name) not in (None, False, [])]
    if unread:
        raise InvalidRequestError(f"{unread[0]} is not supported in this model's calls.")


def _may_be_empty(schema: Mapping[str, Any]) -> bool:
    pattern = schema.get("pattern")
    if schema.get("minLength") or not isinstance(pattern, str):
        return not schema.get("minLength")
    return matches_empty(pattern)


def _containing(marks: Sequence[str]) -> str:
    found = "|".join(re.escape(mark).replace("/", "\\/") for mark in marks)
    return f"/(?s:.*)({found})(?s:.*)/"


def _whole_pattern(pattern: str) -> str:
    """A schema's pattern, which looks for a place in the text, as an expression of the whole."""
    begin = "" if pattern.startswith("^") else "(?s:.*)"
    is_anchored = pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern.removeprefix("^")[: -1 if is_anchored else None]
    in_class, signs = False, []
    for found in re.finditer(r"\\?.", inner, re.DOTALL):
        sign = found[0]
        in_class = sign == "[" or (in_class and sign != "]")
        meant = _CLASSES.get(sign, "\\/" if sign == "/" else sign)
        signs.append(f"[{meant}]" if sign in _CLASSES and not in_class else meant)
    return f"/{begin}({''.join(signs)}){'' if is_anchored else '(?s:.*)'}/"
