"""Writes docs/models.md: the architectures of the installed mlx-lm, and what works with each.

    python -m tests.models_page

It asks the cache of a tiny network of each (`architectures.py`); `test_architectures.py` shows that
the tokens are right.
"""

from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

import mlx.core as mx
from mlx import nn
from mlx_lm.utils import MODEL_REMAPPING

from akunu_py.cache.model_cache import make_kv_cache, no_rollback_reason
from akunu_py.model.head_loading import LAYOUTS
from akunu_py.model.target_model import TargetModel
from tests.architectures import IN_TURNS, REFUSED, UNLIKE_ITSELF, cache_kinds, make_network, names
from tests.model.heads import CASES, LAYERS

PAGE: Final = Path(__file__).parents[1] / "docs" / "models.md"

_KEPT: Final = {
    "KVCache": "keys and values",
    "RotatingKVCache": "sliding windows",
    "ChunkedKVCache": "chunks",
    "ArraysCache": "recurrent states",
    "LayerCache": "windows and compressed groups",
}
_HEAD: Final = """\
# Models

All text architectures of mlx-lm run, and the text parts of its vision-language models. Look up \
the `model_type` in a model's `config.json`. `tests/test_architectures.py` runs a tiny network of \
each: drafts, rejections at every position and reused prefixes give the same tokens as plain \
decoding, greedy, sampled and with `--exact`. `python -m tests.models_page` writes this page.

| keeps its context in | speculation | rollback | a prefix is reused up to | `model_type` |
| --- | --- | --- | --- | --- |
"""


_OWN_HEADS: Final = """\
## Heads

Some models have a head that was trained to guess their next tokens (MTP, "nextn"). It drafts new \
text, where there is nothing to copy. It is found by its tensors: among the weights, in \
`mtp.safetensors` or `mtp/weights.safetensors` in the model's folder, or with `--mtp PATH` in a \
folder or repository with only the head or with the original model (from which only the files \
with the head are fetched). Most conversions lack the head; `doctor` says so. \
`tests/decoding/test_head_drafts.py` drafts with a tiny head of each kind and gets the tokens of \
plain decoding; among real heads, only the bundled model's was tried. Heads with recurrent layers \
are not supported, only the first of several steps guesses, and a model that is split over \
processes has no head.

| layout | recognized by the tensor | `model_type` |
| --- | --- | --- |
"""


class Family(NamedTuple):
    """What works with an architecture, in words."""

    context: str
    speculation: str
    rollback: str
    reuse: str


def family_of(network: nn.Module) -> Family:
    """What the cache of a network can do."""
    kinds = cache_kinds(network)
    context = " and ".join(phrase for kind, phrase in _KEPT.items() if kind in kinds)
    cache = make_kv_cache(network, 16)
    if (reason := no_rollback_reason(cache)) is not None:
        return Family(context, reason, "-", "its whole length")
    reuse = "any token"
    if cache.needs_checkpoints:
        reuse = "a checkpoint" if cache.has_states else "any token near its end, or a checkpoint"
    model = TargetModel(network, None, {}, name="", layout="dense")  # type: ignore[arg-type]
    return Family(context, "yes", model.after_rejection, reuse)


def models_page() -> str:
    """The text of docs/models.md."""
    families = defaultdict(list)
    for name in names():
        if name not in UNLIKE_ITSELF:
            families[family_of(make_network(name))].append(f"`{name}`")
    rows = sorted(families.items(), key=lambda family: -len(family[1]))
    lines = [f"| {' | '.join(family)} | {', '.join(types)} |\n" for family, types in rows]
    exceptions = {**UNLIKE_ITSELF, **REFUSED}
    notes = [f"- `{name}`: {reason}\n" for name, reason in exceptions.items()]
    turns = ", ".join(f"`{name}`" for name in IN_TURNS)
    others = ", ".join(f"`{new}` as `{old}`" for new, old in MODEL_REMAPPING.items())
    return (
        f"{_HEAD}{''.join(lines)}\nmlx-lm runs {others}. `llama` has windows only if its "
        "configuration names them.\n\nSeveral requests share forward passes, including drafts, but "
        f"{turns} take turns: they have their own kind of recurrence or attention, or one that "
        f"selects keys.\n\nExceptions:\n\n{''.join(notes)}\n{_heads()}"
    )


def _heads() -> str:
    """Which heads are loaded; those that draft on a tiny network of each are named."""
    families = defaultdict(list)
    for name, case in CASES.items():
        named = f"{case.projection}.weight"
        layout = next(
            one
            for one in LAYOUTS
            if (place := one.place(named, LAYERS)) is not None and place[1] == "projection.weight"
        )
        families[layout.name, case.projection.replace(str(LAYERS), "N")].append(f"`{name}`")
    rows = [
        f"| {layout} | `{named}.weight` | {', '.join(sorted(types))} |\n"
        for (layout, named), types in families.items()
    ]
    return _OWN_HEADS + "".join(rows)


if __name__ == "__main__":
    mx.disable_compile()  # on a CPU, every compiled function is a run of a C++ compiler
    PAGE.write_text(models_page(), encoding="utf-8")
