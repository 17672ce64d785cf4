"""Replays every drafter over real edits, fixes, fill-ins and chats, with no model.

    python benchmarks/replay_drafters.py --data DATA [--tokenizer PATH] [--limits 4 8 16 32]

DATA holds the folders of the data's own names; what is absent is skipped. Prints one table a data
set and limit; the last line is one JSON object with all of it.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from akunu_py.bench.replay import ReplayCase, ReplayResult, replay
from akunu_py.drafting import DRAFTERS, make_drafter

Encode = Callable[[str], list[int]]
TOKENIZER = Path(__file__).parents[1] / "models" / "ember" / "tokenizer.json"
LIMITS = (4, 8, 16, 32)
END_TEXTS = ("<|im_end|>", "<|endoftext|>")
NEW_NAMES = ("total", "current_value", "entries", "k", "result_so_far", "item_index")


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


def table_row(name: str, result: ReplayResult, seconds: float) -> dict[str, Any]:
    """One line of the table, rounded as it is printed."""
    return {
        "drafter": name,
        "forwards": result.forwards,
        "emitted": result.emitted,
        "drafted": result.drafted,
        "accepted": result.accepted,
        "tokens_per_forward": round(result.tokens_per_forward, 3),
        "mean_accepted": round(result.mean_accepted, 3),
        "mean_drafted": round(result.mean_drafted, 3),
        "acceptance": round(result.acceptance, 3),
        "seconds": round(seconds, 2),
    }


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Prints rows as Markdown, most tokens per forward first."""
    print(f"\n### {title}\n")
    print("| drafter | tokens/forward | accepted/forward | drafted/forward | acceptance |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row in sorted(rows, key=lambda row: -row["tokens_per_forward"]):
        print(
            f"| {row['drafter']} | {row['tokens_per_forward']:.2f} | {row['mean_accepted']:.2f} "
            f"| {row['mean_drafted']:.2f} | {row['acceptance']:.1%} |"
        )


def main() -> None:
    """Reads the options, replays, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--limits", type=int, nargs="+", default=LIMITS)
    parser.add_argument("--drafters", nargs="+", default=list(DRAFTERS))
    parser.add_argument("--sets", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    options = parser.parse_args()

    encode = load_encoder(options.tokenizer)
    end_tokens = frozenset(token for text in END_TEXTS for token in encode(text)[-1:])
    report: dict[str, Any] = {"tokenizer": options.tokenizer.name, "results": []}
    for set_name in options.sets:
        texts = list(DATA_SETS[set_name](options.data))
        if not texts:
            print(f"{set_name}: not under the data folder, skipped", file=sys.stderr)
            continue
        cases = [ReplayCase(encode(prompt), encode(answer)) for prompt, answer in texts]
        for limit in options.limits:
            rows = []
            for name in options.drafters:
                started = time.perf_counter()
                result = replay(partial(make_drafter, name), cases, limit, end_tokens)
                rows.append(table_row(name, result, time.perf_counter() - started))
            print_table(f"{set_name}: {len(cases)} requests, drafts up to {limit}", rows)
            report["results"] += [{"set": set_name, "limit": limit, **row} for row in rows]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
