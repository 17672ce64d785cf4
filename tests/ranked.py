"""Answers of tiny models, by this process alone or by several ranks: `python -m tests.ranked`.

`test_ranks.py` compares the two.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

import akunu_py
from akunu_py.engine import Engine
from akunu_py.options import Options, Sampling
from akunu_py.ranks.mirror import RankedModel

REPEATING: Final = "one two one two one two one"
LONGER: Final = f"{REPEATING} two three"
SAMPLED: Final = Sampling(temperature=0.7, seed=3)
CASES: Final[dict[str, Options]] = {
    "greedy, plain": Options(8, drafter="none"),
    "greedy, drafted": Options(8, drafter="ngram", num_draft_tokens=3),
    "greedy, exact": Options(8, drafter="ngram", num_draft_tokens=2, exact=True),
    "sampled, plain": Options(8, drafter="none", sampling=SAMPLED),
    "sampled, drafted": Options(8, drafter="ngram", num_draft_tokens=3, sampling=SAMPLED),
}


def answers(folder: str, **load: Any) -> dict[str, Any]:
    """What a model answers to a few requests, some of which reuse what others computed."""
    engine = akunu_py.load(folder, **load)
    found: dict[str, Any] = {}
    for name, options in CASES.items():
        completions = [engine.generate(prompt, options) for prompt in (REPEATING, LONGER)]
        found[name] = [one.token_ids for one in completions]
    found["cancelled"] = _cancelled(engine)
    together = Options(6, drafter="ngram", num_draft_tokens=2)
    batch = engine.generate_batch([REPEATING, "abc abc abc", LONGER], together)
    found["together"] = [one.token_ids for one in batch]
    if isinstance(engine.model, RankedModel):
        seconds = engine.model.broadcast_seconds()
        print(
            json.dumps([engine.model.ranks, seconds > 0, engine.model.parameter_bytes]),
            file=sys.stderr,
        )
        engine.model.close()
    return found


def _cancelled(engine: Engine) -> list[int]:
    """The answer after one that was cancelled in the middle, of its prompt and of its text."""
    asked = iter([False, True, True])
    list(engine.stream("x" * 600, Options(4), cancelled=lambda: next(asked, True)))
    events = engine.stream("abc abc abc", Options(8, drafter="ngram", num_draft_tokens=3))
    next(events)
    events.close()
    return engine.generate("abc abc abc", Options(4, drafter="none")).token_ids


def main(folders: Sequence[str]) -> None:
    """Prints the answers of every model, as rank 0; the others follow it through all of them."""
    found = {}
    for folder in folders:
        try:
            found[folder] = answers(folder.removesuffix("|"), pipeline=folder.endswith("|"))
        except SystemExit:
            continue
    if found:
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
