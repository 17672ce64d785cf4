"""Prompts of the identity check: from the standard library, and from a seeded generator.

Four kinds: `code` to continue, `edit` requests in chat form, `prose` to continue, and `random`
token sequences.
"""

import ast
import sysconfig
from pathlib import Path
from random import Random
from typing import Final

from akunu_py.bench.identity import Prompt
from akunu_py.bench.workloads import rename_request
from akunu_py.text.chat import ChatTranscript
from akunu_py.text.tokenizer import Tokenizer

KINDS: Final = ("code", "edit", "prose", "random")


def make_prompts(
    tokenizer: Tokenizer, vocabulary: int, count: int, *, seed: int = 0
) -> list[Prompt]:
    """`count` prompts, the four kinds in turns, the same on every run of one Python version.

    Args:
        tokenizer: the tokenizer of the model that answers them.
        vocabulary: how many ids random prompts are drawn from.
        count: how many to make.
        seed: the seed of all draws.
    """
    draw = Random(seed)
    functions = _functions(draw)
    made: list[Prompt] = []
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        source, docstring = functions[index % len(functions)]
        if kind == "random":
            tokens = [draw.randrange(vocabulary) for _ in range(draw.randrange(1, 120))]
        elif kind == "edit":
            tokens = edit_prompt(tokenizer, *rename_request(source, draw))
        elif kind == "prose":
            tokens = tokenizer.encode(docstring[: draw.randrange(20, max(21, len(docstring)))])
        else:
            tokens = tokenizer.encode(source[: draw.randrange(20, max(21, len(source) * 2 // 3))])
        made.append(Prompt(kind, tokens))
    return made


def edit_prompt(tokenizer: Tokenizer, request: str, _answer: str = "") -> list[int]:
    """A request as one turn of a chat; plain text where the model has no template."""
    if not tokenizer.has_chat_template:
        return tokenizer.encode(request)
    return ChatTranscript(tokenizer).prompt_for(request)


def _functions(draw: Random) -> list[tuple[str, str]]:
    """Documented functions of the standard library, 4 to 25 lines long, with their docstrings."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef) or not (words := ast.get_docstring(node)):
                continue
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if 4 <= lines <= 25 and len(words) > 40:
                found.append(((ast.get_source_segment(text, node) or "") + "\n", words))
    draw.shuffle(found)
    return found
