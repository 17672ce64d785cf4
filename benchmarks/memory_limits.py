"""What limits the memory of a project: how often the right token is chosen, found or absent.

    python -m benchmarks.memory_limits [--requests 100]

The held-out files of `project_memory`. At each token of their answers, `auto` with a memory of the
other files has a favourite; where that is wrong, the right token is looked for behind all places of
the memory that match. Then answers are replayed with choices that know the answer: of where a draft
ends, and of the places that it follows. Nothing is timed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from akunu_py.bench.held_out import HeldOut, hold_out
from akunu_py.bench.replay import replay
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.loading import load_tokenizer
from akunu_py.memory.segment import DEPTH, Segment
from akunu_py.memory.tiers import PLACES, MemoryTier, ProjectTexts
from akunu_py.planning.planner import FixedPlanner
from benchmarks.project_memory import MEASURED, TOKENS, folder_of
from benchmarks.records import markdown_table, progress_line, record

FAVOURITES: Final = ("request alone", "with memory", "lost to it")
FOUND: Final = ("places", "longest match", "2 tokens", "1 token", "never")
"""Behind which places a right token is that is not the favourite: those that are looked at, all
that match as long, all that match so many tokens or as many as any does, none."""

Continuation = Callable[[Segment, Sequence[int], Sequence[int]], int]
"""How many tokens of an answer the best place goes on with: of the memory, the tokens before and
the tokens after."""


def best_after(least: int) -> Continuation:
    """The best of all places that match so many tokens, or as many as any does."""

    def length(memory: Segment, before: Sequence[int], answer: Sequence[int]) -> int:
        found = memory.nearest(before, 1)
        needed = min(least, found[0][0]) if found else least
        for ahead in range(1, len(answer) + 1):
            found = memory.nearest([*before, *answer[:ahead]], 1)
            if not found or found[0][0] < min(needed + ahead, DEPTH):
                return ahead - 1
        return len(answer)

    return length


def best_place(memory: Segment, before: Sequence[int], answer: Sequence[int]) -> int:
    """The best of the places that are looked at."""
    return max(
        (agreement(memory, at, answer) for _, at in memory.nearest(before, PLACES)), default=0
    )


def agreement(memory: Segment, at: int, answer: Sequence[int]) -> int:
    """How many tokens of an answer follow at a place."""
    held = memory.tokens[at : at + len(answer)]
    pairs = zip(held, answer, strict=False)
    return next((ahead for ahead, (a, b) in enumerate(pairs) if a != b), len(held))


CHOICES: Final[dict[str, Continuation]] = {
    "places": best_place,
    "longest match": best_after(DEPTH),
    "2 tokens": best_after(2),
    "1 token": best_after(1),
}


def drafters(project: HeldOut) -> tuple[AutoDrafter, AutoDrafter]:
    """One that has the request alone, and one that has the memory too."""
    tier = MemoryTier(ProjectTexts([project.memory]))
    return AutoDrafter(), AutoDrafter([tier])


def favourites(project: HeldOut) -> Counter[str]:
    """How many tokens of the answers are of each kind; "all" counts them."""
    counts: Counter[str] = Counter()
    alone, recalling = drafters(project)
    for case in project.cases:
        tokens = list(case.prompt)
        for drafter in (alone, recalling):
            drafter.begin(case.prompt)
        for token in case.reference:
            before, right = tokens[-DEPTH:], []
            for drafter in (alone, recalling):
                right.append(drafter.propose(1).tokens == (token,))
                drafter.extend([token])
            counts["all"] += 1
            for name, is_so in zip(FAVOURITES, (*right, right == [True, False]), strict=True):
                counts[name] += is_so
            if not right[1]:
                where = (
                    name for name, best in CHOICES.items() if best(project.memory, before, [token])
                )
                counts[next(where, "never")] += 1
            tokens.append(token)
    return counts


def replayed_with(project: HeldOut, best: Continuation) -> float:
    """Tokens a forward if each draft is the better of `auto`'s and what the best place says."""
    forwards = tokens = 0
    _, drafter = drafters(project)
    for case in project.cases:
        drafter.begin(case.prompt)
        text, at = [*case.prompt, *case.reference], len(case.prompt)
        while at < len(text):
            draft, answer = drafter.propose(TOKENS), text[at : at + TOKENS]
            pairs = zip(draft.tokens, answer, strict=False)
            accepted = next(
                (n for n, (a, b) in enumerate(pairs) if a != b), min(len(draft), len(answer))
            )
            drafter.feedback(draft, accepted)
            longest = max(accepted, best(project.memory, text[max(0, at - DEPTH) : at], answer))
            emitted = text[at : at + longest + 1]
            drafter.extend(emitted)
            at, forwards, tokens = at + len(emitted), forwards + 1, tokens + len(emitted)
    return tokens / forwards


def main() -> None:
    """Counts, replays and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100)
    asked = parser.parse_args()
    tokenizer, show = load_tokenizer("ember"), progress_line("projects")
    shares: list[dict[str, Any]] = []
    forwards: list[dict[str, Any]] = []
    with TemporaryDirectory() as name:
        for done, module in enumerate(MEASURED):
            project = hold_out(folder_of(module), tokenizer, Path(name), most=asked.requests)
            counts = favourites(project)
            kinds = (*FAVOURITES, *FOUND)
            shares.append(
                {"set": module} | {kind: round(counts[kind] / counts["all"], 3) for kind in kinds}
            )
            alone, recalling = (
                replay(lambda: drafter, project.cases, FixedPlanner(TOKENS), limit=TOKENS)  # noqa: B023
                for drafter in drafters(project)
            )
            forwards.append(
                {
                    "set": module,
                    "request alone": round(alone.tokens_per_forward, 2),
                    "with memory": round(recalling.tokens_per_forward, 2),
                    "drafted": round(recalling.drafted / recalling.forwards, 2),
                    "right": round(recalling.accepted / recalling.forwards, 2),
                }
                | {kind: round(replayed_with(project, best), 2) for kind, best in CHOICES.items()}
            )
            show(done + 1, len(MEASURED))
    tables = [
        markdown_table(list(rows[0]), [list(row.values()) for row in rows])
        for rows in (shares, forwards)
    ]
    record(
        "project_memory_limits",
        "What limits the memory of a project",
        "The share of the tokens of held-out function bodies that are the favourite of `auto` "
        "with the request alone, with a memory of the other files, and only with the former. "
        "Then those that are not its favourite: whether the memory holds them behind one of the "
        f"{PLACES} places that are looked at, another that matches as long, any that matches 2 "
        "tokens, 1 token, or none.\n\n"
        f"{tables[0]}\n\n"
        f"Tokens a forward with drafts of up to {TOKENS} tokens that end only where they are "
        "hardly likely: drafted tokens a forward, and those of them that were right, which is all "
        "that drafts would have that end before the first wrong token. Then with the better of "
        "this draft and the best continuation that the memory has, if somebody knew which.\n\n"
        f"{tables[1]}",
        {"favourites": shares, "forwards": forwards},
    )


if __name__ == "__main__":
    main()
