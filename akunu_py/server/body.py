"""Body: a request's JSON object, read field by field with types, ranges, aliases and defaults.

A field that is missing or null has its default. Unknown fields are ignored. A field of a wrong type
or outside its range raises a `BodyError` that names it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from akunu_py.server.errors import BodyError
from akunu_py.server.settings import Limits

D = TypeVar("D")

_LARGEST_INTEGER: Final = 1 << 63
"""No client means an integer beyond 64 bits."""


class Body:
    """One JSON object.

    Args:
        fields: of the object.
        limits: for its texts and lists.
        path: where the object is in the body, for messages; empty for the whole body.
    """

    def __init__(self, fields: Mapping[str, Any], limits: Limits, path: str = "") -> None:
        self._fields = fields
        self._path = path
        self.limits = limits

    @classmethod
    def parse(cls, raw: bytes, limits: Limits) -> "Body":
        """Parses a body; an empty one counts as an empty object.

        Raises:
            BodyError: if it is no JSON object.
        """
        try:
            value = json.loads(raw or b"{}", parse_constant=_refuse_constant)
            if b"\\u" in raw:  # editors cut texts in UTF-16 and may send half a character
                text = json.dumps(value, ensure_ascii=False)
                value = json.loads(text.encode(errors="replace"))
        except (ValueError, RecursionError) as error:
            raise BodyError(f"The body is not valid JSON: {error}.") from error
        if not isinstance(value, dict):
            raise BodyError(f"The body must be a JSON object, not {_kind(value)}.")
        return cls(value, limits)

    def has(self, *names: str) -> bool:
        """Whether one of these fields is there and not null."""
        return self._find(names)[1] is not None

    def text(self, *names: str, default: D) -> str | D:
        """A string."""
        name, value = self._find(names)
        return default if value is None else self._text(name, value)

    def texts(self, *names: str, most: int | None = None) -> tuple[str, ...]:
        """A list of strings, or one string; none if it is missing."""
        name, value = self._find(names)
        values = [] if value is None else value if isinstance(value, list) else [value]
        self._check_length(name, values, most)
        return tuple(self._text(f"{name}[{i}]", entry) for i, entry in enumerate(values))

    def integer(
        self, *names: str, default: D, least: int | None = None, most: int | None = None
    ) -> int | D:
        """A whole number within a range; `128.0` counts as one."""
        name, value = self._find(names)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(name, "a whole number", value)
        if abs(value) >= _LARGEST_INTEGER:
            self.refuse(name, "is too large")
        self._check_range(name, value, least, most)
        return value

    def number(
        self, *names: str, default: D, least: float | None = None, most: float | None = None
    ) -> float | D:
        """A finite number within a range."""
        name, value = self._find(names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, "a number", value)
        if not math.isfinite(value) or abs(value) >= _LARGEST_INTEGER:
            self.refuse(name, "is too large")
        self._check_range(name, value, least, most)
        return float(value)

    def flag(self, *names: str, default: D) -> bool | D:
        """A boolean."""
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._refuse(name, "true or false", value)
        return value

    def object(self, *names: str) -> "Body":
        """An object; an empty one if it is missing."""
        name, value = self._find(names)
        if value is None:
            value = {}
        return self._object(name, value)

    def objects(self, *names: str, most: int | None = None) -> list["Body"]:
        """A list of objects; an empty one if it is missing."""
        name, values = self._list(names, most)
        return [self._object(f"{name}[{i}]", entry) for i, entry in enumerate(values)]

    def values(self, *names: str, most: int | None = None) -> list[Any]:
        """A list of anything; an empty one if it is missing."""
        return self._list(names, most)[1]

    def any(self, *names: str) -> Any:
        """A value of any of JSON's types; None if it is missing."""
        return self._find(names)[1]

    def names(self) -> list[str]:
        """The names of all fields."""
        return list(self._fields)

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raises the error that says why a field cannot be served.

        Args:
            name: the field.
            why: the rest of the sentence after the field's name, without the full stop.
        """
        raise BodyError(f"`{self._path}{name}` {why}.", f"{self._path}{name}")

    def _find(self, names: Sequence[str]) -> tuple[str, Any]:
        """The first of several aliases that is there, and its value."""
        for name in names:
            if self._fields.get(name) is not None:
                return name, self._fields[name]
        return names[0], None

    def _list(self, names: Sequence[str], most: int | None) -> tuple[str, list[Any]]:
        name, value = self._find(names)
        if value is None:
            return name, []
        if not isinstance(value, list):
            self._refuse(name, "a list", value)
        self._check_length(name, value, most)
        return name, value

    def _object(self, name: str, value: Any) -> "Body":
        if not isinstance(value, dict):
            self._refuse(name, "an object", value)
        return Body(value, self.limits, f"{self._path}{name}.")

    def _text(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            self._refuse(name, "a string", value)
        if len(value) > self.limits.prompt_characters:
            self.refuse(name, f"is longer than {self.limits.prompt_characters} characters")
        return value

    def _check_range(
        self, name: str, value: float, least: float | None, most: float | None
    ) -> None:
        if least is not None and value < least:
            self.refuse(name, f"must be {least} or more, not {value}")
        if most is not None and value > most:
            self.refuse(name, f"must be {most} or less, not {value}")

    def _check_length(self, name: str, values: Sequence[Any], most: int | None) -> None:
        if most is not None and len(values) > most:
            self.refuse(name, f"must have {most} entries or fewer, not {len(values)}")

    def _refuse(self, name: str, expected: str, value: Any) -> NoReturn:
        self.refuse(name, f"must be {expected}, not {_kind(value)}")


def _kind(value: Any) -> str:
    """The name of a value's type in JSON."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return "null" if value is None else names.get(type(value), "an object")


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
