"""Standard input as text: UTF-8 or an error that says where it is not."""

import sys
from collections.abc import Iterator
from typing import BinaryIO

from akunu_py.errors import InvalidRequestError


def read_text() -> str:
    """Everything on standard input, as it is.

    Raises:
        InvalidRequestError: if it is not valid UTF-8.
    """
    return _decode(_bytes().read(), "Standard input")


def read_lines() -> Iterator[str]:
    """The lines of standard input as they arrive, without their ends.

    Raises:
        InvalidRequestError: if one is not valid UTF-8.
    """
    for number, line in enumerate(_bytes(), start=1):
        yield _decode(line, f"Line {number} of standard input").rstrip("\r\n")


def _bytes() -> BinaryIO:
    if sys.stdin is None:
        raise InvalidRequestError("Standard input is closed.")
    return sys.stdin.buffer


def _decode(content: bytes, what: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{what} is not valid UTF-8 (byte {error.start + 1}); convert it first, with iconv say."
        ) from None
