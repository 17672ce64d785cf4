"""What a program relies on: the names of the package, their examples, and what they refuse."""

import ast
import asyncio
import re
from collections.abc import Callable
from doctest import DocTestFinder, DocTestRunner
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import akunu_py
from akunu_py import options
from akunu_py.engine import Engine
from akunu_py.rounds import Finish, Stats

PROMPT = "def mean(values):"
NAMED = Path(akunu_py.__file__).with_name("named_options.py")


def said(*parts: Any) -> dict[str, Any]:
    """A message in parts, as OpenAI's clients send it."""
    return {"role": "user", "content": list(parts)}


@pytest.fixture(scope="module")
def bundled() -> Engine:
    return akunu_py.load()


def test_the_package_has_these_names_and_no_others() -> None:
    assert dir(akunu_py) == sorted(akunu_py.__all__)
    assert all(hasattr(akunu_py, name) for name in akunu_py.__all__)
    assert Path(akunu_py.__file__).with_name("py.typed").is_file()


@pytest.mark.parametrize("name", [it for it in akunu_py.__all__ if not it.startswith("_")])
def test_examples_show_what_happens(name: str, bundled: Engine) -> None:
    names = {"akunu_py": akunu_py, "engine": bundled}
    runner = DocTestRunner(verbose=False)
    for example in DocTestFinder(exclude_empty=True).find(
        getattr(akunu_py, name), name, globs=names
    ):
        runner.run(example)
    assert runner.failures == 0
    assert runner.tries > 0


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ({"max_tokens": "x"}, "`max_tokens` must be a whole number, not 'x'"),
        ({"temperature": "hot"}, "`temperature` must be a number, not 'hot'"),
        ({"seed": True}, "`seed` must be a whole number, not True"),
        ({"drafter": 5}, "`drafter` must be a string, not 5"),
        ({"exact": "yes"}, "`exact` must be True or False, not 'yes'"),
        ({"stop": 5}, "`stop` must be a tuple of strings, not 5"),
        ({"references": ("a", 1)}, "`references` must be a tuple of strings"),
        ({"grammar": "{}"}, "`grammar` must be a Grammar, not '{}'"),
        ({"logit_bias": ((1, "a"),)}, "`logit_bias` must be a tuple of pairs"),
        ({"stop": "\udcff"}, "`stop`: the text is not valid UTF-8"),
        ({"temperature": 10**400}, "`temperature` must be from 0 to 1000"),
        ({"logit_bias": ((5, 10**400),)}, "`logit_bias` must be ID=NUMBER"),
    ],
)
def test_a_wrong_type_is_told_with_its_field(named: dict[str, Any], sentence: str) -> None:
    with pytest.raises(akunu_py.AkunuError, match=sentence):
        akunu_py.Options(**named)


def test_numpys_numbers_become_plain() -> None:
    given: dict[str, Any] = {"max_tokens": np.int8(2), "temperature": np.float32(0.5)}
    options = akunu_py.Options(**given)
    assert [type(it) for it in (options.max_tokens, options.temperature)] == [int, float]
    assert akunu_py.Options(max_tokens=10**400).max_tokens == 10**400


def test_help_is_true_of_python() -> None:
    assert "max_tokens: most tokens to generate; None for" in str(akunu_py.Options.__doc__)
    assert "grammar: what the answer must match" in str(akunu_py.Options.__doc__)
    assert "remembers: draft from" in str(akunu_py.ModelOptions.__doc__)


def test_help_names_each_finish_reason_and_each_figure() -> None:
    told = str(akunu_py.Completion.__doc__)
    assert all(f"`{finish}`" in told for finish in Finish)
    figures = re.findall(r"\w+", str(Stats.as_dict.__doc__))
    assert set(Stats().as_dict()) <= set(figures)


