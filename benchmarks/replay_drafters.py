"""Replays every drafter over real edits, fixes, renames, fill-ins and chats, with no model.

    python -m benchmarks.replay_drafters --data DATA [--tokenizer PATH] [--limits 4 8 16 32]

DATA holds the folders of the data's own names; what is absent is skipped. Every request gets a
fresh drafter, so that none knows the answers of other requests; `auto, kept` is one `auto` for all,
which keeps what it learns of its acceptance and no tokens. `auto` is also replayed at several
prices of a drafted token, and set against each other drafter at the price where it drafts no more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from akunu_py.bench.replay import ReplayCase, ReplayResult, replay
from akunu_py.drafting import DRAFTERS, make_drafter
from akunu_py.drafting.auto import PRICE, AutoDrafter
from akunu_py.drafting.base import Drafter
from benchmarks.replay_data import DATA_SETS, END_TEXTS, load_encoder
from benchmarks.report import markdown_table, record

TOKENIZER = Path(__file__).parents[1] / "models" / "ember" / "tokenizer.json"
LIMITS = (4, 8, 16, 32)
PRICES = (0.03, 0.05, 0.08, PRICE, 0.16, 0.2, 0.23, 0.26, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
FIELD = [name for name in DRAFTERS if name not in ("auto", "none")]

Row = dict[str, Any]


def one_for_all() -> Callable[[], Drafter]:
    """Gives every request the same `auto`, as an engine that lives on does."""
    drafter = AutoDrafter()
    return lambda: drafter


def row_of(name: str, result: ReplayResult) -> Row:
    """One line of a table, rounded as it is printed."""
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
    }


def table(rows: list[Row]) -> str:
    """Rows as Markdown, most tokens per forward first."""
    columns = ("drafter", "tokens/forward", "accepted/forward", "drafted/forward", "acceptance")
    ordered = sorted(rows, key=lambda row: -row["tokens_per_forward"])
    cells = [
        (
            row["drafter"],
            f"{row['tokens_per_forward']:.2f}",
            f"{row['mean_accepted']:.2f}",
            f"{row['mean_drafted']:.2f}",
            f"{row['acceptance']:.1%}",
        )
        for row in ordered
    ]
    return markdown_table(columns, cells)


def frugal(priced: list[Row], budget: int) -> Row | None:
    """Of `auto` at its prices, the row with most tokens per forward that drafts no more."""
    affordable = [row for row in priced if row["drafted"] <= budget]
    return max(affordable, key=lambda row: row["tokens_per_forward"], default=None)


def duels(rows: list[Row], priced: list[Row]) -> tuple[str, list[str]]:
    """`auto` against each other drafter at its budget: a table, and those that it does not beat."""
    cells, lost = [], []
    for row in rows:
        ours = frugal(priced, row["drafted"])
        if row["drafter"] not in FIELD or ours is None:
            continue
        gain = ours["tokens_per_forward"] / row["tokens_per_forward"] - 1
        if gain < 0:
            lost.append(f"{row['drafter']} ({gain:+.1%})")
        cells.append(
            (
                row["drafter"],
                f"{row['tokens_per_forward']:.2f} of {row['drafted']:,}",
                f"{ours['tokens_per_forward']:.2f} of {ours['drafted']:,}",
                ours["price"],
                f"{gain:+.1%}",
            )
        )
    heads = ("drafter", "tokens/forward", "auto, drafting no more", "at price", "auto is")
    return markdown_table(heads, cells), lost


def report(results: list[Row]) -> str:
    """Every set and limit: all drafters, then the duels, then the set's outcome in a sentence."""
    body = []
    for set_name, limit in dict.fromkeys((row["set"], row["limit"]) for row in results):
        here = [row for row in results if (row["set"], row["limit"]) == (set_name, limit)]
        rows = [row for row in here if "price" not in row]
        table_of_duels, lost = duels(rows, [row for row in here if "price" in row])
        field = [row for row in rows if row["drafter"] in FIELD]
        best = max(field, key=lambda row: row["tokens_per_forward"])
        auto = next(row for row in rows if row["drafter"] == "auto")
        body += [
            f"## {set_name}, drafts up to {limit}",
            table(rows),
            table_of_duels,
            f"`auto` as it is: {auto['tokens_per_forward']:.2f} tokens a forward for "
            f"{auto['drafted']:,} drafts; the best of the others, {best['drafter']}: "
            f"{best['tokens_per_forward']:.2f} for {best['drafted']:,}. "
            f"Not beaten at their own budget: {', '.join(lost) or 'none'}.",
        ]
    return "\n\n".join(body)


def main() -> None:
    """Reads the options, replays, records the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--limits", type=int, nargs="+", default=LIMITS)
    parser.add_argument("--sets", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--name", default="replay_drafters", help="of the files in results/")
    options = parser.parse_args()

    encode = load_encoder(options.tokenizer)
    end_tokens = frozenset(token for text in END_TEXTS for token in encode(text)[-1:])
    results: list[Row] = []
    for set_name in options.sets:
        texts = list(DATA_SETS[set_name](options.data))
        if not texts:
            print(f"{set_name}: not under the data folder, skipped", file=sys.stderr)
            continue
        cases = [ReplayCase(encode(prompt), encode(answer)) for prompt, answer in texts]
        for limit in options.limits:
            print(f"{set_name}, drafts up to {limit} ...", file=sys.stderr, flush=True)
            for row in replayed(cases, limit, end_tokens):
                results.append({"set": set_name, "limit": limit, **row})
    body = f"Tokenizer: {options.tokenizer.parent.name}/{options.tokenizer.name}.\n\n"
    title = "Every drafter replayed, the reference text playing the target"
    record(options.name, title, body + report(results), {"results": results})


def replayed(cases: list[ReplayCase], limit: int, end_tokens: frozenset[int]) -> Iterator[Row]:
    """A row for every drafter, and for `auto` at every price."""
    for name in DRAFTERS:
        yield row_of(name, replay(partial(make_drafter, name), cases, limit, end_tokens))
    yield row_of("auto, kept", replay(one_for_all(), cases, limit, end_tokens))
    for price in PRICES:
        result = replay(partial(AutoDrafter, price), cases, limit, end_tokens)
        yield {"price": price, **row_of("auto", result)}


if __name__ == "__main__":
    main()
