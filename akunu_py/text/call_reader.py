"""CallReader: reads calls while they are written, in the layout that their grammar holds them to.

The name is released first, then the arguments as JSON text, piece by piece.
"""

import json
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from akunu_py.text.call_layout import CDATA, MAX_NAME, NUMBER, TYPE, CallLayout
from akunu_py.text.json_schema import ValueKind, parameters_of, properties_of, value_kind
from akunu_py.text.stream import pending_length

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
        """Releases JSON text, as one piece with what has just been released."""
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
