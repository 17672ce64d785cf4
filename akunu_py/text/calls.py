"""Tool calls in the text of a model: `CallLayout` says how a family writes them between the marks
that mlx-lm knows, in pieces that a grammar and a reader share; `CallReader` reads them while they
are written: the name first, then the arguments as JSON text, piece by piece.
"""

import json
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from akunu_py.text.json_schema import ValueKind, parameters_of, properties_of, value_kind
from akunu_py.text.stream import pending_length

NUMBER: Final = "{n}"
"""Stands for the number of a call."""
TYPE: Final = "{type}"
"""Stands for the JSON type of a value."""
CDATA: Final = ("<![CDATA[", "]]>")
MAX_NAME: Final = 256
"""Characters of the name of a function or a parameter."""
_JSON_TYPES: Final = {str: "string", bool: "boolean", list: "array", dict: "object"}


@dataclass(frozen=True)
class CallLayout:
    """The pieces of text around names and arguments; one that a family does not have is empty.

        start  before_name NAME after_name ARGUMENTS end  (between, and the next call)  close

    The arguments are one JSON object, or, with a `key_end`, values that follow their names:

        key_start KEY key_end VALUE value_end  (separator, and the next)

    `between` is None if each call has its own marks, `quote` if texts are written as JSON. `nests`:
    objects and lists within values are written in the same way; `cdata`: texts that look like XML
    are put into a CDATA section; `id`: that of a call, if the family writes one.
    """

    start: str = ""
    before_name: str = ""
    after_name: str = ""
    end: str = ""
    between: str | None = None
    close: str = ""
    key_start: str = ""
    key_end: str = ""
    value_end: str = ""
    separator: str = ""
    quote: str | None = None
    nests: bool = False
    cdata: bool = False
    id: str = ""

    @property
    def has_json(self) -> bool:
        return not self.key_end

    def written(self, calls: Sequence[Mapping[str, Any]]) -> list[str]:
        """The texts between marks that calls, each a name with its arguments, are mostly written
        as: one for each call, or one for all."""
        each = [
            f"{self.before_name}{call['name']}{self.after_name}".replace(NUMBER, str(number))
            + f"{self._arguments(call['arguments'])}{self.end}"
            for number, call in enumerate(calls)
        ]
        texts = each if self.between is None else [self.between.join(each)]
        return [f"{self.start}{text}{self.close}" for text in texts]

    def _arguments(self, arguments: Mapping[str, Any]) -> str:
        if self.has_json:
            return json.dumps(arguments, ensure_ascii=False)
        written = []
        for key, value in arguments.items():
            raw = json.dumps(value)
            if isinstance(value, str) and self.quote is not None:
                raw = f"{self.quote}{value}{self.quote}"
            type_ = _JSON_TYPES.get(type(value), "number")
            named = f"{self.key_start}{key}{self.key_end}".replace(TYPE, type_)
            written.append(f"{named}{raw}{self.value_end}")
        return self.separator.join(written)


LLAMA3: Final = CallLayout(after_name='", "parameters": ', end="}")
HARMONY: Final = CallLayout(after_name=" <|constrain|>json<|message|>")
DEEPSEEK_MARKS: Final = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")  # noqa: RUF001
_BEGIN, _SEP, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001


def deepseek_layout(template: str) -> CallLayout:
    """DeepSeek's calls: V2.5, V3 and R1 write a word and a fence more than V3.1."""
    if "```json" not in template:
        return CallLayout(before_name=_BEGIN, after_name=_SEP, end=_END, between="")
    return CallLayout(
        before_name=f"{_BEGIN}function{_SEP}",
        after_name="\n```json\n",
        end=f"\n```{_END}",
        between="\n",
    )


def _tagged(prefix: str = "", line: str = "") -> CallLayout:
    """GLM's arguments, whose names and values stand in tags of their own."""
    return CallLayout(
        after_name=line,
        key_start=f"<{prefix}arg_key>",
        key_end=f"</{prefix}arg_key>{line}<{prefix}arg_value>",
        value_end=f"</{prefix}arg_value>{line}",
        quote="",
    )


def _invoked(prefix: str = "") -> CallLayout:
    """MiniMax's calls, whose tags name functions and parameters in attributes."""
    return CallLayout(
        start="\n",
        before_name=f'<{prefix}invoke name="',
        after_name='">\n',
        end=f"</{prefix}invoke>\n",
        between="",
        key_start=f'<{prefix}parameter name="',
        key_end='">',
        value_end=f"</{prefix}parameter>\n",
        quote="",
    )


