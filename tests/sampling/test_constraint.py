"""Answers within a grammar: the same text however it was drafted, from the right distribution."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import akunu_py
from akunu_py.decoding.draft_session import steer
from akunu_py.decoding.loop import Limits
from akunu_py.drafting.base import FORCED, NO_DRAFT, Draft, Drafter
from akunu_py.drafting.ngram import NGramDrafter
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError, UnreadableRequestError
from akunu_py.options import Grammar, Options, Reasoning, Sampling, Wake
from akunu_py.sampling.constraint import Constraint
from akunu_py.sampling.constraint_factory import ConstraintFactory
from akunu_py.sampling.sampler import Sampler
from tests.fakes import BigramDrafter, OracleDrafter, drafted_answer, rounds_of
from tests.markov import (
    LETTERS,
    VOCABULARY,
    assert_drawn_from,
    free_text,
    letters_constraint,
    markov_model,
)
from tests.tiny_model import write_tiny_model

PROMPT = "Answer in JSON: "
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z ]{3,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["new", "old"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.3, seed=4),
    Sampling(temperature=0.9, top_k=20, top_p=0.9, frequency_penalty=0.3, seed=5),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_drafts_do_not_change_the_text(engine: Engine, sampling: Sampling) -> None:
    grammar = Grammar.json_schema(PERSON)
    options = Options(120, drafter="none", logprobs=0, grammar=grammar).sampled_as(sampling)
    plain = engine.generate(PROMPT, options)
    person = json.loads(plain.text)
    assert plain.finish_reason == "eos"
    assert list(person) == ["name", "age", "tags"]
    assert 0 <= person["age"] <= 150

    length = len(engine.tokenizer.encode(PROMPT))
    for error, silence in ((0, 0), (0.3, 0), (0.3, 0.5), (1, 0.5), (0, 1)):
        oracle = OracleDrafter(length, plain.token_ids, error=error, silence=silence)
        drafted = drafted_answer(engine, oracle, PROMPT, options)
        assert (drafted.token_ids, drafted.finish_reason) == (plain.token_ids, "eos")
        assert (drafted.end_logprob is None) == (plain.end_logprob is None)
        assert drafted.stats.target_forwards < plain.stats.target_forwards
    exact = engine.generate(PROMPT, replace(options, drafter="ngram", exact=True))
    assert exact.token_ids == plain.token_ids


@pytest.mark.parametrize(("seed", "drafter"), [*enumerate(["none", "auto", "ngram"])])
def test_any_object_is_json(engine: Engine, seed: int, drafter: str) -> None:
    (brace,) = engine.tokenizer.encode("}")
    sampling = Sampling(temperature=1.0, seed=seed, logit_bias=((brace, 4.0),))
    options = Options(300, drafter=drafter, grammar=Grammar.json_object()).sampled_as(sampling)
    answer = engine.generate(PROMPT, options)
    assert answer.text.startswith("{")
    if answer.finish_reason == "eos":
        assert isinstance(json.loads(answer.text), dict)


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NAMED = {"type": "object", "properties": {"list": {"type": "array", "items": TEXT}}}


@pytest.mark.parametrize(
    ("schema", "text", "refused_from"),
    [
        (TEXT, r'{"text": "caf\u00e9 \u4e2d \ud83d\ude00 \" \\ \b\f\n\r\t"}', ""),
        (TEXT, '{"text": "", "more": 1}', ', "more": 1}'),
        (TEXT, '{\n"text": ""}', '\n"text": ""}'),
        (TEXT, '{  "text": ""}', ' "text": ""}'),
        (NAMED, '{"list": [{"text": "", "more": 1}]}', ', "more": 1}]}'),
        ({"type": "object"}, '{"more": [1, {"any": null}]}', ""),
        (TEXT | {"additionalProperties": True}, '{"text": "", "more": 1}', ""),
    ],
)
def test_what_a_schema_allows(
    engine: Engine, schema: dict[str, Any], text: str, refused_from: str
) -> None:
    """All escapes of JSON, one space between its parts, and no properties that are not named."""
    maker = ConstraintFactory(engine.tokenizer, engine.model.vocabulary_size)
    tokens = engine.tokenizer.encode_plain(text)
    allowed = maker.make(Grammar.json_schema(schema), 1).allowed_length(tokens)
    assert engine.tokenizer.decode(tokens[allowed:]) == refused_from


@pytest.mark.parametrize(
    ("grammar", "texts"),
    [
        (Grammar("regex", "(yes|no), [0-9]{2}!"), None),
        (Grammar("lark", 'start: "left" | "right"'), {"left", "right"}),
    ],
    ids=["regex", "lark"],
)
def test_regular_expressions_and_grammars_are_followed(
    engine: Engine, grammar: Grammar, texts: set[str] | None
) -> None:
    answer = engine.generate(PROMPT, Options(40, grammar=grammar))
    assert answer.finish_reason == "eos"
    assert answer.text in texts if texts else answer.text.endswith("!")


def test_the_bundled_model_keeps_to_a_schema() -> None:
    engine = akunu_py.load()
    options = Options(400, temperature=0.8, seed=4, grammar=Grammar.json_schema(PERSON))
    answer = engine.generate(PROMPT, options)
    assert set(json.loads(answer.text)) == set(PERSON["properties"])  # type: ignore[call-overload]


def test_what_a_schema_demands_in_vain_is_told(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    grammar = Grammar("json_schema", '{"not": {"type": "string"}, "const": 1}')
    answer = engine.generate("a", Options(max_tokens=3, grammar=grammar))
    assert (answer.text, caplog.messages) == ("1", ["The JSON schema is enforced without `not`."])


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar("json_schema", '{"type": "thing"}'), "Invalid type: thing"),
        (
            Grammar("json_schema", '{"patternProperties": {"(": {}}}'),
            "regex parse error: unclosed group",
        ),
        (
            Grammar("json_schema", '{"const": "\\ud800"}'),
            "unexpected end of hex escape at line 1 column 19",
        ),
        (
            Grammar("json_schema", '{"$ref": "http://a/b"}'),
            "Resource 'http://a/b' is not present in a registry",
        ),
        (Grammar("regex", "(a"), 'invalid regex "(a": regex parse error: unclosed group'),
        (Grammar("lark", 'start: a\na: "x" unknown'), 'line 2, column 4: unknown name: "unknown"'),
        (Grammar("lark", "x"), "line 1, column 2: Expected token ':', found '\\n'"),
        (Grammar("lark", "start: <|no|>"), 'line 1, column 8: unknown special token: "<|no|>"'),
        (Grammar("lark", 'start: "a" start'), "it takes too long for each token"),
    ],
    ids=lambda value: value.source if isinstance(value, Grammar) else "",
)
def test_an_invalid_grammar_is_refused_in_plain_words(
    engine: Engine, grammar: Grammar, said: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        engine.generate(PROMPT, Options(grammar=grammar))
    assert str(caught.value).endswith(f": {said}.")
    assert str(caught.value).startswith(f"The {grammar.name} ")


@pytest.fixture(scope="module")
def maker(shared_engine: Engine) -> ConstraintFactory:
    return ConstraintFactory(shared_engine.tokenizer, shared_engine.model.vocabulary_size)


def _masks(constraint: Constraint, position: int, inputs: list[int]) -> Any:
    masks = constraint.masks(position, inputs)
    assert masks is not None, "the grammar holds for the whole answer"
    return masks


@given(
    rounds=st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=4), st.integers(0, 4))),
    data=st.data(),
)
@settings(max_examples=40)
def test_masks_depend_on_the_tokens_before_each_row(
    shared_engine: Engine,
    maker: ConstraintFactory,
    rounds: list[tuple[list[int], int]],
    data: st.DataObject,
) -> None:
    """For any sequence of forwards and rollbacks."""
    grammar, start = Grammar("regex", "(ab?c)*"), 10
    tokens = shared_engine.tokenizer.encode("abcd")
    constraint = maker.make(grammar, start)
    answer: list[int] = []
    known = 77
    for picked, kept in rounds:
        drafts = [tokens[index] for index in picked]
        position = start + len(answer)
        masks = _masks(constraint, position, [known, *drafts])
        accepted = 0
        for row in range(len(drafts) + 1):
            fresh = maker.make(grammar, start)
            fresh.extend(start, [*answer, *drafts[:row]])
            (expected,) = (
                _masks(fresh, start, [known])
                if not answer[:1] + drafts[:row]
                else _masks(fresh, position + row, [[known, *drafts][row]])
            )
            assert (masks[row] == expected).all()
            if row < len(drafts) and not _allows(masks[row], drafts[row]):
                break
            accepted = row
        accepted = min(accepted, kept)
        choices = [token for token in tokens if _allows(masks[accepted], token)]
        known = data.draw(st.sampled_from(choices))
        emitted = [*drafts[:accepted], known]
        constraint.extend(position, emitted)
        answer += emitted


def _allows(mask: Any, token: int) -> bool:
    return bool(mask[token // 32] >> (token % 32) & 1)


def test_forced_tokens_are_drafted(engine: Engine, maker: ConstraintFactory) -> None:
    encode = engine.tokenizer.encode
    constraint = maker.make(Grammar("regex", "ab(function|feature)"), 0)
    forced = steer(constraint, NO_DRAFT, 9)
    assert (list(forced.tokens), forced.source) == (encode("abf"), FORCED)
    assert steer(constraint, NO_DRAFT, 2).tokens == forced.tokens[:2]

    good, bad = Draft(tuple(encode("abfunc")), "x"), Draft(tuple(encode("abfare")), "x")
    assert steer(constraint, good, 9) == good
    assert list(steer(constraint, bad, 9).tokens) == encode("abf")
    drawn = Draft(tuple(encode("abfare")), "x", 0, np.full((6, 320), 1 / 320, np.float32))
    assert list(steer(constraint, drawn, 9).tokens) == encode("abfa")


NEVER_E_AFTER_D = "([abcefgh]|d+[abcfgh])*d*"


def from_a_model() -> Drafter:
    text = np.random.default_rng(2).integers(0, VOCABULARY, 4000).tolist()
    return BigramDrafter(text, VOCABULARY, temperature=0.7, seed=17)


@pytest.mark.parametrize("make", [from_a_model, NGramDrafter])
def test_allowed_tokens_have_the_models_distribution(
    make: Callable[[], Drafter],
) -> None:
    """In the shipped loop forbidden tokens never occur, and the others as often as they should."""
    draws, table = 4_000, free_text()
    constraint = letters_constraint(NEVER_E_AFTER_D)
    model = markov_model(table)
    sampler = Sampler(Sampling(temperature=1.0, seed=17), [0], constraint=constraint)
    drafter = make()
    drafter.begin([0])
    cache = model.make_cache(draws + 1)
    rounds = list(rounds_of(model, cache, sampler, 0, Limits(draws, frozenset()), drafter=drafter))
    rows = np.array(mx.softmax(mx.array(table.astype(np.float32)), axis=-1), np.float64)
    d, e = LETTERS.index("d"), LETTERS.index("e")
    rows[d, e] = 0
    rows /= rows.sum(axis=1, keepdims=True)
    assert_drawn_from(rows, [0, *(token for one in rounds for token in one.tokens)])
    assert sum(one.accepted for one in rounds) > 200


def test_a_grammar_that_needs_a_token_which_the_model_lacks_says_so(tmp_path: Path) -> None:
    engine = akunu_py.load(str(write_tiny_model(tmp_path / "small", vocab_size=128)))
    options = Options(8, grammar=Grammar("regex", "(ab )+"))
    with pytest.raises(UnreadableRequestError, match="the model lacks"):
        engine.generate("ab", options)


BODY = 'start: mark /[0-9]{3}/ "!"\nmark[lazy]: /(?s:.*)/ '


def waking(mark: str, **wake: Any) -> Grammar:
    return Grammar("lark", f'{BODY}"{mark}"', Wake(mark, **wake))


def sleeping(engine: Engine, mark: str, reasoning: Reasoning | None = None) -> Constraint:
    return ConstraintFactory(engine.tokenizer, 320).make(waking(mark), 5, reasoning)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_drafts_do_not_change_an_answer_that_wakes_it(engine: Engine, seed: int) -> None:
    sampling = Sampling(temperature=1.1, seed=seed)
    free = engine.generate(PROMPT, Options(120, drafter="none").sampled_as(sampling)).text
    mark = next(sign for sign in free[5:] if sign.isascii() and sign.isupper())
    held = waking(mark)
    plain = engine.generate(PROMPT, Options(120, drafter="none", grammar=held).sampled_as(sampling))
    assert re.search(f"{mark}[0-9]{{3}}!", plain.text)
    for found in re.finditer(mark, plain.text[:-5]):
        assert re.match(r"[0-9]{3}!", plain.text[found.end() :])
    length = len(engine.tokenizer.encode(PROMPT))
    for error in (0.0, 0.3, 1.0):
        oracle = OracleDrafter(length, plain.token_ids, error=error)
        drafted = drafted_answer(
            engine, oracle, PROMPT, Options(120, grammar=held).sampled_as(sampling)
        )
        assert drafted.token_ids == plain.token_ids


def test_once_ends_the_answer(engine: Engine) -> None:
    free = engine.generate(PROMPT, Options(60, drafter="none")).text
    mark = next(sign for sign in free[5:] if sign.isascii() and sign.isalpha())
    completion = engine.generate(PROMPT, Options(60, grammar=waking(mark, once=True)))
    assert re.fullmatch(rf"[^{mark}]*{mark}[0-9]{{3}}!", completion.text, re.DOTALL)
    assert completion.finish_reason == "eos"


@pytest.mark.parametrize("is_open", [False, True])
def test_reasoning_does_not_wake_it(engine: Engine, is_open: bool) -> None:
    encode = engine.tokenizer.encode_plain
    held = sleeping(engine, "<c>", Reasoning("<t>", "</t>", is_open=is_open))
    said = encode(f"{'' if is_open else ' <t>'}Use <c> here.</t> Now <t> <c>12")
    assert held.extend(5, said) == len(said)
    assert held.forced_tokens(9) == ()  # a digit is missing
    assert held.allowed_length(encode("3!<c>x")) == 2
    assert held.extend(5 + len(said), encode("3")) == 1
    assert held.forced_tokens(9) == tuple(encode("!"))
    assert held.extend(5 + len(said), encode("x")) == 0


def test_a_draft_may_wake_it(engine: Engine) -> None:
    encode = engine.tokenizer.encode_plain
    held = sleeping(engine, "<c>")
    assert held.allowed_length(encode("a<c>1x")) == 5
    assert held.forced_tokens(9) == ()
    assert held.extend(5, encode("a<c>x")) == 4
    assert held.extend(5, encode("abc <")) == 5
    assert held.allowed_length(encode("c>1!")) == 3


def test_a_grammar_that_takes_long_for_each_token_is_given_up(engine: Engine) -> None:
    text = "ab cd " * 200_000
    options = Options(grammar=Grammar("lark", f'start: "x" "{text}"'), max_tokens=200)
    with pytest.raises(UnreadableRequestError, match="too long for each token"):
        engine.generate("x", options)
