"""gpt-oss and DeepSeek: what their templates are given, and how their answers are held and read."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import akunu_py
from akunu_py.engine import Engine
from akunu_py.options import Grammar, Options
from akunu_py.sampling.constraint import Constraint
from akunu_py.sampling.constraint_factory import ConstraintFactory
from akunu_py.server.conversation import ChatJob, Tools
from akunu_py.text.answer_parser import AnswerParser
from akunu_py.text.calls import ToolCall
from akunu_py.text.stream import MessageSplitter
from tests.chat_templates import TEMPLATES, templated_engine
from tests.random_calls import Part, joined
from tests.tiny_model import VOCABULARY

GET = {"type": "function", "function": {"name": "get", "parameters": {
    "type": "object", "properties": {"p": {"type": "string"}}, "required": ["p"]}}}  # fmt: skip
QUESTION = {"role": "user", "content": "Which?"}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def make(name: str) -> Engine:
        return templated_engine(tmp_path_factory.mktemp("models") / "tiny", TEMPLATES[name])

    return make


def called(name: str, value: str, *, as_text: bool = False) -> dict[str, Any]:
    given: Any = {"p": value}
    given = json.dumps(given) if as_text else given
    return {"id": value, "function": {"name": name, "arguments": given}}


CALLS = [called("get", "a"), called("put", "b")]
TURNS: list[dict[str, Any]] = [
    QUESTION,
    {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "b", "content": "B"},
    {"role": "tool", "tool_call_id": "a", "content": "A"},
]


def prompt_of(engine: Engine, turns: list[dict[str, Any]], *tools: dict[str, Any]) -> str:
    return str(ChatJob.begin(engine.tokenizer, turns, Options(), Tools(tools), {}).prompt)


def test_gpt_oss_gets_each_call_with_its_result(engines: Any) -> None:
    prompt = prompt_of(engines("gpt-oss"), TURNS, GET)
    head, _, turns = prompt.partition("<|start|>user<|message|>Which?<|end|>")
    assert "// \ntype get" in head
    said = [f"<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>"
            for name in ("get", "put")]  # fmt: skip
    told = [f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>"
            for name in ("get", "put")]  # fmt: skip
    assert turns == (
        "<|start|>assistant<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>"
        f'{said[0]}{{"p": "a"}}<|call|>{told[0]}"A"<|end|>'
        f'{said[1]}{{"p": "b"}}<|call|>{told[1]}"B"<|end|><|start|>assistant'
    )


def test_gpt_oss_gives_no_call_the_result_of_another(engines: Any) -> None:
    """Neither of a call without a result, nor of one whose result has no id of a call."""
    of_put, lost = TURNS[2], {"role": "tool", "tool_call_id": "?", "content": "A"}
    for results in ([of_put], [of_put, lost]):
        prompt = prompt_of(engines("gpt-oss"), [*TURNS[:2], *results])
        told = [f'functions.{name} to=assistant<|channel|>commentary<|message|>"{text}"<|end|>'
                for name, text in (("get", "A"), ("put", "B"))]  # fmt: skip
        assert [one in prompt for one in told] == [lost in results, True]
        assert prompt.count("to=assistant") == len(results)


def test_gpt_oss_drops_no_later_system_message(engines: Any) -> None:
    systems = [{"role": "system", "content": text} for text in ("Be brief.", "Be kind.")]
    prompt = prompt_of(engines("gpt-oss"), [*systems, QUESTION, systems[1]])
    assert "<|message|>Be brief.\n\nBe kind.<|end|>" in prompt
    assert "<|message|>Which?\n\nBe kind.<|end|>" in prompt


def test_gpt_oss_goes_on_with_its_text_after_its_reasoning(engines: Any) -> None:
    begun = {"role": "assistant", "content": "It", "reasoning": "Hm."}
    engine = engines("gpt-oss")
    job = ChatJob.begin(engine.tokenizer, [QUESTION, begun], Options(), Tools((GET,)), {})
    said = engine.tokenizer.encode(" is.", special_tokens=False)
    assert constraint_of(engine, job).extend(0, said) == len(said)
    assert str(job.prompt).endswith(
        "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>It"
    )


@pytest.mark.parametrize("name", ["deepseek v3", "deepseek r1", "deepseek v3.1"])
@pytest.mark.parametrize("text", ["I look.", ""])
def test_deepseeks_calls_are_rendered_as_its_templates_mean_them(
    engines: Any, name: str, text: str
) -> None:
    """Which take arguments as texts only."""
    tokenizer = engines(name).tokenizer
    turns = [QUESTION, TURNS[1] | {"content": text}, *TURNS[2:]]
    texts = [called("get", "a", as_text=True), called("put", "b", as_text=True)]
    meant = [QUESTION, turns[1] | {"tool_calls": texts}, *turns[2:]]
    wanted = tokenizer.render_chat(meant, open_answer=True)
    assert prompt_of(engines(name), turns) == wanted
    assert wanted.count("<｜tool▁calls▁begin｜>") == 1
    assert json.dumps(GET["function"]) in prompt_of(engines(name), turns, GET)


@pytest.mark.parametrize(
    ("settings", "opened"),
    [({}, "</think>"), ({"enable_thinking": True}, "<think>"), ({"thinking": True}, "<think>")],
)
def test_deepseek_thinks_if_it_is_asked_to(
    engines: Any, settings: dict[str, bool], opened: str
) -> None:
    tokenizer = engines("deepseek v3.1").tokenizer
    job = ChatJob.begin(tokenizer, [QUESTION], Options(), Tools(), settings)
    assert str(job.prompt).endswith(opened)
    assert (job.options.reasoning is not None) == (opened == "<think>")


@pytest.mark.parametrize(
    "settings",
    [{"enable_thinking": False}, {"thinking": False}, {"reasoning_effort": "none"}],
)
@pytest.mark.parametrize("name", ["deepseek v3", "deepseek r1", "deepseek v3.1"])
def test_no_model_thinks_that_is_told_not_to(
    engines: Any, name: str, settings: dict[str, Any]
) -> None:
    """The template of R1 always opens a block of reasoning."""
    tokenizer = engines(name).tokenizer
    job = ChatJob.begin(tokenizer, [QUESTION], Options(), Tools(), settings)
    plain = str(ChatJob.begin(tokenizer, [QUESTION], Options(), Tools(), {}).prompt)
    assert str(job.prompt) == plain + ("</think>\n\n" if name == "deepseek r1" else "")
    assert job.options.reasoning is None or not job.options.reasoning.is_open
    begun = {"role": "assistant", "content": "It", "reasoning": "Hm."}
    job = ChatJob.begin(tokenizer, [QUESTION, begun], Options(), Tools(), settings)
    assert str(job.prompt).endswith(f"{plain}</think>\n\nIt" if name == "deepseek r1" else "It")


def test_all_chats_of_an_engine_can_be_told_not_to_think(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    thinks = templated_engine(folder, TEMPLATES["deepseek r1"]).tokenizer
    tells = akunu_py.load(folder, chat_template_args={"enable_thinking": False}).tokenizer
    asked = [thinks.render_chat([QUESTION], open_answer=opens) for opens in (True, False)]
    told = [tells.render_chat([QUESTION], open_answer=opens) for opens in (True, False)]
    assert told == [f"{asked[0]}</think>\n\n", asked[1]]
    assert (thinks.reasoning is None, tells.reasoning) == (False, None)


THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|>"
AGAIN = "<|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|>"
FINAL = "<|channel|>final<|message|>Yes <b>"
CALL = '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"p": "v"}'
MADE = (ToolCall("get", '{"p": "v"}'),)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([THOUGHT, FINAL], Part("Yes <b>", "Hm.")),
        ([FINAL], Part("Yes <b>")),
        ([THOUGHT, CALL], Part("", "Hm.", MADE)),
        ([THOUGHT, PREAMBLE, THOUGHT, CALL], Part("I look.", "Hm.Hm.", MADE)),
        ([THOUGHT.removesuffix("<|end|>"), FINAL], Part("Yes <b>", "Hm.")),
        ([THOUGHT, "<|channel|>fin"], Part("", "Hm.")),
    ],
)
@given(st.data())
def test_messages_become_blocks_wherever_they_are_cut(
    engines: Any, messages: list[str], expected: Part, data: st.DataObject
) -> None:
    text, tokenizer = AGAIN.join(messages), engines("gpt-oss").tokenizer
    job = ChatJob.begin(tokenizer, [QUESTION], Options(), Tools((GET,)), {})
    assert job.options.reasoning is not None
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    splitter, parser = MessageSplitter(job.options.reasoning), job.parser()
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    split = [*map(splitter.feed, pieces), splitter.feed(""), splitter.flush()]
    steps = [step for thought, rest in split for step in parser.feed(thought + rest, len(thought))]
    assert joined([*steps, *parser.finish()]) == expected


def constraint_of(engine: Engine, job: ChatJob) -> Constraint:
    assert job.options.grammar is not None
    return ConstraintFactory(engine.tokenizer, VOCABULARY).make(
        job.options.grammar, 0, job.options.reasoning
    )


@pytest.mark.parametrize(
    ("messages", "next_", "may"),
    [
        ([], " to=functions.get", False),
        ([], "<|channel|>analysis<|message|>", True),
        ([], "<|channel|>analysis to=functions.get", False),
        ([THOUGHT], AGAIN + " to=functions.get", False),
        ([THOUGHT], AGAIN + "<|channel|>commentary to=functions.put", False),
        ([THOUGHT, PREAMBLE], AGAIN + '<|channel|>commentary to=functions.get {"', False),
        ([THOUGHT, PREAMBLE, THOUGHT], AGAIN + CALL, True),
        ([THOUGHT], AGAIN + CALL + ",", False),
    ],
)
def test_the_headers_of_messages_are_held(
    engines: Any, messages: list[str], next_: str, *, may: bool
) -> None:
    engine = engines("gpt-oss")
    job = ChatJob.begin(engine.tokenizer, [QUESTION], Options(), Tools((GET,)), {})
    constraint = constraint_of(engine, job)
    tokens = engine.tokenizer.encode(AGAIN.join(messages), special_tokens=False)
    assert constraint.extend(0, tokens) == len(tokens)
    more = engine.tokenizer.encode(next_, special_tokens=False)
    assert (constraint.extend(len(tokens), more) == len(more)) == may
    assert constraint.complete == (CALL in next_)


@pytest.mark.parametrize("name", ["gpt-oss", "deepseek r1"])
@pytest.mark.parametrize("tools", [(), (GET,)])
def test_json_follows_reasoning(engines: Any, name: str, tools: tuple[Any, ...]) -> None:
    engine = engines(name)
    grammar = Grammar.json_schema({"type": "object", "properties": {"n": {"enum": [1, 2]}},
                                   "required": ["n"]})  # fmt: skip
    (first,) = engine.tokenizer.encode_plain("a")
    for bias in (0.0, 30.0):
        options = Options(
            max_tokens=300, temperature=1.0, seed=1, logit_bias=((first, bias),), grammar=grammar
        )
        job = ChatJob.begin(engine.tokenizer, [QUESTION], options, Tools(tools), {}, budget=15)
        completion = engine.generate(str(job.prompt), job.options)
        blocks = job.blocks()
        blocks.take_all(completion)
        assert completion.stats.reasoning_tokens <= 20
        assert blocks.calls or json.loads(blocks.text("text"))["n"] in (1, 2)
    assert "aaa" in blocks.text("reasoning")


def test_a_call_without_a_grammar_is_read(engines: Any) -> None:
    form = engines("deepseek v3").tokenizer.answer_format
    two = form.written({"name": "get", "arguments": {"p": "v"}}, {"name": "put", "arguments": {}})
    parser = AnswerParser(form, [GET])
    found = joined([*parser.feed(f"I look.{two}"), *parser.finish()])
    assert found == Part("I look.", calls=(*MADE, ToolCall("put", "{}")))
