"""Baselines: drafters of other systems, to compare with the drafters of this project.

`bench` and `benchmarks/` offer them; `chat`, `generate` and `serve` do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from akunu_py.bench.baselines.prompt_lookup import (
    LlamaCache,
    LlamaMapK,
    LlamaMapK4v,
    LlamaMod,
    LlamaSimple,
    TransformersLookup,
    VllmNGram,
)
from akunu_py.bench.baselines.suffix_decoding import SuffixDecoding
from akunu_py.drafting import DRAFTERS
from akunu_py.drafting.base import Drafter
from akunu_py.drafting.ngram_storage import NGramStorage, StorageDrafter

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.sampling.sampler import Sampler


BASELINES: Final[dict[str, Callable[[], Drafter]]] = {
    "storage-one-level": lambda: StorageDrafter(NGramStorage(one_level=True)),
    "suffix-decoding": SuffixDecoding,
    "transformers-lookup": TransformersLookup,
    "vllm-ngram": VllmNGram,
    "llama-simple": LlamaSimple,
    "llama-map-k": LlamaMapK,
    "llama-map-k4v": LlamaMapK4v,
    "llama-mod": LlamaMod,
    "llama-cache": LlamaCache,
}
ALL_DRAFTERS: Final = DRAFTERS | BASELINES
"""The drafters that a user can choose, and the baselines."""

REMEMBERS_TEXT: Final = frozenset({"storage", "storage-one-level", "llama-mod", "llama-cache"})
"""Drafters that also draft from the text of earlier requests; the others remember at most how
often their drafts were accepted."""


def add_baselines(engine: Engine) -> None:
    """Lets requests to an engine name the baselines; each is made once and keeps what it learns."""
    for name, make in BASELINES.items():
        engine.speculation.add_drafter(name, _always(make()))


def _always(drafter: Drafter) -> Callable[[Sampler], Drafter]:
    return lambda _: drafter
