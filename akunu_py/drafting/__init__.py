"""Drafters: each a file, all behind the protocol in `base.py`.

`MAKERS` has those that need nothing but tokens. The draft model (`draft_model.py`) needs a
second model; requests choose it by the name `MODEL_DRAFTER`.
"""

from collections.abc import Callable
from typing import Final

from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import Drafter, NoDrafter
from akunu_py.drafting.ngram import NGramDrafter
from akunu_py.errors import InvalidRequestError

MAKERS: Final[dict[str, Callable[[], Drafter]]] = {
    "auto": AutoDrafter,
    "ngram": NGramDrafter,
    "none": NoDrafter,
}
AUTO_DRAFTER: Final = "auto"
MODEL_DRAFTER: Final = "model"


def make_drafter(name: str) -> Drafter:
    """Makes the drafter called `name`, or raises an InvalidRequestError."""
    if name not in MAKERS:
        known = ", ".join((*MAKERS, MODEL_DRAFTER))
        raise InvalidRequestError(f"There is no drafter {name!r}; choose one of {known}.")
    return MAKERS[name]()
