"""A grammar that sleeps until a mark: the same text however it was drafted."""

import re
from typing import Any

import pytest

from akunu_py.engine import Engine
from akunu_py.options import Grammar, Options, Sampling, Wake
from akunu_py.sampling.constraint import Constraint, ConstraintFactory
from tests.fakes import OracleDrafter, drafted_answer

PROMPT = "Some text: "
BODY = 'start: mark /[0-9]{3}/ "!"\nmark[lazy]: /(?s:.*)/ '


def grammar(mark: str, **wake: Any) -> Grammar:
    return Grammar("lark", f'{BODY}"{mark}"', Wake(mark, **wake))


def constraint(engine: Engine, mark: str, **wake: Any) -> Constraint:
    return ConstraintFactory(engine.tokenizer, 320).make(grammar(mark, **wake), 5)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_drafts_do_not_change_the_text(engine: Engine, seed: int) -> None:
    sampling = Sampling(temperature=1.1, seed=seed)
    free = engine.generate(PROMPT, Options(120, sampling, drafter="none")).text
    mark = next(sign for sign in free[5:] if sign.isascii() and sign.isupper())
    held = grammar(mark)
    plain = engine.generate(PROMPT, Options(120, sampling, drafter="none", grammar=held))
    assert re.search(f"{mark}[0-9]{{3}}!", plain.text)
    for found in re.finditer(mark, plain.text[:-5]):
        assert re.match(r"[0-9]{3}!", plain.text[found.end() :])
    length = len(engine.tokenizer.encode(PROMPT))
    for error in (0.0, 0.3, 1.0):
        oracle = OracleDrafter(length, plain.token_ids, error=error)
        drafted = drafted_answer(engine, oracle, PROMPT, Options(120, sampling, grammar=held))
        assert drafted.token_ids == plain.token_ids


def test_once_ends_the_answer(engine: Engine) -> None:
    held = grammar("<c>", awake=True, once=True)
    completion = engine.generate(f"{PROMPT}<c>", Options(50, grammar=held))
    assert re.fullmatch(r"[0-9]{3}!", completion.text)
    assert completion.finish_reason == "eos"


def test_reasoning_does_not_wake_it(engine: Engine) -> None:
    encode = engine.tokenizer.encode_plain
    held = constraint(engine, "<c>", thinking=True, think_start="<t>", think_end="</t>")
    said = encode("Use <c> here.</t><t><c></t> Now <c>12")
    assert held.extend(5, said) == len(said)
    assert held.forced_tokens(9) == ()  # a digit is missing
    assert held.allowed_length(encode("3!<c>x")) == 2
    assert held.extend(5 + len(said), encode("3")) == 1
    assert held.forced_tokens(9) == tuple(encode("!"))
    assert held.extend(5 + len(said), encode("x")) == 0


def test_a_draft_may_wake_it(engine: Engine) -> None:
    encode = engine.tokenizer.encode_plain
    held = constraint(engine, "<c>")
    assert held.allowed_length(encode("a<c>1x")) == 5
    assert held.forced_tokens(9) == ()
    assert held.extend(5, encode("a<c>x")) == 4
    assert held.extend(5, encode("abc <")) == 5
    assert held.allowed_length(encode("c>1!")) == 3
