"""Grammars of requests, and GBNF's escapes and tokens as llama.cpp writes them."""

from time import process_time

import pytest

from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError, UnreadableRequestError
from akunu_py.options import Grammar
from akunu_py.sampling.constraint_factory import ConstraintFactory
from akunu_py.text.gbnf import gbnf_to_lark, tokens_in
from akunu_py.text.json_schema import one_line, sample_arguments


def takes(engine: Engine, grammar: str, text: str) -> bool:
    """Whether a grammar takes a whole text."""
    tokenizer = engine.tokenizer
    lark = gbnf_to_lark(grammar, tokenizer.token_id)
    constraint = ConstraintFactory(tokenizer, 320).make(Grammar("lark", lark), 5)
    tokens = tokenizer.encode(text, special_tokens=False)
    return constraint.extend(5, tokens) == len(tokens) and constraint.complete


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (r'root ::= "\x41\u0042\U00000043" "!"', "ABC!", "AB!"),
        (r'root ::= "\[\]\"\\" "!"', '[]"\\!', "[]!"),
        (r'root ::= "a\x01b"', "a\x01b", "ab"),
        (r'root ::= [a\-z] "!"', "-!", "b!"),
        (r'root ::= [\x30-\u0039] "!"', "7!", "a!"),
        (r'root ::= [^\]\n&&x] "!"', "[!", "]!"),
        (r'root ::= [\U0001F600] "!" # "a comment', "😀!", "a!"),
        ('root ::= <|fim_suffix|> "!"', "<|fim_suffix|>!", "x!"),
        ('root ::= !<|fim_suffix|> "!"', "x!", "<|fim_suffix|>!"),
        ('root ::= word " " <[261]> "!"\nword ::= [a-z]+', "abc <|fim_suffix|>!", "abc !"),
    ],
)
def test_escapes_and_tokens(engine: Engine, grammar: str, good: str, bad: str) -> None:
    assert takes(engine, grammar, good)
    assert not takes(engine, grammar, bad)


def test_lark_stays_as_it_is(engine: Engine) -> None:
    assert gbnf_to_lark('start: "a"', engine.tokenizer.token_id) == 'start: "a"'


@pytest.mark.parametrize(
    "grammar", ["root ::= <|nothing|>", r'root ::= "\UFFFFFFFF"', "root ::= ("]
)
def test_what_cannot_be_read_is_a_value_error(engine: Engine, grammar: str) -> None:
    with pytest.raises((ValueError, UnreadableRequestError)):
        gbnf_to_lark(grammar, engine.tokenizer.token_id)


@pytest.mark.parametrize("opening", ["[", '"\\', '["', "[\\", "<a", "!<"])
def test_what_never_ends_is_looked_through_once(opening: str) -> None:
    begun = process_time()
    assert tokens_in(opening * 30_000, lambda _: 1) == {}
    assert process_time() - begun < 1


def test_a_reason_that_quotes_a_long_text_keeps_its_end() -> None:
    begun, what = process_time(), "regex parse error:"
    reason = f"{what}\n    {what * 50_000}\n    ^\nerror: look-around is not supported"
    assert one_line(reason) == f"{what} look-around is not supported"
    assert len(one_line(what * 50_000)) <= 300
    assert process_time() - begun < 1


def test_a_schema_may_be_an_object_or_text() -> None:
    schema = {"type": "array", "items": {"type": "number"}}
    assert Grammar.json_schema(schema) == Grammar(
        "json_schema", '{"type": "array", "items": {"type": "number"}}'
    )
    assert Grammar.json_schema(True).source == "true"


def test_samples_of_arguments_are_short() -> None:
    long = {"$ref": "#/$defs/long"}
    properties = {"a": long, "b": long, "c": {"enum": ["short"]}}
    schema = {"properties": properties, "$defs": {"long": {"enum": ["x" * 1000]}}}
    tool = {"function": {"name": "f", "parameters": schema}}
    assert sample_arguments(tool) == {"a": "x", "b": "x", "c": "short"}


@pytest.mark.parametrize("source", ["", "{", '["a"]', "3", "[" * 100_000])
def test_invalid_schemas_are_refused(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="JSON schema"):
        Grammar("json_schema", source)


def test_values_that_json_cannot_hold_and_unknown_kinds_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not JSON"):
        Grammar.json_schema({"enum": [object()]})
    with pytest.raises(InvalidRequestError, match="gbnf"):
        Grammar("gbnf", "root ::= x")  # type: ignore[arg-type]
