"""The drafting protocol: what a drafter receives, and the `Draft` that it returns.

A drafter sees token ids and nothing else. It never raises on any sequence of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from akunu_py.tokens import Origin

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


RECALL: Final = "recall"
FORCED: Final = "forced"
"""Sources of drafts that are not copies: recalled from other texts, or made by a grammar."""

_ORIGINS: Final = {
    RECALL: Origin.MEMORY,
    FORCED: Origin.GRAMMAR,
    Origin.HEAD.value: Origin.HEAD,
    Origin.MODEL.value: Origin.MODEL,
    **dict.fromkeys(("copy", "resumed", "match", "ngram"), Origin.COPIES),
}


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess at the next tokens, made from `match_length` tokens of context. `accept_probs`
    estimates for each token that it is accepted if those before it are; empty means no estimate.

    `probabilities` is None for a one-hot proposal; else float32 `[len(tokens), vocabulary]`, row
    `i` being the exact distribution that `tokens[i]` was sampled from, with random numbers that no
    earlier draft has used. Such a draft may end after a token because of that token, but must not
    leave it out for that reason. Its `accept_probs` are ignored: they may depend on the tokens that
    were drawn.
    """

    tokens: tuple[int, ...] = ()
    source: str = ""
    match_length: int = 0
    probabilities: npt.NDArray[np.float32] | None = None
    accept_probs: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def __bool__(self) -> bool:
        return bool(self.tokens)

    @property
    def origin(self) -> Origin:
        return _ORIGINS.get(self.source, Origin.OTHER) if self.tokens else Origin.NONE

    def cut(self, length: int) -> Draft:
        if length >= len(self.tokens):
            return self
        return Draft(
            self.tokens[:length],
            self.source,
            self.match_length,
            None if self.probabilities is None else self.probabilities[:length],
            self.accept_probs[:length],
        )


NO_DRAFT = Draft()


class Drafter(Protocol):
    """Guesses how a sequence continues.

    The engine calls `begin` once per request, then `propose`, `feedback` and `extend` in turn. A
    class that derives from this may leave out what it does not need.
    """

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        """Starts a request whose context is `prompt`.

        The target has not seen the references. A drafter that copies may also copy from these, but
        no match and no draft runs from one document into another.
        """
        return

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends emitted tokens. How they are split over calls makes no difference."""
        return

    def propose(self, limit: int) -> Draft:
        """A guess of at most `limit` tokens; empty if there is no evidence for any."""

    def feedback(self, draft: Draft, accepted: int) -> None:
        """Reports how many tokens of a verified draft were accepted; called before `extend`."""
        return


class NoDrafter(Drafter):
    """Never guesses: `--drafter none`."""

    def propose(self, limit: int) -> Draft:
        return NO_DRAFT
