"""Answers of tiny models, by this process alone or by several ranks: `python -m tests.ranked`.

`test_ranks.py` compares the two.
"""

import json
import sys
from typing import Any, Final, cast

import akunu_py
from akunu_py.__main__ import main as command_line
from akunu_py.engine import Engine
from akunu_py.model.target_model import TargetModel
from akunu_py.options import BUNDLED_MODEL, Options, Sampling
from akunu_py.ranks.split_model import RankedModel
from akunu_py.sequence import Sequence

REPEATING: Final = "one two one two one two one"
LONGER: Final = f"{REPEATING} two three"
SAMPLED: Final = Sampling(temperature=0.7, seed=3)
CASES: Final[dict[str, Options]] = {
    "greedy, plain": Options(4, drafter="none"),
    "greedy, drafted": Options(4, drafter="ngram", num_draft_tokens=3),
    "sampled, drafted": Options(4, drafter="ngram", num_draft_tokens=3).sampled_as(SAMPLED),
    "sampled, plain": Options(4, drafter="none").sampled_as(SAMPLED),
    "greedy, exact": Options(4, drafter="ngram", num_draft_tokens=2, exact=True),
}
GENERATE: Final = (
    *("--prompt", "one two one", "--max-tokens", "4", "--temp", "0.8", "--seed", "5", "--json"),
)
SHORT: Final = ("greedy, plain", "sampled, drafted")


def has_many(size: int, folder: str) -> bool:
    """Whether ranks answer all requests: more than two share few cores, and the bundled model is
    larger."""
    return size == 2 and folder != BUNDLED_MODEL


def answers(folder: str, *, whole: bool = True, pipeline: bool = False) -> dict[str, Any]:
    """What a model answers to a few requests, each of which reuses what another one computed.

    Args:
        folder: the model.
        whole: whether to answer all of them; see `has_many`.
        pipeline: how the ranks split the model.
    """
    engine = akunu_py.load(akunu_py.ModelOptions(folder, pipeline=pipeline))
    found: dict[str, Any] = {}
    for name in CASES if whole else SHORT:
        prompt = LONGER if name.startswith("sampled") else REPEATING
        found[name] = engine.generate(prompt, CASES[name]).token_ids
    if whole:
        found["cancelled"] = _cancelled(engine)
        together = Options(4, drafter="ngram", num_draft_tokens=2)
        batch = engine.generate_batch([REPEATING, "abc abc abc", LONGER], together)
        found["together"] = [one.token_ids for one in batch]
        found["repeated"] = _repeated(engine.model)
    found["bytes"] = engine.model.parameter_bytes
    if isinstance(engine.model, RankedModel):
        assert engine.model.broadcast_seconds() > 0
        found["ranks"] = engine.model.ranks
        engine.model.close()
    return found


def _cancelled(engine: Engine) -> list[int]:
    """The answer after one that was cancelled in the middle, of its prompt and of its text."""
    sequence = Sequence("x" * 600, Options(4, reports_progress=True), may_be_cancelled=True)
    for event in engine.stream(sequence):
        sequence.cancelled = event.prompt_done != 0
    events = engine.stream("abc abc abc", Options(8, drafter="ngram", num_draft_tokens=3))
    next(events)
    events.close()
    return engine.generate("abc abc abc", Options(4, drafter="none")).token_ids


def _repeated(model: TargetModel) -> list[int]:
    """The likeliest tokens after a context of copies, with which some measurements begin."""
    cache = model.make_cache(16)
    model.prefill([5, 6, 7], cache)
    cache.repeat(8)
    seen: list[Any] = []
    for _ in model.prefill_chunks(range(6), cache, step=lambda: 6, observe=seen.append):
        cache.rollback(8)
    return cast(list[int], seen[0].argmax(axis=-1).tolist())


def main(size: str, *folders: str) -> None:
    """Prints the answers of every model, as rank 0; the others follow it through all of them.

    A folder that ends in `|` is pipelined. With two ranks, the command line answers one more
    request, on a line of its own.
    """
    found = {}
    for folder in folders:
        try:
            found[folder] = answers(
                folder.removesuffix("|"),
                whole=has_many(int(size), folder),
                pipeline=folder.endswith("|"),
            )
        except SystemExit:
            continue
    if found:
        print(json.dumps(found))
    if size == "2":
        command_line(["generate", "--model", folders[0], *GENERATE])


if __name__ == "__main__":
    main(*sys.argv[1:])
