"""Content, reasoning and tool calls are split, wherever the stream is cut."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tool_parsers import function_gemma, json_tools, kimi_k2, mistral, pythonic, qwen3_coder

from akunu_py.options import Reasoning
from akunu_py.text.answer_parser import AnswerFormat, AnswerParser
from akunu_py.text.calls import ToolCall, layout_of
from akunu_py.text.stream import ReasoningSplitter
from tests.random_calls import Part, joined

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            },
        },
    }
]
ADD = ToolCall("add", '{"a": 1, "b": 2}')
JSON_ADD = '{"name": "add", "arguments": {"a": 1, "b": 2}}'


def format_of(parser: ModuleType, template: str = "") -> AnswerFormat:
    return AnswerFormat(
        call_start=parser.tool_call_start,
        call_end=parser.tool_call_end,
        parse=parser.parse_tool_call,
        layout=layout_of(parser.__name__.rpartition(".")[2], template),
    )


JSON_TOOLS = format_of(json_tools)
THINKING = replace(JSON_TOOLS, think_start="<think>", think_end="</think>")


def read(parser: AnswerParser, *pieces: str, reasoning: Reasoning | None = None) -> Part:
    """All parts of an answer, joined."""
    splitter = ReasoningSplitter(reasoning)
    cut = [*map(splitter.feed, pieces), splitter.flush()]
    steps = [step for first, rest in cut for step in parser.feed(first + rest, len(first))]
    return joined([*steps, *parser.finish()])


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (json_tools, f"<tool_call>\n{JSON_ADD}\n</tool_call>"),
        (mistral, f"[TOOL_CALLS][{JSON_ADD}]"),
        (mistral, '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}'),
        (pythonic, "<|tool_call_start|>[add(a=1, b=2)]<|tool_call_end|>"),
        (
            qwen3_coder,
            "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n"
            "<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>",
        ),
        (function_gemma, "<start_function_call>call:add{a:1,b:2}<end_function_call>"),
    ],
)
def test_reads_the_calls_of_mlx_lms_formats(parser: ModuleType, text: str) -> None:
    parsed = AnswerParser(format_of(parser), TOOLS)
    assert read(parsed, "Let me see. ", text) == Part("Let me see. ", calls=(ADD,))


def test_keeps_the_id_that_a_model_gives() -> None:
    call = 'functions.add:3<|tool_call_argument_begin|>{"a": 1, "b": 2}'
    text = f"{kimi_k2.tool_call_start}{call}{kimi_k2.tool_call_end}"
    (found,) = read(AnswerParser(format_of(kimi_k2), TOOLS), text).calls
    assert found == ToolCall("add", '{"a": 1, "b": 2}', "functions.add:3")


CALL = f"<tool_call>{JSON_ADD}</tool_call>"


def test_parts_keep_their_order() -> None:
    parser = AnswerParser(JSON_TOOLS, TOOLS)
    read(parser, f"a{CALL}b")
    assert [block.call or block.text for block in parser.done] == ["a", ADD, "b"]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add", "arg',
        "<tool_call>\nnot json\n</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": NaN}</tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        "<tool_call></tool_call>",
    ],
)
def test_a_call_that_cannot_be_read_is_content(text: str) -> None:
    assert read(AnswerParser(JSON_TOOLS, TOOLS), text) == Part(text)


@pytest.mark.parametrize("holds_calls", [False, True])
def test_a_call_that_a_limit_cuts_is_no_content(*, holds_calls: bool) -> None:
    text = f"See. <tool_call>\n{JSON_ADD}\n</tool_call>"
    for length in range(len(text)):
        parser = AnswerParser(JSON_TOOLS, TOOLS, holds_calls=holds_calls)
        found = joined([*parser.feed(text[:length]), *parser.finish(cut=True)])
        assert found.content == "See. "[:length]
        assert length < text.index("\n</") or found.calls == (ADD,)


@pytest.mark.parametrize(
    ("tools", "prompt", "text", "expected"),
    [
        (TOOLS, "", f"{CALL}\n{CALL}\nDone.", Part("Done.", calls=(ADD, ADD))),
        (TOOLS, "", f"<tool_call>{JSON_ADD}", Part(calls=(ADD,))),
        (None, "", CALL, Part(CALL)),
        (TOOLS, "", f"<think>\nHm.\n</think>\n\nSo: {CALL}", Part("So: ", "Hm.\n", (ADD,))),
        (None, "assistant\n", "Hm.</think>Yes", Part("Hm.</think>Yes")),
        (None, "assistant\n<think>\n", "Hm.</think>Yes", Part("Yes", "Hm.")),
        (None, "<think>\n\n</think>\n\n", "Hm.</think>Yes", Part("Hm.</think>Yes")),
        (TOOLS, "", "\n<think>\n<tool_call></think>", Part("", "<tool_call>")),
        (None, "", "Say <think>Hm.</think>", Part("Say <think>Hm.</think>")),
        (None, "What is <think>?\nassistant\n", "Hm.", Part("Hm.")),
    ],
    ids=["the space between calls is dropped", "the end of a whole call is missing",
         "without tools calls are text", "reasoning",
         "no reasoning", "the template opens the reasoning", "it closes it, too",
         "a call in reasoning", "marks in the middle are text", "a mark in a question is text"],
)  # fmt: skip
def test_an_answer_is_split(
    tools: list[dict[str, Any]] | None, prompt: str, text: str, expected: Part
) -> None:
    found = read(AnswerParser(THINKING, tools), text, reasoning=THINKING.reasoning(prompt))
    assert found == expected


def test_text_is_released_immediately_unless_it_may_begin_a_mark() -> None:
    parser = AnswerParser(THINKING, TOOLS)
    assert joined(parser.feed("if a <")) == Part("if a ")
    assert joined(parser.feed(" b")) == Part("< b")
    assert joined(parser.feed("<tool")) == Part()
    assert joined(parser.finish()) == Part("<tool")


PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", JSON_ADD, "\n", " ", "a", "<", "é"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.data())
def test_where_the_stream_is_cut_makes_no_difference(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    marks = THINKING.reasoning("")
    whole = read(AnswerParser(THINKING, TOOLS), text, reasoning=marks)
    assert read(AnswerParser(THINKING, TOOLS), *pieces, reasoning=marks) == whole


@given(st.text())
def test_without_marks_all_is_content(text: str) -> None:
    assert read(AnswerParser(AnswerFormat(), None), text) == Part(text)