def named_options() -> str:
    """The module for type checkers, from the declarations of the options."""
    body = ast.parse(Path(options.__file__).read_text()).body
    declared = {it.name: it.body for it in body if isinstance(it, ast.ClassDef)}
    text = NAMED.read_text().partition("\n\n\nclass ")[0] + "\n"
    for name, parents in (("Options", ["Sampling"]), ("ModelOptions", [])):
        text += f'\n\nclass Named{name}(TypedDict, total=False):\n    """Those of `{name}`."""\n\n'
        for field in (field for kind in (*parents, name) for field in declared[kind]):
            if isinstance(field, ast.AnnAssign):
                takes = ast.unparse(field.annotation)
                takes = re.sub(r"tuple\[(.+), \.\.\.\]", r"Sequence[\1]", takes)
                takes = re.sub(r"Sequence\[tuple(.+)\]", r"Mapping\1 | \g<0>", takes)
                text += f"    {ast.unparse(field.target)}: {takes}\n"
    return text


def test_type_checkers_know_the_names_of_options() -> None:
    """`NAMED.write_text(named_options())` makes the module anew."""
    assert NAMED.read_text() == named_options()


def test_type_checkers_find_wrong_options(bundled: Engine) -> None:
    """If they did not, mypy would object to the comments."""
    calls: list[Callable[[], object]] = [
        lambda: bundled.generate(PROMPT, max_token=1),  # type: ignore[call-arg]
        lambda: bundled.chat(PROMPT, max_tokens="1"),  # type: ignore[arg-type]
        lambda: bundled.stream(PROMPT, stop=5),  # type: ignore[arg-type]
        lambda: bundled.generate_batch([PROMPT], kv_bits=8),  # type: ignore[call-arg]
        lambda: akunu_py.load(seed=1),  # type: ignore[call-arg]
    ]
    for call in calls:
        with pytest.raises(akunu_py.AkunuError):
            call()
    fine = bundled.generate(PROMPT, max_tokens=1, stop=["\n"], logit_bias={5: 1.0})
    assert len(fine.token_ids) <= 1


