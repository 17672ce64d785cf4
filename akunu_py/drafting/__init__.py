"""Drafters: each a file, all behind the protocol in `base.py`.

Those that need nothing but tokens are made by name here. The statistical models of
`ngram_model_drafter.py` need counts and a vocabulary, and are made where these are known; so is
`draft_model.py`, which needs a second model and is chosen by the name `MODEL_DRAFTER`.
"""

from collections.abc import Callable

from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import Drafter, NoDrafter
from akunu_py.drafting.ngram import NGramDrafter
from akunu_py.drafting.ngram_storage import OneLevelStorage, StorageDrafter
from akunu_py.drafting.prompt_lookup import (
    LlamaCache,
    LlamaMapK,
    LlamaMapK4v,
    LlamaMod,
    LlamaSimple,
    TransformersLookup,
    VllmNGram,
)
from akunu_py.drafting.suffix_automaton import SuffixAutomatonDrafter
from akunu_py.drafting.suffix_decoding import SuffixDecoding
from akunu_py.errors import InvalidRequestError


def _one_level() -> Drafter:
    return StorageDrafter(OneLevelStorage())


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "auto": AutoDrafter,
    "ngram": NGramDrafter,
    "none": NoDrafter,
    "storage": StorageDrafter,
    "storage-one-level": _one_level,
    "suffix": SuffixAutomatonDrafter,
    "suffix-decoding": SuffixDecoding,
    "transformers-lookup": TransformersLookup,
    "vllm-ngram": VllmNGram,
    "llama-simple": LlamaSimple,
    "llama-map-k": LlamaMapK,
    "llama-map-k4v": LlamaMapK4v,
    "llama-mod": LlamaMod,
    "llama-cache": LlamaCache,
}
DRAFTER_NAMES = tuple(DRAFTERS)
REMEMBERS_TEXT = frozenset({"storage", "storage-one-level", "llama-mod", "llama-cache"})
"""Drafters that draft from the text of earlier requests too; others keep what they learnt of their
own acceptance at most."""
MODEL_DRAFTER = "model"


def make_drafter(name: str) -> Drafter:
    """Makes the drafter called `name`; `auto` is the one this project recommends.

    Raises:
        InvalidRequestError: if there is none of that name.
    """
    if name not in DRAFTERS:
        known = ", ".join(DRAFTER_NAMES)
        raise InvalidRequestError(f"There is no drafter {name!r}; choose one of {known}.")
    return DRAFTERS[name]()
