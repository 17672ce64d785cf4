"""ConversationFile: a conversation on disk, as JSON.

A file is written whole or not at all, and nothing but an older conversation is ever overwritten.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from akunu_py.drafting import DRAFTER_NAMES, MODEL_DRAFTER
from akunu_py.errors import InvalidRequestError, SessionFileError
from akunu_py.options import Options, Sampling
from akunu_py.package import write_atomically
from akunu_py.text.tokenizer import Message

_FORMAT: Final = "akunu-py conversation"
_VERSION: Final = 1
_ROLES: Final = ("system", "user", "assistant")


@dataclass(frozen=True)
class SavedConversation:
    """What is saved of a conversation.

    Attributes:
        model: the name of the model that answered.
        messages: what was said.
        options: how the next answer was to be made.
    """

    model: str
    messages: Sequence[Message]
    options: Options = field(default_factory=Options)


class ConversationFile:
    """A file that holds one conversation.

    Args:
        path: where; `~` is the user's home.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser()

    def save(self, saved: SavedConversation) -> None:
        """Writes a conversation, in place of an older one if there is one.

        Raises:
            SessionFileError: if it cannot be written; the older one is intact then.
        """
        content = json.dumps(
            {
                "format": _FORMAT,
                "version": _VERSION,
                "model": saved.model,
                "messages": [dict(message) for message in saved.messages],
                "settings": asdict(saved.options),
            },
            ensure_ascii=False,
            indent=2,
        )
        target = Path(os.path.realpath(self.path))  # a link goes on pointing at what is written
        try:
            if target.is_file():
                self._refuse_foreign()
                write_atomically(target, content)
            elif target.exists():
                target.write_text(content, encoding="utf-8")  # a device or a pipe
            else:
                write_atomically(target, content)
        except OSError as error:
            raise SessionFileError(
                f"The conversation could not be saved to {self.path}: {error.strerror}."
            ) from error

    def load(self) -> SavedConversation:
        """Reads a conversation.

        Raises:
            SessionFileError: if the file cannot be read or holds something else.
        """
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SessionFileError(f"{self.path} cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise self._foreign("it is not JSON in UTF-8") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise self._foreign("it was written by another program")
        if content.get("version") != _VERSION:
            raise self._foreign("it was written by another version of this program")
        try:
            messages = [_read_message(message) for message in content["messages"]]
            options = _read_options(content["settings"])
            return SavedConversation(str(content["model"]), messages, options)
        except (KeyError, TypeError, ValueError) as error:
            raise self._foreign(f"it is damaged ({error})") from error

    def _refuse_foreign(self) -> None:
        try:
            self.load()
        except SessionFileError as error:
            raise SessionFileError(f"{error} Choose another name to save to.") from None

    def _foreign(self, reason: str) -> SessionFileError:
        return SessionFileError(f"{self.path} holds no saved conversation: {reason}.")


def _read_message(message: Any) -> Message:
    role, content = message["role"], _typed(message["content"], str)
    if role not in _ROLES:
        raise ValueError(f"a message of {role!r}")
    content.encode()  # JSON can spell out halves of characters, which no tokenizer takes
    return {"role": role, "content": content}


def _read_options(settings: dict[str, Any]) -> Options:
    limit = settings["max_tokens"]
    # A file of an older version has fewer settings; the others are as they were then.
    settings = asdict(Options()) | settings
    sampling, drafts = asdict(Sampling()) | settings["sampling"], settings["num_draft_tokens"]
    if settings["drafter"] not in (*DRAFTER_NAMES, MODEL_DRAFTER):
        raise ValueError(f"the unknown drafter {settings['drafter']!r}")
    try:
        return Options(
            max_tokens=None if limit is None else _typed(limit, int),
            sampling=Sampling(
                temperature=_typed(sampling["temperature"], float, int),
                top_p=_typed(sampling["top_p"], float, int),
                top_k=_typed(sampling["top_k"], int),
                min_p=_typed(sampling["min_p"], float, int),
                seed=None if sampling["seed"] is None else _typed(sampling["seed"], int),
                repetition_penalty=_typed(sampling["repetition_penalty"], float, int),
                repetition_context_size=_typed(sampling["repetition_context_size"], int),
                presence_penalty=_typed(sampling["presence_penalty"], float, int),
                frequency_penalty=_typed(sampling["frequency_penalty"], float, int),
                infill=_typed(sampling["infill"], bool),
                logit_bias=tuple(
                    (_typed(token, int), _typed(bias, float, int))
                    for token, bias in sampling["logit_bias"]
                ),
            ),
            stop=tuple(_typed(stop, str) for stop in settings["stop"]),
            drafter=settings["drafter"],
            num_draft_tokens=None if drafts is None else _typed(drafts, int),
            exact=_typed(settings["exact"], bool),
        )
    except InvalidRequestError as error:
        raise ValueError(str(error).rstrip(".")) from error


def _typed(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"{value!r} where {kinds[0].__name__} was expected")
    return value