_MISTRAL_LIST: Final = CallLayout(
    start="[",
    before_name='{"name": "',
    after_name='", "arguments": ',
    end="}",
    between=", ",
    close="]",
)
_FUNCTION_GEMMA: Final = CallLayout(
    before_name="call:", after_name="{", end="}", key_end=":", separator=",", quote="<escape>"
)
_BY_PARSER: Final[Mapping[str, CallLayout]] = {
    "function_gemma": _FUNCTION_GEMMA,
    "gemma4": replace(_FUNCTION_GEMMA, quote='<|"|>', nests=True),
    "json_tools": CallLayout(before_name='\n{"name": "', after_name='", "arguments": ', end="}\n"),
    "kimi_k2": CallLayout(
        before_name="<|tool_call_begin|>functions.",
        after_name=f":{NUMBER}<|tool_call_argument_begin|>",
        end="<|tool_call_end|>",
        between="",
        id=f"functions.{{name}}:{NUMBER}",
    ),
    "kimi_k3": CallLayout(
        before_name='<|open|>call tool="',
        after_name=f'" index="{NUMBER}"<|sep|>',
        end="<|close|>call<|sep|>",
        between="",
        key_start='<|open|>argument key="',
        key_end=f'" type="{TYPE}"<|sep|>',
        value_end="<|close|>argument<|sep|>",
        quote="",
    ),
    "longcat": _tagged("longcat_", "\n"),
    "minicpm5": CallLayout(
        before_name='"',
        after_name='">',
        key_start='<param name="',
        key_end='">',
        value_end="</param>",
        quote="",
        cdata=True,
    ),
    "minimax_m2": _invoked(),
    "muse_spark": _invoked("atem:"),
    "pythonic": CallLayout(
        start="[", after_name="(", end=")", between=", ", close="]", key_end="=", separator=", "
    ),
    "qwen3_coder": CallLayout(
        before_name="\n<function=",
        after_name=">\n",
        end="</function>\n",
        key_start="<parameter=",
        key_end=">\n",
        value_end="\n</parameter>\n",
        quote="",
    ),
}


def layout_of(parser: str, template: str) -> CallLayout | None:
    """The layout that one of mlx-lm's parsers reads, by the name of its module, as a chat template
    writes it; None if it is not known."""
    if parser in ("glm47", "laguna"):
        return _tagged(line="" if "</arg_key><arg_value>" in template else "\n")
    if parser == "mistral":
        if "[ARGS]" in template:
            return CallLayout(after_name="[ARGS]", between="[TOOL_CALLS]")
        return replace(_MISTRAL_LIST, start=" [" if "[TOOL_CALLS] [" in template else "[")
    return _BY_PARSER.get(parser)


Kinds = Mapping[str, Mapping[str, ValueKind]]
"""How each parameter of each function is written."""

_Steps = Generator[None, None, None]
"""A part of the reading; it yields where it needs more text."""
_AFTER_SCALARS: Final = ",)]}<\n "


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants to call, with its arguments as JSON text. `id` is None if
    the model did not name the call."""

    name: str
    arguments: str
    id: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the answer was not cut within the arguments."""
        try:
            json.loads(self.arguments)
        except ValueError:
            return False
        return True

    @property
    def input(self) -> dict[str, Any]:
        """The arguments as an object; empty if they are none, as in a call that was cut short.
        Numbers that no float can hold become the largest ones."""
        try:
            given = json.loads(self.arguments, parse_float=_clamped)
        except ValueError:
            return {}
        return given if isinstance(given, dict) else {}


def kinds_of(tools: Sequence[Any]) -> dict[str, dict[str, ValueKind]]:
    """How the parameters of tools are written; of tools without a name or a schema, nothing."""
    found = {}
    for tool in tools:
        schema = parameters_of(tool)
        kinds = {key: value_kind(value, schema) for key, value in properties_of(schema).items()}
        found[tool["function"]["name"]] = kinds
    return found


