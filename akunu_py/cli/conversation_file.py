"""Conversations on disk, as JSON.

A file is written completely or not at all, and only an older conversation is ever overwritten.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Final

from akunu_py.errors import InvalidRequestError, SessionFileError
from akunu_py.options import DRAFTERS, Options, Sampling
from akunu_py.package import write_atomically
from akunu_py.text.tokenizer import Message

_FORMAT: Final = "akunu-py conversation"
_VERSION: Final = 1
_ROLES: Final = ("system", "user", "assistant")
_KINDS: Final = {float: (float, int), int: (int,), bool: (bool,), NoneType: (int, NoneType)}
"""The types that a setting may have, by the type of its default."""


@dataclass(frozen=True)
class SavedConversation:
    """The content of a file: who answered, what was said, and the options for the next answer."""

    model: str
    messages: Sequence[Message]
    options: Options = field(default_factory=Options)


def save_conversation(path: Path, saved: SavedConversation) -> None:
    """Writes a conversation; replaces an older one.

    Raises:
        SessionFileError: if it cannot be written; an older one is intact then.
    """
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": saved.model,
        "messages": [dict(message) for message in saved.messages],
        "settings": asdict(saved.options),
    }
    text = json.dumps(content, ensure_ascii=False, indent=2)
    target = Path(os.path.realpath(path))  # a link stays a link
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")  # a device or a pipe
            return
        if target.exists():
            _refuse_foreign(path)
        write_atomically(target, text)
    except OSError as error:
        raise SessionFileError(
            f"The conversation could not be saved to {path}: {error.strerror}."
        ) from error


def load_conversation(path: Path) -> SavedConversation:
    """Reads a conversation.

    Raises:
        SessionFileError: if the file cannot be read or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SessionFileError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise _foreign(path, "it is not JSON in UTF-8") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise _foreign(path, "it was written by another program")
    if content.get("version") != _VERSION:
        raise _foreign(path, "it was written by another version of this program")
    try:
        messages = [_read_message(message) for message in content["messages"]]
        options = _read_options(content["settings"])
        return SavedConversation(str(content["model"]), messages, options)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _foreign(path, f"it is damaged ({error})") from error


def _refuse_foreign(path: Path) -> None:
    try:
        load_conversation(path)
    except SessionFileError as error:
        raise SessionFileError(f"{error} Choose another name to save to.") from None


def _foreign(path: Path, reason: str) -> SessionFileError:
    return SessionFileError(f"{path} holds no saved conversation: {reason}.")


def _read_message(message: Any) -> Message:
    role, content = message["role"], _typed(message["content"], str)
    if role not in _ROLES:
        raise ValueError(f"a message of {role!r}")
    content.encode()  # JSON can hold half a character, which no tokenizer accepts
    return {"role": role, "content": content}


def _read_options(saved: dict[str, Any]) -> Options:
    limit = saved["max_tokens"]
    # A file of an older version has fewer settings; the defaults do what that version did.
    settings = asdict(Options()) | saved
    sampling = asdict(Sampling()) | settings["sampling"]
    plain = {
        name: _typed(sampling[name], *_KINDS[type(default)])
        for name, default in asdict(Sampling()).items()
        if name != "logit_bias"
    }
    biases = [(_typed(token, int), _typed(bias, float, int)) for token, bias in
              sampling["logit_bias"]]  # fmt: skip
    drafter = settings["drafter"]
    if drafter not in DRAFTERS:
        drafter = "auto"  # a chat may have been saved with a drafter that is gone
    try:
        return Options(
            max_tokens=_typed(limit, int, NoneType),
            sampling=Sampling(**plain, logit_bias=tuple(biases)),
            stop=tuple(_typed(stop, str) for stop in settings["stop"]),
            drafter=drafter,
            num_draft_tokens=_typed(settings["num_draft_tokens"], int, NoneType),
            exact=_typed(settings["exact"], bool),
        )
    except InvalidRequestError as error:
        raise ValueError(str(error).rstrip(".")) from error


def _typed(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"{value!r} instead of {kinds[0].__name__}")
    return float(value) if float in kinds else value  # OverflowError if an integer is too large
