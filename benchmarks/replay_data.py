"""Real requests for replays, as (prompt, answer) texts: edits, fixes, renames, fill-ins, chats.

Reads the data sets by path, from a folder that holds them under their own names; a set that is
absent has no requests. Knows nothing of drafters.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Encode = Callable[[str], list[int]]
NEW_NAMES = ("total", "current_value", "entries", "k", "result_so_far", "item_index")
END_TEXTS = ("<|im_end|>", "<|endoftext|>")


def load_encoder(path: Path) -> Encode:
    """The encoder in a `tokenizer.json`, or in a SentencePiece `.model`."""
    if path.suffix == ".model":
        import sentencepiece  # noqa: PLC0415

        pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return lambda text: list(pieces.encode(text))
    from tokenizers import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file, gzipped or not; none where there is no file."""
    if not path.exists():
        return
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        yield from map(json.loads, lines)


def chat_text(*turns: tuple[str, str]) -> str:
    """ChatML with the assistant's next turn left open."""
    told = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return f"{told}<|im_start|>assistant\n"


def edits(data: Path) -> Iterator[tuple[str, str]]:
    """EditEval: instruction and code in, edited code out."""
    for row in read_lines(data / "editeval" / "edit_eval.jsonl"):
        asked = f"{row['instruction'].strip()}\n```python\n{row['input']}\n```"
        yield chat_text(("user", asked)), f"```python\n{row['output']}\n```<|im_end|>"


def fixes(data: Path) -> Iterator[tuple[str, str]]:
    """HumanEvalPack: a function with a bug in, the fixed function out."""
    for row in read_lines(data / "humanevalpack" / "python.jsonl"):
        head = row["declaration"]
        asked = f"Fix the bug in {row['entry_point']}.\n```python\n{head}{row['buggy_solution']}```"
        answer = f"```python\n{head}{row['canonical_solution']}```<|im_end|>"
        yield chat_text(("user", asked)), answer


def renames(data: Path) -> Iterator[tuple[str, str]]:
    """HumanEvalPack's functions with the name they use most renamed; made here, by rule."""
    for row in read_lines(data / "humanevalpack" / "python.jsonl"):
        code = row["declaration"] + row["canonical_solution"]
        names = Counter(
            node.id if isinstance(node, ast.Name) else node.arg
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.arg)
            or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        )
        uses = {name: len(re.findall(rf"\b{name}\b", code)) for name in names}
        old = max(sorted(uses), key=lambda name: uses[name])
        new = NEW_NAMES[len(code) % len(NEW_NAMES)]
        asked = f"Rename `{old}` to `{new}`.\n```python\n{code}```"
        answer = re.sub(rf"\b{old}\b", new, code)
        yield chat_text(("user", asked)), f"```python\n{answer}```<|im_end|>"


def fill_ins(data: Path) -> Iterator[tuple[str, str]]:
    """HumanEval infilling: single lines and random spans."""
    for name in ("SingleLine", "RandomSpan"):
        light = "Light" if name == "RandomSpan" else ""
        path = data / "humaneval_infilling" / f"HumanEval-{name}Infilling{light}.jsonl.gz"
        for row in read_lines(path):
            asked = f"<|fim_prefix|>{row['prompt']}<|fim_suffix|>{row['suffix']}<|fim_middle|>"
            yield asked, f"{row['canonical_solution']}<|endoftext|>"


def chats(data: Path) -> Iterator[tuple[str, str]]:
    """MT-bench: both turns of the questions that have a reference answer."""
    asked = {
        row["question_id"]: row["turns"] for row in read_lines(data / "mt_bench/question.jsonl")
    }
    for row in read_lines(data / "mt_bench" / "reference_gpt-4.jsonl"):
        told: list[tuple[str, str]] = []
        turns = zip(asked[row["question_id"]], row["choices"][0]["turns"], strict=True)
        for question, answer in turns:
            told.append(("user", question))
            yield chat_text(*told), f"{answer}<|im_end|>"
            told.append(("assistant", answer))


DATA_SETS = {
    "edits": edits,
    "fixes": fixes,
    "renames": renames,
    "fill-ins": fill_ins,
    "chats": chats,
}