class CallReader:
    """Reads the calls after one opening mark, and the closing one, `end`, which is empty if calls
    reach to the end of the answer. `begun` once a call has been released, `done` once the mark has
    come; `rest` is the text not read, after `done` that after the mark.
    """

    def __init__(self, layout: CallLayout, end: str, kinds: Kinds) -> None:
        self._layout, self._end, self._kinds = layout, end, kinds
        self._released: list[ToolCall | str] = []
        self._steps = self._calls()
        self.rest = ""
        self.begun = self.done = False

    def feed(self, text: str) -> list[ToolCall | str]:
        """Takes the next text; returns calls without arguments, and pieces of their arguments. A
        text that is not what the layout says is a ValueError, and stays unread.
        """
        self.rest += text
        self.done = next(self._steps, True) is True
        released, self._released = self._released, []
        return released

    def _calls(self) -> _Steps:
        layout = self._layout
        yield from self._expect(f"{layout.start}{layout.before_name}")
        again = None if layout.between is None else f"{layout.between}{layout.before_name}"
        closing = f"{layout.close}{self._end}"
        while True:
            kinds = yield from self._begin()
            if layout.has_json:
                yield from self._json()
            else:
                yield from self._members(kinds, layout.end or self._end)
            yield from self._expect(layout.end)
            if again is None or (yield from self._is_next(closing, again)):
                yield from self._expect(closing)
                return
            yield from self._expect(again)

    def _begin(self) -> Generator[None, None, Mapping[str, ValueKind]]:
        layout = self._layout
        before, numbered, after = layout.after_name.partition(NUMBER)
        ends = [before] if before else [layout.key_start, self._end]
        name = yield from self._word(*ends)
        yield from self._expect(before)
        number = ""
        if numbered:
            number = yield from self._word(after)
            yield from self._expect(after)
        self.begun = True
        named = layout.id.replace("{name}", name).replace(NUMBER, number)
        self._released.append(ToolCall(name, "", named or None))
        return self._kinds.get(name, {})

    def _members(self, kinds: Mapping[str, ValueKind], end: str) -> _Steps:
        """The names and values of an object, up to its end, which is left."""
        layout = self._layout
        before_type, typed, after_type = layout.key_end.partition(TYPE)
        separator = "{"
        while not (yield from self._is_next(end, layout.key_start)):
            if separator != "{":
                yield from self._expect(layout.separator)
            yield from self._expect(layout.key_start)
            key = yield from self._word(before_type)
            yield from self._expect(before_type)
            if typed:
                yield from self._word(after_type)
                yield from self._expect(after_type)
            self._say(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            separator = ", "
            yield from self._value(kinds.get(key, "json"))
            yield from self._expect(layout.value_end)
        self._say("}" if separator != "{" else "{}")

    def _value(self, kind: ValueKind) -> _Steps:
        layout = self._layout
        if layout.quote:
            yield from self._quoted(layout.quote)
        elif layout.quote is None or kind == "json":
            yield from self._json()
        elif layout.cdata and (yield from self._is_next(CDATA[0])):
            yield from self._between(*CDATA)
        elif kind == "text or null" and (yield from self._is_next(f"null{layout.value_end}")):
            yield from self._json()
        else:
            yield from self._raw(layout.value_end)

    def _quoted(self, quote: str) -> _Steps:
        """A value in which texts stand between quotes of the family's own."""
        if (yield from self._is_next(quote)):
            yield from self._between(quote, quote)
        elif self.rest[0] == "{":
            yield from self._expect("{")
            yield from self._members({}, "}")
            yield from self._expect("}")
        elif self.rest[0] == "[":
            yield from self._expect("[")
            self._say("[")
            while not (yield from self._is_next("]")):
                if self.rest[0] == ",":
                    yield from self._expect(",")
                    self._say(", ")
                yield from self._quoted(quote)
            yield from self._expect("]")
            self._say("]")
        else:
            yield from self._json()

    def _between(self, begin: str, end: str) -> _Steps:
        yield from self._expect(begin)
        yield from self._raw(end)
        yield from self._expect(end)

    def _raw(self, end: str) -> _Steps:
        """A raw text up to a mark, which is left, as JSON."""
        self._say('"')
        while True:
            at = self.rest.find(end)
            ready = at if at >= 0 else len(self.rest) - pending_length(self.rest, (end,))
            self._say(json.dumps(self._take(ready), ensure_ascii=False)[1:-1])
            if at >= 0:
                break
            yield
        self._say('"')

    def _json(self) -> _Steps:
        depth, quoted, escaped, begun = 0, False, False, False
        while True:
            for at, sign in enumerate(self.rest):
                if quoted:
                    quoted = escaped or sign != '"'
                    escaped = sign == "\\" and not escaped
                    ends = not quoted and not depth
                elif not depth and begun and sign in _AFTER_SCALARS:
                    self._say(self._take(at))
                    return
                else:
                    quoted = sign == '"'
                    depth += (sign in "{[") - (sign in "}]")
                    ends = sign in "}]" and not depth
                begun = True
                if ends:
                    self._say(self._take(at + 1))
                    return
            self._say(self._take(len(self.rest)))
            yield

    def _say(self, text: str) -> None:
        last = self._released[-1] if self._released else None
        if isinstance(last, str):
            self._released[-1] = last + text
        elif text:
            self._released.append(text)

    def _take(self, length: int) -> str:
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken

    def _expect(self, text: str) -> _Steps:
        while text and not self.rest.startswith(text):
            if not text.startswith(self.rest):
                raise ValueError(f"a call has no {text.strip()!r} where it should be")
            yield
        self._take(len(text))

    def _is_next(self, text: str, other: str = "") -> Generator[None, None, bool]:
        """Whether a text comes next, and not the other one; waits until it is certain."""
        while True:
            if other and self.rest.startswith(other):
                return False
            if text and self.rest.startswith(text):
                return True
            if self.rest and not text.startswith(self.rest) and not other.startswith(self.rest):
                return False
            yield

    def _word(self, *ends: str) -> Generator[None, None, str]:
        """A short text up to one of some marks, which is left."""
        while True:
            found = [at for end in ends if end and (at := self.rest.find(end)) >= 0]
            if found:
                return self._take(min(found))
            if len(self.rest) > MAX_NAME + max(map(len, ends)):
                raise ValueError("a call has no name")
            yield


def _clamped(digits: str) -> float:
    return min(max(float(digits), -sys.float_info.max), sys.float_info.max)
