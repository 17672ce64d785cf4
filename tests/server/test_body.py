"""A body's fields: their types, ranges and aliases; and any body for every endpoint.

Whatever a body says, and whatever happened to its bytes, there is an answer, or an error in the
form of the endpoint's contract that is the client's fault; and a field of a wrong type is named.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from akunu_py.server.app import CONTRACTS
from akunu_py.server.body import Body
from akunu_py.server.errors import BodyError
from tests.server.live import LiveServer, parse_events


def body(**fields: Any) -> Body:
    return Body(fields)


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


def test_a_float_with_a_whole_value_counts_as_whole() -> None:
    assert body(n=128.0).integer("n", default=None) == 128


@pytest.mark.parametrize(
    ("fields", "read", "sentence"),
    [
        ({"x": 1}, lambda b: b.text("x", default=""), "`x` must be a string, not a number."),
        ({"x": "1"}, lambda b: b.integer("x", default=0), "must be a whole number, not a string"),
        ({"x": True}, lambda b: b.integer("x", default=0), "not a boolean"),
        ({"x": 1.5}, lambda b: b.integer("x", default=0), "must be a whole number, not 1.5"),
        ({"x": 10**30}, lambda b: b.integer("x", default=0), "too large"),
        ({"x": 1e300}, lambda b: b.number("x", default=0), "too large"),
        ({"x": float("inf")}, lambda b: b.number("x", default=0), "too large"),
        ({"x": []}, lambda b: b.number("x", default=0), "must be a number, not a list"),
        ({"x": -1}, lambda b: b.integer("x", default=0, least=0), "`x` must be 0 or more, not -1."),
        ({"x": 3}, lambda b: b.number("x", default=0, most=2), "must be 2 or less, not 3"),
        ({"x": 1}, lambda b: b.flag("x", default=True), "must be true or false"),
        ({"x": ["a", 1]}, lambda b: b.texts("x"), "`x[1]` must be a string"),
        ({"x": ["a"] * 3}, lambda b: b.texts("x", most=2), "must have 2 entries or fewer, not 3"),
        ({"x": [1]}, lambda b: b.objects("x"), "`x[0]` must be an object, not a number"),
        ({"x": 1}, lambda b: b.object("x"), "`x` must be an object"),
        ({"x": {"y": 1}}, lambda b: b.object("x").text("y", default=""), "`x.y` must be a string"),
    ],
)
def test_an_error_names_the_wrong_field(fields: dict[str, Any], read: Any, sentence: str) -> None:
    with pytest.raises(BodyError) as error:
        read(body(**fields))
    assert sentence in str(error.value)
    assert f"`{error.value.param}`" in str(error.value)


@pytest.mark.parametrize("raw", [b"{", b"\xff\xff", b'{"x": NaN}', b"[" * 100_000, b"1" * 5000])
def test_invalid_json_is_refused(raw: bytes) -> None:
    with pytest.raises(BodyError, match=r"not valid JSON|too deeply"):
        Body.parse(raw)


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"text"'])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BodyError, match="must be a JSON object"):
        Body.parse(raw)


def test_half_a_character_is_replaced() -> None:
    half = Body.parse(b'{"x": "a\\ud83d", "y": "\\ud83d\\ude00"}')
    assert half.text("x", default=None) == "a?"
    assert half.text("y", default=None) == "\N{GRINNING FACE}"


def test_a_whole_number_has_few_digits() -> None:
    assert Body.parse(b'{"x": %s}' % (b"9" * 100)).has("x")
    with pytest.raises(BodyError, match="more than 100 digits"):
        Body.parse(b'{"x": -%s}' % (b"9" * 100))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ab" * (2 << 20), "more than 4194304 characters"),
        ("\n" * (1 << 20 | 1), "1048576 backslashes or fewer"),
    ],
)
def test_the_texts_of_a_body_have_limits(text: str, sentence: str) -> None:
    with pytest.raises(BodyError, match=sentence):
        Body.parse(json.dumps({"x": [text, "b"]}).encode())


@given(st.binary(max_size=40))
def test_any_bytes_are_a_body_or_a_body_error(raw: bytes) -> None:
    with suppress(BodyError):
        Body.parse(raw).names()


Values = st.SearchStrategy[Any]

ODD: Final = (1 << 70, -(1 << 63), 1e308, "\udc80", "\0", "<|im_end|>", "a" * 70_000)
DAMAGE: Final = (b"", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\0", b"{", b"]", b",", b'"', b"1e999",
                 b"NaN", b"\\", b"[" * 5000)  # fmt: skip
JSON: Final[Values] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(-9, 9)
    | st.text(max_size=6)
    | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=4,
)
TYPES: Final[dict[str, Values]] = {
    "text": st.text(max_size=6),
    "number": st.integers(-2, 300) | st.floats(-2, 3),
    "flag": st.booleans(),
    "list": st.lists(st.integers(-1, 300) | st.text(max_size=3), max_size=3),
    "object": st.dictionaries(st.text(max_size=6), JSON, max_size=2),
}


def values(*types: str) -> Values:
    return st.one_of([TYPES[name] for name in types])


def values_but(*types: str) -> Values:
    return values(*(name for name in TYPES if name not in types))


@dataclass(frozen=True)
class Kind:
    """Valid and invalid values of a field; null counts as no field."""

    right: Values
    wrong: Values


TEXT = Kind(values("text"), values_but("text"))
NUMBER = Kind(values("number"), values_but("number"))
WHOLE = Kind(st.integers(-1, 4), values_but("number") | st.just(0.5))
FEW = Kind(st.integers(0, 4), WHOLE.wrong)
FLAG = Kind(values("flag"), values_but("flag"))
TEXTS = Kind(values("text") | st.lists(TYPES["text"], max_size=6), values_but("text", "list"))
IDS = Kind(st.lists(st.integers(-1, 400), max_size=4), values_but("list"))
OBJECT = Kind(values("object"), values_but("object"))
OBJECTS = Kind(st.lists(TYPES["object"], max_size=2), values_but("list") | st.just([1]))
PROMPT = Kind(values("text", "list"), values_but("text", "list"))
BIASES = Kind(
    st.dictionaries(st.integers(-1, 400).map(str), st.floats(-101, 101))
    | st.lists(st.tuples(st.integers(-1, 400), st.floats(-101, 101) | st.just(False))),
    values_but("list", "object"),
)
SCHEMA = Kind(values("object", "flag"), values_but("object", "flag"))
FORMAT = Kind(st.sampled_from(["json", ""]) | OBJECT.right, values_but("text", "object"))
THINK = Kind(st.sampled_from(["low", "high"]) | FLAG.right, values_but("text", "flag"))
CHOICE = Kind(st.sampled_from(["auto", "none", "required"]), values_but("text", "object"))
PARTS = st.text(max_size=6) | st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "input_text"])}, optional={"text": JSON}
    ),
    max_size=2,
)
MESSAGES = Kind(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | JSON},
            optional={"content": PARTS | JSON, "tool_calls": JSON, "name": JSON},
        ),
        max_size=3,
    ),
    OBJECTS.wrong,
)
FUNCTION = st.fixed_dictionaries({"name": st.just("f")}, optional={"parameters": JSON})
TOOLS = Kind(st.lists(st.fixed_dictionaries({"function": FUNCTION}), max_size=2), OBJECTS.wrong)
PREDICTION = Kind(
    st.fixed_dictionaries({"type": st.just("content"), "content": JSON}), OBJECT.wrong
)
RESPONSE = Kind(
    st.fixed_dictionaries({"type": st.just("json_object"), "schema": JSON})
    | st.fixed_dictionaries({"type": st.just("json_schema"), "json_schema": JSON}),
    OBJECT.wrong,
)
NAMED_TOOLS = Kind(
    st.lists(
        st.fixed_dictionaries(
            {"name": st.just("f")},
            optional={"type": st.just("function"), "parameters": JSON, "input_schema": JSON},
        ),
        max_size=2,
    ),
    OBJECTS.wrong,
)

Fields = dict[str, Kind]
SAMPLING: Fields = {
    "temperature": NUMBER, "top_k": WHOLE, "top_p": NUMBER, "min_p": NUMBER, "seed": WHOLE,
    "presence_penalty": NUMBER, "frequency_penalty": NUMBER, "stop": TEXTS, "logit_bias": BIASES,
    "num_draft_tokens": WHOLE, "xtc_probability": NUMBER, "xtc_threshold": NUMBER,
}  # fmt: skip
LLAMA: Fields = SAMPLING | {
    "n_predict": FEW, "samplers": TEXTS, "repeat_penalty": NUMBER, "repeat_last_n": WHOLE,
    "ignore_eos": FLAG, "n_probs": WHOLE, "n_cmpl": WHOLE, "stream": FLAG, "id_slot": WHOLE,
    "response_fields": TEXTS, "t_max_predict_ms": NUMBER, "return_tokens": FLAG,
    "timings_per_token": FLAG, "json_schema": SCHEMA, "grammar": TEXT,
}  # fmt: skip
OPENAI: Fields = SAMPLING | {
    "max_tokens": FEW, "n": WHOLE, "stream": FLAG, "stream_options": OBJECT,
    "repetition_penalty": NUMBER, "repetition_context_size": WHOLE, "prediction": PREDICTION,
}  # fmt: skip
CHAT: Fields = OPENAI | {
    "messages": MESSAGES, "max_completion_tokens": FEW, "logprobs": FLAG, "top_logprobs": WHOLE,
    "tools": TOOLS, "tool_choice": CHOICE, "parallel_tool_calls": FLAG, "response_format": RESPONSE,
    "chat_template_kwargs": OBJECT, "reasoning_effort": TEXT,
}  # fmt: skip
MERGE: Fields = {name: kind for name, kind in OPENAI.items() if name != "stream_options"}
EDIT: Fields = MERGE | {
    "instruction": TEXT, "path": TEXT, "language": TEXT, "format": TEXT, "answer_format": TEXT,
    "lines": IDS, "function": TEXT,
}  # fmt: skip
OLLAMA: Fields = {"stream": FLAG, "format": FORMAT, "options": OBJECT} | {
    f"options.{name}": kind
    for name, kind in (
        SAMPLING | {"num_predict": Kind(st.integers(1, 4), WHOLE.wrong), "repeat_last_n": WHOLE}
    ).items()
}
MESSAGES_FIELDS: Fields = {
    "messages": MESSAGES, "max_tokens": FEW, "stop_sequences": TEXTS,
    "system": Kind(PARTS, TEXT.wrong.filter(lambda value: value != [])),
    "stream": FLAG, "temperature": NUMBER, "top_p": NUMBER, "top_k": WHOLE,
    "tools": NAMED_TOOLS, "thinking": Kind(st.just({}), OBJECT.wrong),
    "tool_choice": Kind(st.sampled_from([{"type": "auto"}, {"type": "none"}]), OBJECT.wrong),
}  # fmt: skip
TURNS = [{"role": "user", "content": "Hi"}]


@dataclass(frozen=True)
class Door:
    """An endpoint.

    Attributes:
        usual: a body that is answered, shortly.
        fields: what may be in it; those with a dot are within an object.
        speaks: whether it takes the model that knows tools, and fills no gaps.
    """

    usual: Mapping[str, Any]
    fields: Fields
    speaks: bool = False


DOORS: Final[dict[str, Door]] = {
    "/completion": Door({"prompt": "a", "n_predict": 2}, LLAMA | {"prompt": PROMPT}),
    "/infill": Door(
        {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
        LLAMA
        | {"input_prefix": TEXT, "input_suffix": TEXT, "prompt": TEXT, "input_extra": OBJECTS},
    ),
    "/tokenize": Door(
        {"content": "a"},
        {"content": TEXT, "add_special": FLAG, "parse_special": FLAG, "with_pieces": FLAG},
    ),
    "/detokenize": Door({"tokens": [65]}, {"tokens": IDS}),
    "/apply-template": Door(
        {"messages": TURNS}, {"messages": MESSAGES, "add_generation_prompt": FLAG}, speaks=True
    ),
    "/v1/completions": Door(
        {"prompt": "a", "max_tokens": 2},
        OPENAI
        | {"prompt": PROMPT, "suffix": TEXT, "logprobs": WHOLE, "echo": FLAG, "best_of": WHOLE},
    ),
    "/v1/fim/completions": Door(
        {"prompt": "a", "suffix": "b", "max_tokens": 2},
        OPENAI | {"prompt": TEXT, "suffix": TEXT, "random_seed": WHOLE},
    ),
    "/v1/chat/completions": Door({"messages": TURNS, "max_tokens": 2}, CHAT, speaks=True),
    "/v1/messages": Door({"messages": TURNS, "max_tokens": 2}, MESSAGES_FIELDS, speaks=True),
    "/v1/messages/count_tokens": Door(
        {"messages": TURNS},
        {name: kind for name, kind in MESSAGES_FIELDS.items() if name != "stream"},
        speaks=True,
    ),
    "/v1/responses": Door(
        {"input": "Hi", "max_output_tokens": 2},
        {
            "input": Kind(values("text") | MESSAGES.right, values_but("text", "list")),
            "instructions": TEXT,
            "max_output_tokens": Kind(st.integers(1, 4), WHOLE.wrong),
            "temperature": NUMBER,
            "top_p": NUMBER,
            "stream": FLAG,
            "store": FLAG,
            "tool_choice": CHOICE,
            "tools": NAMED_TOOLS,
            "reasoning": Kind(st.just({}), OBJECT.wrong),
            "text": Kind(st.just({"format": {"type": "json_object"}}), OBJECT.wrong),
            "parallel_tool_calls": FLAG,
        },
        speaks=True,
    ),
    "/v1/edits": Door(
        {"input": "a\n", "instruction": "b", "max_tokens": 2}, EDIT | {"input": TEXT}, speaks=True
    ),
    "/v1/apply": Door(
        {"original": "a\n", "update": "b", "max_tokens": 2},
        EDIT | {"original": TEXT, "update": TEXT},
        speaks=True,
    ),
    "/v1/apply/chat/completions": Door(
        {
            "messages": [{"role": "user", "content": "<code>a</code><update>b</update>"}],
            "max_tokens": 2,
        },
        MERGE | {"messages": MESSAGES, "path": TEXT, "format": TEXT},
        speaks=True,
    ),
    "/api/generate": Door(
        {"prompt": "a", "options": {"num_predict": 2}},
        OLLAMA
        | {"prompt": TEXT, "suffix": TEXT, "system": TEXT, "template": TEXT, "raw": FLAG}
        | {"context": IDS, "images": IDS},
    ),
    "/api/chat": Door(
        {"messages": TURNS, "options": {"num_predict": 2}},
        OLLAMA | {"messages": MESSAGES, "tools": TOOLS, "think": THINK},
        speaks=True,
    ),
}
SAME: Final = (
    "/completions", "/chat/completions", "/v1/chat/completions/input_tokens", "/fim/completions",
    "/chat/completions/input_tokens", "/responses", "/v1/responses/input_tokens",
    "/v1/beta/completions", "/v1/code/apply",
)  # fmt: skip
"""Other paths of the same endpoints."""
UNREAD: Final = (
    "/api/show", "/api/pull", "/api/embed", "/api/embeddings", "/v1/embeddings", "/v1/rerank",
    "/embedding", "/embeddings", "/rerank", "/reranking", "/v1/reranking",
)  # fmt: skip
"""They accept any body, or a model that generates text refuses it."""

PREFIX_OF: Final = {
    endpoint.path: contract.prefix
    for contract in CONTRACTS
    for endpoint in contract.endpoints
    if endpoint.method == "POST"
}


def with_field(body: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A body with one more field."""
    outer, _, inner = name.rpartition(".")
    if not outer:
        return {**body, name: value}
    within = body[outer]
    return {**body, outer: {**within, inner: value}} if isinstance(within, dict) else dict(body)


