"""Body: a request's JSON object, read field by field with types, ranges, aliases and defaults.

A field that is missing or null has its default, or is empty. Unknown fields are ignored. A field of
a wrong type or outside its range raises a `BodyError` that names it.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from akunu_py.option_words import UnreadableWordError, duration
from akunu_py.server.errors import BodyError

D = TypeVar("D")

MAX_PATH: Final = 4096
"""The most characters of the name of a model, a file or a function, which may be a path."""
_MAX_CHARACTERS: Final = 4 << 20
"""The most characters of all texts of a body, including files around a gap: encoding takes about a
second per million, and cannot be interrupted."""
_MAX_ESCAPES: Final = 1 << 20
"""The most backslashes of a body: a text with many of them takes long to find."""
_MAX_DIGITS: Final = 100
"""The most digits of an integer: parsing takes quadratic time."""
_MAX_VALUES: Final = 1 << 18
"""The most values of a body, and of the JSON in its texts: while JSON is parsed, nothing else
runs."""
_MAX_INTEGER: Final = 1 << 63
"""No client means an integer beyond 64 bits."""
_HALF_CHARACTER: Final = re.compile(r"\\u[dD][89abcdefABCDEF]")
"""The escape of half a character in UTF-16, even if both halves are there."""
_TEXT: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or the rest of JSON that ends inside one."""
_KINDS: Final = {type(None): "null", bool: "a boolean", int: "a number", float: "a number",
                 str: "a string", list: "a list", dict: "an object"}  # fmt: skip


class Body:
    """One JSON object; `path` is its place in the whole body, for messages."""

    def __init__(self, fields: Mapping[str, Any], path: str = "") -> None:
        self._fields = fields
        self._path = path

    @classmethod
    def parse(cls, raw: bytes) -> "Body":
        """Parses a body; an empty one counts as an empty object."""
        try:
            text = raw.decode("utf-8-sig") or "{}"  # not `json.loads(bytes)`, which guesses
            check_json(text)
            value = parse_json(text)
        except RecursionError as error:
            raise BodyError("The body is nested too deeply.") from error
        except ValueError as error:
            raise BodyError(f"The body is not valid JSON: {error}.") from error
        if not isinstance(value, dict):
            raise BodyError(f"The body must be a JSON object, not {_KINDS[type(value)]}.")
        if len(raw) > _MAX_CHARACTERS and _characters(value) > _MAX_CHARACTERS:
            raise BodyError(f"The texts of the body have more than {_MAX_CHARACTERS} characters.")
        return cls(value)

    def has(self, *names: str) -> bool:
        """Whether one of these fields is present and not null."""
        return self._find(names)[1] is not None

    def require(self, *names: str) -> None:
        """Refuses the body if one of these fields is missing."""
        for name in names:
            if not self.has(name):
                self.refuse(name, "is missing")

    def text(self, *names: str, default: D, longest: int | None = None) -> str | D:
        """A string of at most `longest` characters."""
        name, value = self._find(names)
        return default if value is None else self._text(name, value, longest)

    def texts(
        self, *names: str, most: int | None = None, longest: int | None = None
    ) -> tuple[str, ...]:
        """A list of at most `most` strings, or one string."""
        name, value = self._find(names)
        if isinstance(value, str):
            return (self._text(name, value, longest),)
        values = [] if value is None else value
        self._check_type(name, values, "a string, or a list of strings", list)
        self._check_length(name, values, most)
        return tuple(self._text(f"{name}[{i}]", entry, longest) for i, entry in enumerate(values))

    def integer(
        self, *names: str, default: D, least: int | None = None, most: int | None = None
    ) -> int | D:
        """A whole number within a range; `128.0` counts as one."""
        name, value = self._find(names)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        self._check_type(name, value, "a whole number", int)
        self._check_range(name, value, least, most)
        return int(value)

    def number(
        self, *names: str, default: D, least: float | None = None, most: float | None = None
    ) -> float | D:
        name, value = self._find(names)
        if value is None:
            return default
        self._check_type(name, value, "a number", int, float)
        self._check_range(name, value, least, most)
        return float(value)

    def flag(self, *names: str, default: D) -> bool | D:
        name, value = self._find(names)
        if value is None:
            return default
        self._check_type(name, value, "true or false", bool)
        return bool(value)

    def object(self, *names: str) -> "Body":
        name, value = self._find(names)
        return self._object(name, {} if value is None else value)

    def objects(self, *names: str, most: int | None = None) -> list["Body"]:
        name = self._find(names)[0]
        values = self.values(*names, most=most)
        return [self._object(f"{name}[{i}]", entry) for i, entry in enumerate(values)]

    def values(self, *names: str, most: int | None = None) -> list[Any]:
        """A list of anything."""
        name, value = self._find(names)
        values: list[Any] = [] if value is None else value
        self._check_type(name, values, "a list", list)
        self._check_length(name, values, most)
        return values

    def any(self, *names: str) -> Any:
        """A value of any type; None if it is missing."""
        return self._find(names)[1]

    def joined(self, name: str, kinds: Sequence[str] = ("text",), joint: str = "\n\n") -> str:
        """A string, or a list of text parts of these kinds; a part without a type has the first
        kind. Parts become separate paragraphs, as in llama-server."""
        if not isinstance(self.any(name), list):
            return self.text(name, default="")
        texts = []
        for part in self.objects(name):
            if part.text("type", default=kinds[0]) not in kinds:
                part.refuse("type", "must be text; this model reads nothing else")
            texts.append(part.text("text", "refusal", default=""))
        return joint.join(texts)

    def names(self) -> list[str]:
        return list(self._fields)

    def only(self, *names: str) -> "Body":
        """The same object with some of its fields."""
        kept = {name: self._fields[name] for name in names if name in self._fields}
        return Body(kept, self._path)

    def refuse(self, name: str, why: str, *, quotes: bool = False) -> NoReturn:
        """Raises the error that says why a field is refused; `why` is the rest of the sentence
        after the field's name, without the full stop. With `quotes`, it may quote the request, so
        it is not logged."""
        raise BodyError(f"`{self._path}{name}` {why}.", f"{self._path}{name}", quotes=quotes)

    def _find(self, names: Sequence[str]) -> tuple[str, Any]:
        for name in names:
            if self._fields.get(name) is not None:
                return name, self._fields[name]
        return names[0], None

    def _check_range(
        self, name: str, value: float, least: float | None, most: float | None
    ) -> None:
        if abs(value) >= _MAX_INTEGER:
            self.refuse(name, "is too large")
        if least is not None and value < least:
            self.refuse(name, f"must be {least} or more, not {value}")
        if most is not None and value > most:
            self.refuse(name, f"must be {most} or less, not {value}")

    def _object(self, name: str, value: Any) -> "Body":
        self._check_type(name, value, "an object", dict)
        return Body(value, f"{self._path}{name}.")

    def _text(self, name: str, value: Any, longest: int | None) -> str:
        self._check_type(name, value, "a string", str)
        if longest is not None and len(value) > longest:
            self.refuse(name, f"is longer than {longest} characters")
        return str(value)

    def _check_type(self, name: str, value: Any, expected: str, *kinds: type) -> None:
        if type(value) not in kinds:
            is_fraction = kinds == (int,) and type(value) is float
            found = str(value) if is_fraction else _KINDS[type(value)]
            self.refuse(name, f"must be {expected}, not {found}")

    def _check_length(self, name: str, values: Sequence[Any], most: int | None) -> None:
        if most is not None and len(values) > most:
            self.refuse(name, f"must have {most} entries or fewer, not {len(values)}")


