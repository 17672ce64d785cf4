"""Grammars and templates that never end, or take all memory, are refused; others are not."""

import json
from collections.abc import Iterator
from string import ascii_lowercase
from threading import Event, Thread
from typing import Any

import pytest

from akunu_py.engine import Engine
from akunu_py.errors import QueueFullError, UnreadableRequestError
from akunu_py.options import Grammar, Options
from akunu_py.sampling import constraint_factory
from akunu_py.sampling.constraint_factory import CompiledGrammar, ConstraintFactory
from akunu_py.text import sandbox as module
from akunu_py.text.sandbox import (
    CLIENT_LEFT,
    Guide,
    Trial,
    TrialProcess,
    gbnf_to_lark,
    matches_empty,
    runs_away,
    try_out,
    validate,
)

ENDLESS = {"allOf": [{"type": "string", "pattern": f"^.*a{sign}.*$"} for sign in ascii_lowercase]}
"""It asks for an automaton of 2^26 states."""
SOON_S = 0.5


def as_grammar(schema: Any) -> str:
    return json.dumps({"grammars": [{"json_schema": schema}]})


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[TrialProcess]:
    """One of its own, which gives up soon."""
    made = TrialProcess(cpu_s=SOON_S)
    monkeypatch.setattr(module, "trial_process", lambda: made)
    yield made
    made.close()


def test_what_takes_too_long_is_refused_once_and_for_all(process: TrialProcess) -> None:
    for _ in range(2):  # the second time without a trial
        wrong, (reason,) = validate(as_grammar(ENDLESS))
        assert wrong
        assert "too much time or memory" in reason
    assert validate(as_grammar({"type": "string"})) == (False, [])
    assert process.starts == 2


def test_what_takes_too_much_memory_is_refused() -> None:
    assert runs_away("{{ ('a' * 2**29)|length }}")
    assert not runs_away("{{ ('a' * 2**20)|length }}")


def test_what_is_too_long_is_not_tried(process: TrialProcess) -> None:
    with pytest.raises(ValueError, match="more than 1048576 bytes"):
        validate("x" * (1 << 20 | 1))
    assert not process.starts


def test_a_client_that_leaves_ends_it(process: TrialProcess) -> None:
    left = Event()

    def leave() -> None:
        while not process.starts:
            pass
        left.set()

    before = CLIENT_LEFT.set(left)
    Thread(target=leave).start()
    try:
        with pytest.raises(QueueFullError, match="client disconnected"):
            validate(as_grammar(ENDLESS))
    finally:
        CLIENT_LEFT.reset(before)
    assert validate(as_grammar({"type": "string"})) == (False, [])
    assert process.starts == 2


def test_only_some_may_wait(process: TrialProcess) -> None:
    schemas = [as_grammar({"const": number}) for number in range(module._MOST_WAITING)]
    with process.lock:
        threads = [Thread(target=validate, args=(schema,)) for schema in schemas]
        for thread in threads:
            thread.start()
        while process.waiting < len(threads):
            pass
        with pytest.raises(QueueFullError):
            validate(as_grammar({"const": "another"}))
    for thread in threads:
        thread.join()
    assert validate(as_grammar({"const": "another"})) == (False, [])


def test_a_pattern_that_never_ends_matches_no_empty_text(process: TrialProcess) -> None:
    assert not matches_empty("(?:(?:(?:){9999}){9999}){9999}")
    assert not matches_empty("(")
    assert not matches_empty("^a")
    assert matches_empty("a*")
    assert process.starts == 2


def test_rules_that_double_are_refused(process: TrialProcess) -> None:
    rules = "\n".join(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(9000))
    with pytest.raises(ValueError, match="too much time"):
        gbnf_to_lark(f'root ::= a0\n{rules}\na9000 ::= "x"', {})
    assert process.starts == 1


def test_an_engine_compiles_what_others_send_with_care(
    shared_engine: Engine, process: TrialProcess
) -> None:
    good = shared_engine.compile(Options(grammar=Grammar("regex", "a{3}"), max_tokens=9))
    assert shared_engine.generate("x", good).text == "aaa"
    bad = Options(grammar=Grammar.json_schema(ENDLESS))
    with pytest.raises(UnreadableRequestError, match="too much time or memory"):
        shared_engine.compile(bad)
    assert shared_engine.compile(Options()) == Options()
    assert process.starts == 1


@pytest.mark.parametrize(("seconds", "characters"), [(1.0, 1 << 18), (0.0, 2)])
def test_large_grammars_are_counted_while_they_are_held(
    shared_engine: Engine, monkeypatch: pytest.MonkeyPatch, seconds: float, characters: int
) -> None:
    monkeypatch.setattr(constraint_factory, "_MOST_LARGE", 2)
    monkeypatch.setattr(constraint_factory, "_LARGE_CHARACTERS", characters)
    monkeypatch.setattr(constraint_factory, "try_out", lambda *_: Trial("", seconds=seconds))
    model = shared_engine.model
    factory = ConstraintFactory(model.tokenizer, model.vocabulary_size)

    def tried(text: str) -> CompiledGrammar:
        return factory.compile(Grammar("regex", text), tries=True)

    held = [tried("one"), tried("two")]
    with pytest.raises(QueueFullError):
        tried("three")
    held.pop()
    assert tried("three").is_large


def test_an_equal_grammar_for_another_tokenizer_is_another(
    shared_engine: Engine, process: TrialProcess
) -> None:
    fast = shared_engine.tokenizer.wrapped._tokenizer.backend_tokenizer
    grammar = json.dumps({"grammars": [{"lark_grammar": "start: <[330]>"}]})
    assert not try_out(Guide(fast.to_str(), 340, None), grammar).reason
    assert "too large: 330" in try_out(Guide(fast.to_str(), 320, None), grammar).reason
    assert process.starts == 2


@pytest.mark.parametrize(
    "before", ["", '{{ strftime_now("%Y") }}', "{% if not bos_token %}{{ x.y.z }}{% endif %}"]
)
def test_a_template_that_never_ends_runs_away(before: str) -> None:
    loop = "{% for i in range(99999) %}"
    assert runs_away(f"{before}{loop}{loop}{'{% endfor %}' * 2}")
    assert not runs_away(f"{before}{{{{ messages[0].content }}}}")
    assert not runs_away("{{ raise_exception('no') }}")


def test_a_trial_that_somebody_else_ends_condemns_nothing(process: TrialProcess) -> None:
    def kill() -> None:
        while (started := process._process) is None:
            pass
        started.kill()

    Thread(target=kill).start()
    with pytest.raises(QueueFullError, match="interrupted"):
        validate(as_grammar(ENDLESS))
    assert validate(as_grammar({"type": "string"})) == (False, [])


def test_an_outcome_that_quotes_the_client_at_length_is_not_kept(process: TrialProcess) -> None:
    wrong, (reason,) = validate(as_grammar({"type": "string", "pattern": "(?=x)" + "y" * 100_000}))
    assert wrong
    assert len(reason) > 100_000
    assert not process._known


def test_many_choices_can_be_followed(shared_engine: Engine) -> None:
    texts = " | ".join(json.dumps(f"{number}") for number in range(3000))
    options = shared_engine.compile(Options(grammar=Grammar("lark", f"start: {texts}")))
    assert int(shared_engine.generate("x", options).text) < 3000


def test_a_rule_that_begins_with_itself_is_told_plainly(shared_engine: Engine) -> None:
    options = Options(grammar=Grammar("lark", 'start: start "a"'))
    with pytest.raises(UnreadableRequestError, match="cannot be used: no text matches it"):
        shared_engine.compile(options)
