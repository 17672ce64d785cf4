"""The grammars of requests: JSON schemas, regular expressions and others, of all APIs."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from akunu_py.errors import UnreadableRequestError
from akunu_py.options import Grammar
from akunu_py.server.body import Body
from akunu_py.server.errors import BodyError
from akunu_py.text.gbnf import tokens_in
from akunu_py.text.json_schema import bounded, closed, json_lark, one_line, unmet_in
from akunu_py.text.sandbox import gbnf_to_lark
from akunu_py.text.tokenizer import Tokenizer

_MAX_GRAMMAR_LENGTH: Final = 1 << 16
_MAX_EXPRESSION_LENGTH: Final = 1 << 12
_MAX_SCHEMA_LENGTH: Final = 1 << 20
GRAMMAR_FIELDS: Final = (
    "json_schema", "guided_json", "regex", "guided_regex", "grammar", "guided_grammar",
    "guided_choice", "structured_outputs", "response_format", "format", "output_format",
    "output_config", "text", "tools",
)  # fmt: skip
"""The fields of all APIs that may have a grammar: they take long to read."""
_GRAMMARS: Final = (
    ("json_schema", "guided_json"), ("regex", "guided_regex"), ("grammar", "guided_grammar"),
    ("guided_choice",),
)  # fmt: skip
_NESTED_GRAMMARS: Final = (("json",), ("regex",), ("grammar",), ("choice",))


def read_format(body: Body, name: str) -> Grammar | None:
    """The format of an answer, in OpenAI's three kinds; `json_object` may have a `schema`, as in
    llama-server."""
    given = body.object(name)
    kind = given.text("type", default="text")
    if kind == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        given.refuse("type", "must be text, json_object or json_schema")
    if kind == "json_object" and not given.has("schema"):
        return Grammar.json_object()
    is_flat = given.has("schema") or name != "response_format"
    holder = given if is_flat else given.object("json_schema")
    schema = holder.any("schema")
    if not isinstance(schema, dict | bool):
        holder.refuse("schema", "must be a JSON schema")
    return schema_grammar(schema, strict=holder.flag("strict", default=False))


def schema_grammar(schema: Mapping[str, Any] | bool, *, strict: bool = False) -> Grammar:
    """The grammar of a JSON schema, with the constraints that it leaves out; a `strict` schema with
    such constraints is refused."""
    grammar = Grammar.json_schema(schema)
    if len(grammar.source) > _MAX_SCHEMA_LENGTH:
        raise BodyError(f"A JSON schema must be shorter than {_MAX_SCHEMA_LENGTH} characters.")
    try:
        unmet = unmet_in(f"start: {json_lark(closed(bounded(schema)))}")
        reason = f"a `strict` schema cannot require {unmet[0]}" if strict and unmet else ""
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        reason = one_line(str(error))
    if reason:
        raise UnreadableRequestError(f"The JSON schema cannot be used: {reason}.")
    return replace(grammar, unmet=unmet)


def read_grammar(body: Body, tokenizer: Tokenizer) -> Grammar | None:
    """A grammar that the answer must match: llama-server's `json_schema`; `grammar` in GBNF or
    llguidance's Lark; `regex`; or vLLM's names for these, and its choice of texts."""
    found = []
    nested = body.object("structured_outputs")
    for holder, kinds in ((body, _GRAMMARS), (nested, _NESTED_GRAMMARS)):
        schema, regex, grammar, (choice,) = kinds
        if holder.has(*schema):
            value = holder.any(*schema)
            if not isinstance(value, dict | bool):
                holder.refuse(schema[0], "must be an object, or true or false")
            found.append(schema_grammar(value))
        if text := holder.text(*regex, default="", longest=_MAX_EXPRESSION_LENGTH):
            found.append(Grammar("regex", text))
        if text := holder.text(*grammar, default="", longest=_MAX_GRAMMAR_LENGTH):
            found.append(Grammar("lark", _lark(holder, text, tokenizer)))
        if choices := holder.texts(choice, most=_MAX_GRAMMAR_LENGTH):
            if not all(choices):
                holder.refuse(choice, "must have no empty text")
            if sum(map(len, choices)) > _MAX_GRAMMAR_LENGTH:
                holder.refuse(choice, f"is longer than {_MAX_GRAMMAR_LENGTH} characters")
            found.append(Grammar("lark", f"start: {' | '.join(map(json.dumps, choices))}"))
    if nested.flag("json_object", default=False):
        found.append(Grammar.json_object())
    if nested.has("structural_tag"):
        nested.refuse("structural_tag", "is not supported; send `tools`")
    if len(found) > 1:
        body.refuse("grammar", "cannot be combined with `json_schema` or `regex`")
    return found[0] if found else None


def _lark(body: Body, grammar: str, tokenizer: Tokenizer) -> str:
    try:
        return gbnf_to_lark(grammar, tokens_in(grammar, tokenizer.token_id))
    except ValueError as error:
        body.refuse("grammar", f"cannot be read: {error}", quotes=True)