def complaint(path: str, response: httpx2.Response) -> str:
    """The sentence of an error, after checking that it has its contract's form."""
    answer = response.json()
    if PREFIX_OF[path] == "/v1/messages":
        assert (answer["type"], list(answer)) == ("error", ["type", "error"])
        return str(answer["error"]["message"])
    assert list(answer) == ["error"]
    error = answer["error"]
    if PREFIX_OF[path] == "/api/":
        assert isinstance(error, str)
        return error
    assert error["type"] in ("invalid_request_error", "exceed_context_size_error")
    is_openais = PREFIX_OF[path] in ("/v1/", "/v1/responses")
    names = {"code", "message", "type"} | ({"param"} if is_openais else set())
    if error["type"] == "exceed_context_size_error":  # as llama-server has it
        names |= {"n_prompt_tokens", "n_ctx"}
    assert set(error) == names
    return str(error["message"])


def assert_is_whole(response: httpx2.Response) -> None:
    """Checks that a response is whole, streamed or not."""
    kind = response.headers["content-type"]
    if kind.startswith("text/event-stream"):
        answer = parse_events(response.text)
        assert answer[-1] == "[DONE]" or answer[-1].get("stop", True)
        assert answer[-1] == "[DONE]" or answer[-1].get("type") != "error"
    elif kind == "application/x-ndjson":
        answer = [json.loads(line) for line in response.text.splitlines()]
        assert answer[-1]["done"]
    else:
        answer = [response.json()]
    assert not any(part.get("error") for part in answer if isinstance(part, dict))