def _characters(value: Any) -> int:
    found, left = 0, [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            found += len(value)
        elif isinstance(value, list | dict):
            left += (*value, *value.values()) if isinstance(value, dict) else value
    return found


def check_json(*texts: str) -> None:
    """Refuses JSON with too many values in all, before it is parsed."""
    if sum(text.count("\\") for text in texts) > _MAX_ESCAPES:
        raise BodyError(f"The body must have {_MAX_ESCAPES} backslashes or fewer.")
    if sum(_count_signs(text) for text in texts) <= _MAX_VALUES:
        return
    if sum(map(_count_values, texts)) > _MAX_VALUES:
        raise BodyError(f"The body must have {_MAX_VALUES} values or fewer; shorten its lists.")


def _count_values(text: str) -> int:
    """How many values a text has, or more than may be: punctuation inside strings is none."""
    found = end = 0
    for string in _TEXT.finditer(text):
        found += 1 + _count_signs(text, end, string.start())
        end = string.end()
        if found > _MAX_VALUES:
            break
    return found + _count_signs(text, end)


def _count_signs(text: str, start: int = 0, stop: int | None = None) -> int:
    """Each value follows a comma, or opens a list or an object."""
    return sum(text.count(sign, start, stop) for sign in ",[{")


def parse_json(text: str) -> Any:
    """A JSON value, with question marks for half characters. Raises ValueError if it is not JSON,
    or has a number that no float can hold, and RecursionError if it is nested too deeply.
    """
    value = json.loads(text, parse_int=_short, parse_float=_finite, parse_constant=_refuse_constant)
    if _HALF_CHARACTER.search(text):  # editors cut texts in UTF-16
        value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


def _short(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a whole number has more than {_MAX_DIGITS} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def read_keep_alive(body: Body) -> float | None:
    """Ollama's `keep_alive` in seconds, given as a number or as `10m`; None if it is missing."""
    value = body.any("keep_alive")
    if value is None:
        return None
    try:
        return duration("" if isinstance(value, list | dict) else str(value))
    except UnreadableWordError:
        body.refuse("keep_alive", "must be a number of seconds, or a time such as 10m")
