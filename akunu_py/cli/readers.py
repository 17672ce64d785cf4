"""Readers of the command line: a word in, a value of an option out.

A word that makes no sense raises ArgumentTypeError. Plain Python.
"""

import json
import os
import re
from argparse import ArgumentTypeError
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from akunu_py.errors import InvalidRequestError
from akunu_py.options import Grammar

PLANNED: Final = "auto"
"""The word that leaves the number of draft tokens to the planner."""

_NO_LIMIT: Final = -1
_UNITS: Final = {"": 1, "M": 10**6, "G": 10**9}


def text(word: str) -> str:
    """Reads text; bytes that are not UTF-8 are refused."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ArgumentTypeError("the text is not valid UTF-8") from None
    return word


def whole_number(word: str) -> int:
    """Reads an integer."""
    try:
        return int(word)
    except ValueError:
        raise ArgumentTypeError(f"{word!r} is not a whole number") from None


def number(word: str) -> float:
    """Reads a number."""
    try:
        return float(word)
    except ValueError:
        raise ArgumentTypeError(f"{word!r} is not a number") from None


def token_limit(word: str) -> int | None:
    """Reads a number of tokens to generate at most: as in mlx-lm, -1 sets no limit."""
    limit = whole_number(word)
    if limit < _NO_LIMIT:
        raise ArgumentTypeError(
            f"the number of tokens must be 0 or more, or {_NO_LIMIT} for no limit, not {limit}"
        )
    return None if limit == _NO_LIMIT else limit


def draft_tokens(word: str) -> int | None:
    """Reads a number of draft tokens, or the word that leaves it to the planner."""
    return None if word == PLANNED else whole_number(word)


def token_bias(word: str) -> tuple[int, float]:
    """Reads `ID=VALUE`."""
    token, equals, bias = word.partition("=")
    if not equals:
        raise ArgumentTypeError(f"{word!r} must be ID=VALUE")
    return whole_number(token), number(bias)


def file_path(word: str) -> Path:
    """Reads a path; `~` is the user's home. As in a shell, the name of no user stays as it is."""
    if "\0" in word:
        raise ArgumentTypeError("a file name cannot contain a null character")
    return Path(os.path.expanduser(text(word)))


def name_list(word: str) -> tuple[str, ...]:
    """Reads names with commas between them."""
    names = tuple(name.strip() for name in text(word).split(",") if name.strip())
    if not names:
        raise ArgumentTypeError("the name must not be empty")
    return names


def page_origin(word: str) -> str:
    """Reads the origin of web pages; one without a scheme would never match."""
    if word not in ("localhost", "*", "null") and "://" not in word:
        raise ArgumentTypeError(f"{word!r} is not an origin such as https://example.com")
    return text(word)


def byte_count(word: str) -> int:
    """Reads a number of bytes as mlx-lm's server does: `4GB`, `500M` or plain digits."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MG]B?)?", word.strip().upper())
    if found is None:
        raise ArgumentTypeError(f"{word!r} is not a number of bytes such as 4GB or 500MB")
    return int(Decimal(found[1]) * _UNITS[(found[2] or "")[:1]])


def schema_file(word: str) -> Grammar:
    """Reads the JSON schema in a file."""
    try:
        return Grammar("json_schema", _content(word))
    except InvalidRequestError as error:
        raise ArgumentTypeError(str(error)) from None


def chat_template(word: str) -> str | None:
    """Reads a Jinja template, or the file that holds one; as in mlx-lm, an empty one is none."""
    is_template = any(mark in word for mark in ("{{", "{%"))
    return word if is_template else _content(word) if word else None


def template_args(word: str) -> dict[str, Any]:
    """Reads a JSON object."""
    try:
        given = json.loads(word)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"{word} is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ArgumentTypeError(f"{word} is not a JSON object")
    return given


def _content(word: str) -> str:
    """The text in a file."""
    try:
        return file_path(word).read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentTypeError(f"{word} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ArgumentTypeError(f"{word} is not UTF-8 text") from None