def test_options_are_given_by_name(bundled: Engine, tiny_model_dir: Path) -> None:
    options = akunu_py.Options(max_tokens=9, temperature=0.9, seed=3)
    named = bundled.generate(PROMPT, max_tokens=9, temperature=0.9, seed=3)
    assert named.token_ids == bundled.generate(PROMPT, options).token_ids
    assert len(bundled.generate(PROMPT, options, max_tokens=2).token_ids) == 2
    assert akunu_py.Options(stop=["a"], logit_bias={5: 1.0}) == akunu_py.Options(  # type: ignore[arg-type]
        stop=("a",), logit_bias=((5, 1.0),)
    )
    together = bundled.generate_batch([PROMPT] * 2, max_tokens=9, temperature=0.9, seed=3)
    assert [one.token_ids for one in together] == [named.token_ids] * 2
    each = bundled.generate_batch([PROMPT] * 2, [options, akunu_py.Options(max_tokens=3)])
    assert [len(one.token_ids) for one in each] == [9, 3]
    assert each[0].token_ids == named.token_ids
    each = bundled.generate_batch([PROMPT] * 2, [options, akunu_py.Options(seed=4)], max_tokens=2)
    assert [len(one.token_ids) for one in each] == [2, 2]
    assert akunu_py.load(tiny_model_dir, max_context=64).context_limit == 64


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda engine: engine.generate(PROMPT, temprature=1), "did you mean temperature"),
        (lambda engine: engine.generate(PROMPT, temp=1), "did you mean temperature"),
        (
            lambda _: akunu_py.load(max_contxt=64),  # type: ignore[call-arg]
            "did you mean max_context",
        ),
        (lambda engine: engine.generate(3), "not int"),
        (lambda engine: engine.generate({"role": "user"}), "not dict"),
        (lambda engine: engine.generate(b"x"), "not bytes"),
        (lambda engine: engine.chat(None), "not as NoneType"),
        (lambda engine: engine.chat(["hi"]), "unlike 'hi'"),
        (lambda engine: engine.generate_batch("abc"), "in a list"),
        (lambda engine: engine.generate_batch(None), "in a list"),
        (lambda engine: engine.generate_batch({"role": "user", "content": "a"}), "in a list"),
        (
            lambda engine: engine.generate_batch([PROMPT], parallel="2"),
            "`parallel` must be 1 or more",
        ),
        (
            lambda engine: engine.generate_batch([PROMPT] * 3, [akunu_py.Options()] * 2),
            "one `Options` for all 3 prompts or one for each, not 2",
        ),
        (lambda engine: engine.generate_batch([PROMPT], [{"seed": 1}]), "not dict"),
        (lambda engine: engine.generate_batch([PROMPT], max_tokens=[1]), "a whole number"),
        (lambda engine: engine.chat([said({"type": "image_url"})]), "reads nothing else"),
        (lambda engine: engine.chat([said({"type": "image", "text": "a"})]), "reads nothing else"),
        (lambda engine: engine.chat([said({"type": "text", "text": None})]), "must be text"),
        (lambda engine: engine.chat([said("a")]), "must be text"),
        (lambda engine: engine.chat([{"role": "user", "content": 3}]), "must be text"),
        (lambda engine: engine.generate("\udcff"), "not valid UTF-8"),
        (lambda engine: engine.generate(PROMPT, {"seed": 1}, max_tokens=1), "not dict"),
        (lambda engine: engine.generate(PROMPT, 0), "not int"),
        (lambda _: akunu_py.load(akunu_py.Options()), "not Options"),  # type: ignore[arg-type]
        (lambda _: akunu_py.load(None), "not NoneType"),  # type: ignore[arg-type]
        (lambda _: akunu_py.load("a" * 300), "There is no model folder"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(
    bundled: Engine, ask: Callable[[Engine], object], sentence: str
) -> None:
    with pytest.raises(akunu_py.AkunuError, match=sentence):
        ask(bundled)


def test_an_answer_that_another_request_ended_says_so(bundled: Engine) -> None:
    first = bundled.stream(PROMPT, max_tokens=40, drafter="none")
    next(first)
    with bundled.stream(PROMPT, max_tokens=2) as second:
        assert "".join(event.text for event in second) == str(second.completion)
    with pytest.raises(akunu_py.AkunuError, match="Another request ended this answer"):
        list(first)


def test_a_conversation_is_answered_in_the_template(bundled: Engine) -> None:
    question = "Rename `x` to `n` in: def f(x): return x"
    messages = [{"role": "user", "content": question}]
    answer = bundled.chat(question)
    assert "def f(n): return n" in answer.text
    assert bundled.chat(messages).text == answer.text
    assert "".join(event.text for event in bundled.stream(messages)) == answer.text
    parts = [{"type": "text", "text": "Rename `x` to `n` in:"}, {"text": "def f(x): return x"}]
    joined = bundled.chat("Rename `x` to `n` in:\n\ndef f(x): return x")
    assert bundled.chat([said(*parts)]).text == joined.text
    assert bundled.stream([said(*parts)]).completion.finish_reason == "cancelled"
    empty: list[dict[str, Any]] = [
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": []},
    ]
    assert "def f(n)" in bundled.chat([*messages, *empty, *messages]).text
    with pytest.raises(akunu_py.AkunuError, match="`role` and a `content`"):
        bundled.chat([{"content": "?"}])


def test_other_tasks_run_while_an_answer_is_read(bundled: Engine) -> None:
    async def read() -> tuple[str, int]:
        text, ticks = "", 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        async for event in bundled.stream(PROMPT, max_tokens=12, drafter="none"):
            text += event.text
        ticking.cancel()
        return text, ticks

    text, ticks = asyncio.run(read())
    assert text == bundled.generate(PROMPT, max_tokens=12).text
    assert ticks >= 12
