"""What sample calls of a request's tools bring when the model calls one: tokens per forward.

    python -m benchmarks.tool_calls

A replay with ember's tokenizer, in which marks are plain text: nothing is timed. The answers are
made-up calls of the tools that coding agents have, in several layouts; the prompts hold the tools
as templates write them, and a question. The calls are drafted by `auto` without and with samples,
and with the tokens that the tools' grammar forces, as the server has it, or without a grammar.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from akunu_py.decoding.draft_session import DraftSession, DraftTrimmer
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.loading import load_tokenizer
from akunu_py.options import Grammar, Wake
from akunu_py.planning.planner import FixedPlanner
from akunu_py.prompt import encode_references
from akunu_py.round import Round
from akunu_py.sampling.constraint_factory import ConstraintFactory
from akunu_py.text.answer_parser import AnswerFormat
from akunu_py.text.call_grammar import CallGrammar, make_checked
from akunu_py.text.call_layout import layout_of
from akunu_py.text.tokenizer import Tokenizer
from benchmarks.records import markdown_table, record

LAYOUTS: Final = {
    "hermes": ("json_tools", "<tool_call>", "</tool_call>"),
    "qwen3_coder": ("qwen3_coder", "<tool_call>", "</tool_call>"),
    "mistral": ("mistral", "[TOOL_CALLS]", ""),
    "glm": ("glm47", "<tool_call>", "</tool_call>"),
    "pythonic": ("pythonic", "<|tool_call_start|>", "<|tool_call_end|>"),
}
TOOLS: Final = {
    "read_file": {"path": "string", "offset": "integer", "limit": "integer"},
    "write_file": {"path": "string", "content": "string"},
    "replace_in_file": {"path": "string", "old_text": "string", "new_text": "string"},
    "list_directory": {"path": "string", "recursive": "boolean"},
    "search_files": {"pattern": "string", "path": "string", "case_sensitive": "boolean"},
    "run_command": {"command": "string", "working_directory": "string", "timeout": "integer"},
    "web_search": {"query": "string", "max_results": "integer"},
    "update_plan": {"explanation": "string", "step": "string", "status": "string"},
}
QUESTIONS: Final[Sequence[tuple[str, str, dict[str, Any]]]] = (
    ("Show me the settings.", "read_file", {"path": "src/settings.py", "offset": 1, "limit": 200}),
    ("What is in the folder?", "list_directory", {"path": "src", "recursive": False}),
    ("Run the tests.", "run_command", {"command": "make test", "working_directory": "."}),
    ("Who calls load_user?", "search_files", {"pattern": "load_user(", "path": "src"}),
    ("Look up HTTP status 418.", "web_search", {"query": "HTTP status 418", "max_results": 3}),
    ("Write a hello file.", "write_file", {"path": "hello.txt", "content": "Hello, world!\n"}),
    (
        "Rename total to amount in shop.py.",
        "replace_in_file",
        {"path": "shop.py", "old_text": "total = price", "new_text": "amount = price"},
    ),
    (
        "The first step is done.",
        "update_plan",
        {"explanation": "The parser works.", "step": "parser", "status": "done"},
    ),
    ("Is there a README?", "search_files", {"pattern": "README*", "path": "."}),
    ("How long is main.py?", "run_command", {"command": "wc -l main.py", "timeout": 5}),
    ("Read the end of the log.", "read_file", {"path": "build.log", "offset": 900, "limit": 50}),
    ("Make it executable.", "run_command", {"command": "chmod +x run.sh", "timeout": 5}),
)
LIMIT: Final = 8


def tools() -> list[dict[str, Any]]:
    """The tools, in OpenAI's form."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Use this to {name.replace('_', ' ')}.",
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": kind} for key, kind in keys.items()},
                    "required": list(keys)[:1],
                },
            },
        }
        for name, keys in TOOLS.items()
    ]


def rounds(
    tokenizer: Tokenizer, format_: AnswerFormat, *, samples: bool, forced: bool, turns: int
) -> Iterator[tuple[int, int, int]]:
    """The emitted, drafted and accepted tokens of each round of all questions; `turns` earlier ones
    are in the prompt."""
    offered = tools()
    drafter = AutoDrafter()
    factory = ConstraintFactory(tokenizer, len(tokenizer.wrapped))
    texts = format_.sample_calls(offered) if samples else ()
    references = encode_references(tokenizer, (), 1, texts)
    head = "# Tools\n" + "\n".join(map(json.dumps, offered)) + "\n"
    assert format_.layout is not None
    asked = [
        (f"User: {question}\nAssistant: ", format_.call_start + format_.layout.written(name, held))
        for question, name, held in QUESTIONS
    ]
    source = make_checked(
        CallGrammar(format_, offered, tokenizer.control_tokens, one_call=True).after_mark
    )
    grammar = Grammar("lark", source, Wake(format_.call_start))
    for number, (question, call) in enumerate(asked):
        before = "".join(f"{a}{b}{format_.call_end}\n" for a, b in asked[number - turns : number])
        prompt = tokenizer.encode(head + before + question)
        answer = tokenizer.encode_plain(call + format_.call_end)
        constraint = factory.make(grammar, len(prompt)) if forced else None
        session = DraftSession(
            drafter, FixedPlanner(LIMIT), DraftTrimmer(), constraint, num_draft_tokens=LIMIT
        )
        session.begin(prompt, references)
        done = 0
        while done < len(answer):
            draft = session.propose(LIMIT, len(prompt) + done)
            accepted = 0
            for guess, token in zip(draft.tokens, answer[done:], strict=False):
                if guess != token:
                    break
                accepted += 1
            emitted = tuple(answer[done : done + accepted + 1])
            if constraint is not None:
                constraint.extend(len(prompt) + done, emitted)
            session.learn(Round(emitted, draft, accepted, len(prompt) + done, False, None))
            done += len(emitted)
            yield len(emitted), len(draft), accepted


def main() -> None:
    """Replays and writes the record."""
    tokenizer, rows = load_tokenizer("ember"), []
    for layout, (parser, start, end) in LAYOUTS.items():
        format_ = AnswerFormat("", "", start, end, None, layout_of(parser, "[ARGS]"))
        for forced in (False, True):
            for turns in (0, 2):
                row: dict[str, Any] = {"layout": layout, "forced": forced, "earlier calls": turns}
                for samples in (False, True):
                    found = list(
                        rounds(tokenizer, format_, samples=samples, forced=forced, turns=turns)
                    )
                    emitted, drafted, _ = map(sum, zip(*found, strict=True))
                    name = "with samples" if samples else "without"
                    row[name] = round(emitted / len(found), 3)
                    row[f"drafted {name}"] = round(drafted / len(found), 3)
                rows.append(row)
    table = markdown_table(list(rows[0]), [list(row.values()) for row in rows])
    record(
        "tool_calls",
        "What sample calls of the tools bring",
        f"{len(QUESTIONS)} made-up calls of {len(TOOLS)} tools, up to {LIMIT} drafted tokens a "
        "round: tokens per forward, and drafted tokens per forward. `forced`: with the tokens that "
        f"the tools' grammar allows only one of.\n\n{table}",
        {"rows": rows},
    )


if __name__ == "__main__":
    main()
