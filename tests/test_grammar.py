import pytest

from akunu_py.errors import InvalidRequestError
from akunu_py.options import Grammar


def test_a_schema_may_be_an_object_or_text() -> None:
    schema = {"type": "array", "items": {"type": "number"}}
    assert Grammar.json_schema(schema) == Grammar(
        "json_schema", '{"type": "array", "items": {"type": "number"}}'
    )
    assert Grammar.json_schema(True).source == "true"


@pytest.mark.parametrize("source", ["", "{", '["a"]', "3", "[" * 100_000])
def test_invalid_schemas_are_refused(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="JSON schema"):
        Grammar("json_schema", source)


def test_values_that_json_cannot_hold_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not JSON"):
        Grammar.json_schema({"enum": [object()]})


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="gbnf"):
        Grammar("gbnf", "root ::= x")  # type: ignore[arg-type]
