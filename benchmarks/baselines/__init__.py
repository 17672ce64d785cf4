"""Drafters of other systems, with the constants that these systems ship, to compare `auto` with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from akunu_py.drafting import MAKERS
from akunu_py.drafting.base import Drafter
from benchmarks.baselines.prompt_lookup import (
    LlamaCache,
    LlamaMapK,
    LlamaMapK4v,
    LlamaMod,
    LlamaSimple,
    TransformersLookup,
    VllmNGram,
)
from benchmarks.baselines.suffix_automaton import SuffixAutomatonDrafter
from benchmarks.baselines.suffix_decoding import SuffixDecoding
from benchmarks.seeds.ngram_storage import NGramStorage, StorageDrafter

BASELINES: Final[dict[str, Callable[[], Drafter]]] = {
    "suffix": SuffixAutomatonDrafter,
    "storage": StorageDrafter,
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
ALL_DRAFTERS: Final = MAKERS | BASELINES

REMEMBERS_TEXT: Final = frozenset({"storage", "storage-one-level", "llama-mod", "llama-cache"})
"""Drafters that also draft from the text of earlier requests; the others remember at most how
often their drafts were accepted."""


def drafters_for(name: str) -> Callable[[], Drafter]:
    """What to begin each request of a replay with: the same drafter, or a new one if it remembers
    text, because a replay compares requests that do not know each other."""
    make = ALL_DRAFTERS[name]
    if name in REMEMBERS_TEXT:
        return make
    kept = make()
    return lambda: kept
