"""A body's fields: types, ranges, aliases, and sentences about what is wrong."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.server.body import Body
from akunu_py.server.errors import BodyError
from akunu_py.server.settings import Limits


def body(**fields: Any) -> Body:
    return Body(fields, Limits(prompt_characters=100))


def test_reads_what_is_there() -> None:
    found = body(text="a", whole=3, real=0.5, on=True, many=["b", "c"], one="d", of={"x": 1})
    assert found.text("text", default=None) == "a"
    assert found.integer("whole", default=0) == 3
    assert found.number("real", default=0.0) == 0.5
    assert found.number("whole", default=0.0) == 3.0
    assert found.flag("on", default=False) is True
    assert found.texts("many") == ("b", "c")
    assert found.texts("one") == ("d",)
    assert found.object("of").integer("x", default=None) == 1


def test_missing_and_null_mean_the_default() -> None:
    found = body(nothing=None)
    for name in ("nothing", "missing"):
        assert found.text(name, default=None) is None
        assert found.integer(name, default=7) == 7
        assert found.number(name, default=0.1) == 0.1
        assert found.flag(name, default=True) is True
        assert found.texts(name) == ()
        assert found.objects(name) == []
        assert not found.has(name)


def test_the_first_alias_that_is_there_counts() -> None:
    assert body(max_tokens=5).integer("n_predict", "max_tokens", default=None) == 5
    assert body(n_predict=4, max_tokens=5).integer("n_predict", "max_tokens", default=None) == 4


def test_numbers_of_javascript_are_whole_if_they_look_it() -> None:
    assert body(n=128.0).integer("n", default=None) == 128


@pytest.mark.parametrize(
    ("fields", "read", "sentence"),
    [
        ({"x": 1}, lambda b: b.text("x", default=""), "`x` must be a string, not a number."),
        ({"x": "1"}, lambda b: b.integer("x", default=0), "must be a whole number, not a string"),
        ({"x": True}, lambda b: b.integer("x", default=0), "not a boolean"),
        ({"x": 1.5}, lambda b: b.integer("x", default=0), "must be a whole number, not a number"),
        ({"x": 10**30}, lambda b: b.integer("x", default=0), "too large"),
        ({"x": 1e300}, lambda b: b.number("x", default=0), "too large"),
        ({"x": float("inf")}, lambda b: b.number("x", default=0), "too large"),
        ({"x": []}, lambda b: b.number("x", default=0), "must be a number, not a list"),
        ({"x": -1}, lambda b: b.integer("x", default=0, least=0), "`x` must be 0 or more, not -1."),
        ({"x": 3}, lambda b: b.number("x", default=0, most=2), "must be 2 or less, not 3"),
        ({"x": 1}, lambda b: b.flag("x", default=True), "must be true or false"),
        ({"x": ["a", 1]}, lambda b: b.texts("x"), "`x[1]` must be a string"),
        ({"x": ["a"] * 3}, lambda b: b.texts("x", most=2), "must have 2 entries or fewer, not 3"),
        ({"x": "a" * 101}, lambda b: b.text("x", default=""), "longer than 100 characters"),
        ({"x": [1]}, lambda b: b.objects("x"), "`x[0]` must be an object, not a number"),
        ({"x": 1}, lambda b: b.object("x"), "`x` must be an object"),
        ({"x": {"y": 1}}, lambda b: b.object("x").text("y", default=""), "`x.y` must be a string"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], read: Any, sentence: str) -> None:
    with pytest.raises(BodyError) as error:
        read(body(**fields))
    assert sentence in str(error.value)
    assert error.value.field is not None


@pytest.mark.parametrize("raw", [b"{", b"\xff\xff", b'{"x": NaN}', b"[" * 100_000, b"1" * 5000])
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(BodyError, match="not valid JSON"):
        Body.parse(raw, Limits())


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"text"'])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BodyError, match="must be a JSON object"):
        Body.parse(raw, Limits())


def test_half_a_character_is_replaced() -> None:
    half = Body.parse(b'{"x": "a\\ud83d", "y": "\\ud83d\\ude00"}', Limits())
    assert half.text("x", default=None) == "a?"
    assert half.text("y", default=None) == "\N{GRINNING FACE}"


@given(st.binary(max_size=40))
def test_any_bytes_are_a_body_or_an_error_on_purpose(raw: bytes) -> None:
    with suppress(BodyError):
        assert Body.parse(raw, Limits()).names() is not None
