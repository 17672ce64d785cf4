"""Grammar: the form that an answer must have, as a request states it. Plain Python."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, get_args

from akunu_py.errors import InvalidRequestError

Kind = Literal["json_schema", "regex", "lark"]

KIND_NAMES: Final[Mapping[str, str]] = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "grammar",
}


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must match from its first character to its last.

    Whether a schema or an expression makes sense turns out when the request begins.

    Attributes:
        kind: the language of `source`.
        source: a JSON schema as JSON text, a regular expression in the syntax of Rust's `regex`,
            or a context-free grammar in llguidance's variant of Lark.

    Raises:
        InvalidRequestError: if the kind is unknown, or a schema is no JSON.
    """

    kind: Kind
    source: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidRequestError(
                f"There is no kind of grammar {self.kind!r}; choose {', '.join(get_args(Kind))}."
            )
        if self.kind == "json_schema":
            try:
                schema = json.loads(self.source)
            except (ValueError, RecursionError) as error:
                raise InvalidRequestError(f"The JSON schema is not JSON: {error}.") from None
            if not isinstance(schema, dict | bool):
                raise InvalidRequestError("A JSON schema must be an object, or true or false.")

    @classmethod
    def json_object(cls) -> Self:
        """Any JSON object; OpenAI's `{"type": "json_object"}`."""
        return cls("json_schema", '{"type": "object"}')

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Self:
        """JSON that a schema describes.

        Raises:
            InvalidRequestError: if the schema cannot be written as JSON.
        """
        try:
            return cls("json_schema", json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"The JSON schema is not JSON: {error}.") from None

    @property
    def name(self) -> str:
        """What it is, for a sentence."""
        return KIND_NAMES[self.kind]
