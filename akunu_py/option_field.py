"""How an option is declared: once, as a field of a frozen dataclass.

`option()` keeps the help, the range and the spelling of an option as the metadata of its field. The
command line, the chat and the server read them with `options_in`; `check_options` refuses numbers
outside their ranges.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from akunu_py.errors import InvalidRequestError
from akunu_py.option_words import (
    UnreadableWordError,
    file_path,
    number,
    on_or_off,
    text,
    whole_number,
)

T = TypeVar("T")

_MOST_MEANT: Final = 3
_OPTION: Final = "option"
_PART: Final = "part"


@dataclass(frozen=True)
class Range:
    """The numbers that an option accepts, both ends included; `above` excludes the lower end."""

    least: float
    most: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def __str__(self) -> str:
        if self.above:
            return f"above {self.least:g} and at most {self.most:g}"
        if self.most == math.inf:
            return f"{self.least:g} or more"
        return f"from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class OneOf:
    """The few numbers that an option accepts."""

    numbers: tuple[int, ...]

    def __contains__(self, value: float) -> bool:
        return value in self.numbers

    def __str__(self) -> str:
        *others, last = map(str, self.numbers)
        return f"{', '.join(others)} or {last}"


@dataclass(frozen=True, kw_only=True)
class Option:
    """What is declared about a field: what it is for (`help`, half a sentence; `meaning` where that
    is only true of the flag), the values `within`, and how it is typed and shown, as in argparse.

    By default, `flag` is made from the name (without dashes: a positional argument; None: not on
    the command line), `read` (which raises `UnreadableWordError`) and `metavar` from the type.
    `const` is the value without a word, `quick` the default with `--quick`; `repeated` takes one
    word each time; `off` is another flag, its value and help; `wire` are further names in requests
    to the server.
    """

    name: str = ""
    default: Any = None
    help: str
    meaning: str = ""
    within: Range | OneOf | None = None
    flag: str | None = ""
    short: str | None = None
    read: Callable[[str], Any] | None = None
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    shown: str | None = None
    group: str = ""
    nargs: Literal["+", "*", "?"] | None = None
    const: Any = None
    repeated: bool = False
    required: bool = False
    quick: Any = None
    off: tuple[str, Any, str] | None = None
    wire: tuple[str, ...] = ()

    @property
    def is_switch(self) -> bool:
        return isinstance(self.default, bool) or self.read is on_or_off

    @property
    def word(self) -> str:
        return (self.flag or "").lstrip("-")

    @property
    def bounds(self) -> tuple[float, float]:
        within = self.within
        return (within.least, within.most) if isinstance(within, Range) else (-math.inf, math.inf)

    @property
    def wire_names(self) -> tuple[str, ...]:
        return (self.name, *self.wire)

    def read_word(self, word: str) -> Any:
        """Converts a word to a value; a switch takes `on` and `off`."""
        if self.is_switch:
            return on_or_off(word)
        value = (self.read or text)(word)
        if self.choices is not None and value not in self.choices:
            raise UnreadableWordError(f"{word!r} is not one of {', '.join(self.choices)}")
        return value


@dataclass(frozen=True)
class Part:
    """How a dataclass uses the options of another in one of its fields: the heading in the help,
    the fields that cannot be set here, and other defaults.
    """

    group: str = ""
    without: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


def option(default: Any, help: str, *, is_secret: bool = False, **spelling: Any) -> Any:
    """A dataclass field that is an option; `spelling` sets further fields of `Option`."""
    metadata = {_OPTION: Option(help=help, **spelling)}
    return field(default=default, repr=not is_secret, metadata=metadata)


def part(
    make: Callable[[], Any],
    group: str = "",
    *,
    without: tuple[str, ...] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Any:
    """A dataclass field that holds further options; for the arguments see `Part`."""
    return field(default_factory=make, metadata={_PART: Part(group, without, defaults or {})})


def borrowed(kind: type, name: str, default: Any = MISSING, **spelling: Any) -> Any:
    """A field declared like one of another dataclass, perhaps with another default or other fields
    of `Option`."""
    (like,) = [it for it in fields(kind) if it.name == name]
    default = like.default if default is MISSING else default
    return field(default=default, metadata={_OPTION: replace(like.metadata[_OPTION], **spelling)})


@cache
def options_in(kind: type) -> Mapping[str, Option]:
    """The options that a dataclass declares, by field name."""
    hints, found = _hints_of(kind), {}
    for it in fields(kind):
        declared: Option | None = it.metadata.get(_OPTION)
        if declared is not None:
            flag = f"--{it.name.replace('_', '-')}" if declared.flag == "" else declared.flag
            element = _element(hints[it.name])
            metavar = declared.metavar or _METAVARS.get(element)
            if declared.choices and declared.metavar is None:
                metavar = f"{{{','.join(declared.choices)}}}"
            found[it.name] = replace(
                declared,
                name=it.name,
                default=it.default,
                flag=flag,
                read=declared.read or _READERS.get(element),
                metavar=metavar,
            )
    return found


@cache
def parts_in(kind: type) -> Mapping[str, tuple[Any, Part]]:
    """The dataclasses of options in the fields of a dataclass, and how it uses each."""
    hints = _hints_of(kind)
    return {
        it.name: (hints[it.name], it.metadata[_PART]) for it in fields(kind) if _PART in it.metadata
    }


def documented(kind: type[T]) -> type[T]:
    """Adds the help of the options of a dataclass to its docstring."""
    declared: Any = kind
    lines = [f"        {it.name}: {it.meaning or it.help}." for it in options_in(declared).values()]
    kind.__doc__ = "\n".join((f"{(kind.__doc__ or '').rstrip()}\n\n    Attributes:", *lines, ""))
    return kind


def with_named(options: T, named: Mapping[str, Any]) -> T:
    """The options with some replaced by name; raises an `InvalidRequestError` for an unknown
    name."""
    kind: Any = options.__class__
    if not is_dataclass(options.__class__):
        raise InvalidRequestError(f"The options must be `akunu_py.Options`, not {kind.__name__}.")
    known = options_in(kind)
    for name in named:
        if name not in known:
            meant = [it.name for it in known.values() if name in it.wire]
            hint = f"did you mean {meant[0]}?" if meant else did_you_mean(name, list(known))
            raise InvalidRequestError(
                f"There is no option `{name}`; {hint or f'see `help(akunu_py.{kind.__name__})`.'}"
            )
    return replace(options, **named)  # type: ignore[type-var]


def did_you_mean(word: str, names: Sequence[str]) -> str:
    """A question that suggests similar names, if possible ones that share the beginning; empty if
    no name is similar.
    """
    from difflib import get_close_matches  # noqa: PLC0415  (needed only when something is wrong)

    meant = [name for name in names if name.startswith(word) or word.startswith(name)]
    if not 0 < len(meant) <= _MOST_MEANT:
        meant = get_close_matches(word, names, n=1)
    return f"did you mean {' or '.join(meant)}?" if meant else ""


def check_options(options: Any) -> None:
    """Raises an `InvalidRequestError` for values of the wrong type or out of range. Turns lists
    into tuples and NumPy's numbers into Python's. For `__post_init__`."""
    hints = _hints_of(options.__class__)
    for name, declared in options_in(options.__class__).items():
        value, within = getattr(options, name), declared.within
        if isinstance(declared.default, tuple) and isinstance(value, Sequence | Mapping):
            value = value.items() if isinstance(value, Mapping) else value
            value = (value,) if isinstance(value, str) else tuple(value)
        if not _is_a(value, hints[name]):
            raise InvalidRequestError(f"`{name}` must be {_named(hints[name])}, not {value!r}.")
        object.__setattr__(options, name, value := _plain(value))
        for each in value if isinstance(value, tuple) else (value,):
            try:
                text(each if isinstance(each, str) else "")
            except UnreadableWordError as error:
                raise InvalidRequestError(f"`{name}`: {error}.") from None
            if within and each is not None and each not in within:
                found = f"{each:g}" if isinstance(each, float) else each
                raise InvalidRequestError(f"`{name}` must be {within}, not {found}.")


_hints_of = cache(get_type_hints)


@cache
def _parts_of(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint) or hint, get_args(hint)


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a value has a type; integers count as numbers, and True as neither."""
    kind, inner = _parts_of(hint)
    if type(value) is kind and not inner:
        return True
    if kind in (Union, UnionType):
        return any(_is_a(value, one) for one in inner)
    if kind is tuple and isinstance(value, tuple):
        inner = inner[:1] * len(value) if inner[1:] == (...,) else inner
        return len(value) == len(inner) and all(map(_is_a, value, inner))
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    return isinstance(value, kind)


