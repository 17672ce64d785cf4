"""`json_schema` and `grammar`: the form that llama-server's clients want an answer in."""

from typing import Final

from akunu_py.options import Grammar
from akunu_py.server.body import Body

_LONGEST: Final = 1 << 16


def read_grammar(body: Body) -> Grammar | None:
    """What the answer must match: a JSON schema, or a grammar in GBNF or in llguidance's Lark.

    Raises:
        BodyError: if both are given, or one makes no sense.
    """
    schema, grammar = body.any("json_schema"), body.text("grammar", default="")
    if schema is not None and grammar:
        body.refuse("grammar", "cannot be followed beside `json_schema`")
    if schema is not None:
        if not isinstance(schema, dict | bool):
            body.refuse("json_schema", "must be an object, or true or false")
        return Grammar.json_schema(schema)
    return Grammar("lark", _lark(body, grammar)) if grammar else None


def _lark(body: Body, grammar: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark  # noqa: PLC0415  (most requests need none)

    if len(grammar) > _LONGEST:
        body.refuse("grammar", f"is longer than {_LONGEST} characters")
    try:
        return any_to_lark(grammar)
    except Exception as error:  # the converter stumbles over nonsense in many ways
        body.refuse("grammar", f"cannot be read: {' '.join(str(error).split())}")
