"""Drafters implement the protocol in `base.py`; networks that guess implement `Guesser` in
`chain.py`.

`MAKERS` has the drafters that need nothing but tokens. A network guesses in addition to copies for
requests that name `AUTO_DRAFTER`, and alone for those that name one of `NETWORKS`: the model's own
head, or a second model.
"""

from collections.abc import Callable
from typing import Final

from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import Drafter, NoDrafter
from akunu_py.drafting.ngram import NGramDrafter
from akunu_py.errors import InvalidRequestError

MAKERS: Final[dict[str, Callable[[], Drafter]]] = {
    "auto": AutoDrafter,
    "copies": AutoDrafter,
    "ngram": NGramDrafter,
    "none": NoDrafter,
}
AUTO_DRAFTER: Final = "auto"
HEAD_DRAFTER: Final = "head"
MODEL_DRAFTER: Final = "model"
NETWORKS: Final = (HEAD_DRAFTER, MODEL_DRAFTER)


def make_drafter(name: str) -> Drafter:
    """Makes the drafter called `name`, or raises an InvalidRequestError."""
    if name not in MAKERS:
        known = ", ".join((*MAKERS, *NETWORKS))
        raise InvalidRequestError(f"There is no drafter {name!r}; choose one of {known}.")
    return MAKERS[name]()
