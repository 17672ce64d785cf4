"""Readers of options: each converts a word that was typed to a value."""

import json
import math
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from akunu_py.errors import InvalidRequestError

PLANNED: Final = "auto"
"""The word that leaves the number of draft tokens to the planner."""
NO_LIMIT: Final = -1

_SECONDS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIME_LETTERS: Final = 32
"""Clients send times too, and parsing a long one would block the event loop."""
_UNITS: Final = {"": 1, "M": 10**6, "G": 10**9}


class UnreadableWordError(InvalidRequestError):
    """A word that is not a valid value of an option. The message follows the option's name, so it
    has no capital letter and no full stop."""


def text(word: str) -> str:
    """Reads text; bytes that are not UTF-8 are refused."""
    if not word.isascii():  # which long texts mostly are, and which takes no time
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UnreadableWordError("the text is not valid UTF-8") from None
    return word


def on_or_off(word: str) -> bool:
    """Reads `on` or `off`."""
    if word not in ("on", "off"):
        raise UnreadableWordError(f"{word!r} is neither on nor off")
    return word == "on"


def whole_number(word: str) -> int:
    """Reads an integer."""
    try:
        return int(word)
    except ValueError:
        raise UnreadableWordError(f"{word!r} is not a whole number") from None


def number(word: str) -> float:
    """Reads a number."""
    try:
        return float(word)
    except ValueError:
        raise UnreadableWordError(f"{word!r} is not a number") from None


def token_limit(word: str) -> int | None:
    """Reads the maximum number of tokens to generate; as in mlx-lm, -1 sets no limit."""
    limit = whole_number(word)
    if limit < NO_LIMIT:
        raise UnreadableWordError(
            f"the number of tokens must be 0 or more, or {NO_LIMIT} for no limit, not {limit}"
        )
    return None if limit == NO_LIMIT else limit


def draft_tokens(word: str) -> int | None:
    """Reads a number of draft tokens, or the word that leaves it to the planner."""
    return None if word == PLANNED else whole_number(word)


def token_bias(word: str) -> tuple[int, float]:
    """Reads `ID=VALUE`."""
    token, equals, bias = word.partition("=")
    if not equals:
        raise UnreadableWordError(f"{word!r} must be ID=VALUE")
    return whole_number(token), number(bias)


def file_path(word: str) -> Path:
    """Reads a path; `~` is the user's home. As in a shell, `~NAME` of no user stays as it is."""
    if "\0" in word:
        raise UnreadableWordError("a file name cannot contain a null character")
    return Path(os.path.expanduser(text(word)))


def page_origin(word: str) -> str:
    """Reads the origin of web pages; one without a scheme would never match."""
    if word not in ("localhost", "*", "null") and "://" not in word:
        raise UnreadableWordError(f"{word!r} is not an origin such as https://example.com")
    return text(word)


def duration(word: str) -> float:
    """Reads seconds as Ollama does: `90`, `1h30m`, `500ms`; a negative number is forever."""
    number = r"\d+(?:\.\d+)?"
    is_short = len(word) <= _TIME_LETTERS
    if not is_short or not re.fullmatch(rf"-?({number}|({number}(ms|h|m|s))+)", word):
        shown = word if is_short else f"{word[:_TIME_LETTERS]}..."
        raise UnreadableWordError(f"{shown!r} is not a time such as 10m, 1h30m or 90")
    if word.startswith("-"):
        return math.inf
    parts = re.findall(rf"({number})(ms|h|m|s|)", word)
    return sum(float(value) * _SECONDS[unit] for value, unit in parts)


def byte_count(word: str) -> int:
    """Reads a number of bytes as mlx-lm's server does: `4GB`, `500M` or plain digits."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MG]B?)?", word.strip().upper())
    if found is None:
        raise UnreadableWordError(f"{word!r} is not a number of bytes such as 4GB or 500MB")
    return int(Decimal(found[1]) * _UNITS[(found[2] or "")[:1]])


def file_text(word: str) -> str:
    """Reads the text in a file."""
    try:
        return file_path(word).read_text(encoding="utf-8")
    except OSError as error:
        raise UnreadableWordError(f"{word} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UnreadableWordError(f"{word} is not UTF-8 text") from None


def chat_template(word: str) -> str | None:
    """Reads a Jinja template, or a file with one; as in mlx-lm, an empty word means none."""
    is_template = any(mark in word for mark in ("{{", "{%"))
    return word if is_template else file_text(word) if word else None


def json_object(word: str) -> dict[str, Any]:
    """Reads a JSON object."""
    try:
        given = json.loads(word)
    except (ValueError, RecursionError) as error:
        raise UnreadableWordError(f"{word} is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise UnreadableWordError(f"{word} is not a JSON object")
    return given