SOME: Final = settings(
    max_examples=int(os.environ.get("AKUNU_FUZZ_ROUNDS", "15")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def test_every_endpoint_with_a_body_is_tested_here() -> None:
    assert {*DOORS, *SAME, *UNREAD} == set(PREFIX_OF)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'{"model": []}', b'{"name": 1e999}'])
def test_endpoints_that_read_little_survive_any_body(live: LiveServer, raw: bytes) -> None:
    for path in UNREAD:
        assert live.client.post(path, content=raw).status_code in (200, 400, 404, 501)


@pytest.mark.parametrize("path", DOORS)
@SOME
@given(data=st.data())
def test_no_body_breaks_the_server(
    live: LiveServer, parrot: LiveServer, path: str, data: st.DataObject
) -> None:
    door = DOORS[path]
    body = {**door.usual, "a field that nobody knows": data.draw(JSON)}
    for name in data.draw(st.lists(st.sampled_from(sorted(door.fields)), max_size=6)):
        kind = door.fields[name]
        body = with_field(body, name, data.draw(kind.right | kind.right | JSON, label=name))
    raw = bytearray(json.dumps(body).encode())
    places = st.tuples(st.integers(0, len(raw) - 1), st.sampled_from(DAMAGE))
    for place, bytes_ in data.draw(st.just([]) | st.lists(places, max_size=2), label="damage"):
        raw[place : place + 1] = bytes_
    response = (parrot if door.speaks else live).client.post(path, content=bytes(raw))
    if response.status_code == 400:
        assert complaint(path, response)
    else:
        assert response.status_code == 200, response.text
        assert_is_whole(response)


@pytest.mark.parametrize("path", DOORS)
@SOME
@given(data=st.data())
def test_a_field_of_a_wrong_type_is_named(
    live: LiveServer, parrot: LiveServer, path: str, data: st.DataObject
) -> None:
    door = DOORS[path]
    name = data.draw(st.sampled_from(sorted(door.fields)))
    body = with_field(door.usual, name, data.draw(door.fields[name].wrong))
    raw = json.dumps(body).encode()
    response = (parrot if door.speaks else live).client.post(path, content=raw)
    assert response.status_code == 400, response.text
    assert f"`{name}" in complaint(path, response)


@pytest.mark.parametrize("number", ["1e400", "-1e400", f"{'9' * 400}.5"])
def test_a_number_that_no_float_can_hold_is_refused(number: str) -> None:
    with pytest.raises(BodyError, match="is too large for a number"):
        Body.parse(f'{{"metadata": {{"a": {number}}}}}'.encode())