def _plain(value: Any) -> Any:
    """The value with Python's own numbers; NumPy's may overflow later."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if type(value) in (bool, int, float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _named(hint: Any) -> str:
    kind, inner = get_origin(hint) or hint, [it for it in get_args(hint) if it is not NoneType]
    if kind in (Union, UnionType):
        return _named(inner[0])
    if kind is tuple:
        one = "a pair" if get_origin(inner[0]) is tuple else _named(inner[0])
        return f"a tuple of {one[2:]}s"
    return _KINDS.get(kind) or f"a {kind.__name__}"


_READERS: Final[Mapping[Any, Callable[[str], Any]]] = {
    int: whole_number, float: number, str: text, Path: file_path,
}  # fmt: skip


_NUMBERS: Final[Mapping[Any, type]] = {int: Integral, float: Real}
_KINDS: Final[Mapping[Any, str]] = {
    int: "a whole number", float: "a number", str: "a string", bool: "True or False",
    Path: "a path",
}  # fmt: skip
_METAVARS: Final[Mapping[Any, str]] = {int: "N", str: "NAME", Path: "FILE"}


def _element(hint: Any) -> Any:
    """The type of one word of a field: of `tuple[int | None, ...] | None`, it is `int`."""
    while arguments := [it for it in get_args(hint) if it not in (NoneType, Ellipsis)]:
        hint = arguments[0]
    return hint
