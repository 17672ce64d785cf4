"""The drafting protocol: what a drafter is told, and what it hands to the verifier.

A drafter sees token ids and nothing else. It never imports mlx (the draft model excepted) and
never raises on any sequence of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess at the next tokens.

    Attributes:
        tokens: the guessed ids, in order; empty means that the drafter would rather not guess.
        source: which drafter, or which tier of one, made the guess.
        match_length: how many tokens of context the guess rests on.
        probabilities: None for a one-hot proposal; else float32 `[len(tokens), vocabulary]`, row
            `i` being the exact distribution that `tokens[i]` was sampled from.
        accept_probs: the drafter's own estimate, for each token, of the probability that it is
            accepted once the tokens before it were; empty where the drafter has none to give.
        suggested_length: how many of the tokens to verify where costs are unknown; None means all
            of them, and so does a number beyond their end, as in a draft that was cut. Planners
            that know the costs use `accept_probs`.
    """

    tokens: tuple[int, ...] = ()
    source: str = ""
    match_length: int = 0
    probabilities: npt.NDArray[np.float32] | None = None
    accept_probs: tuple[float, ...] = ()
    suggested_length: int | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def __bool__(self) -> bool:
        return bool(self.tokens)

    def cut(self, length: int) -> Draft:
        """The same guess, at most `length` tokens long."""
        if length >= len(self.tokens):
            return self
        rows = None if self.probabilities is None else self.probabilities[:length]
        return Draft(
            self.tokens[:length],
            self.source,
            self.match_length,
            rows,
            self.accept_probs[:length],
            self.suggested_length,
        )


NO_DRAFT = Draft()


class Drafter(Protocol):
    """Guesses how a sequence goes on.

    The engine calls `begin` once a request, then in turns `propose`, `feedback` and `extend`.
    """

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        """Starts a request whose context is `prompt`.

        Args:
            prompt: what the target has seen.
            references: documents that it has not seen and that the answer may be copied from. A
                drafter that copies does so from these too, and takes each for itself: no match and
                no draft runs from one into another. One that does not copy passes them over.
        """

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens that were really emitted. In pieces or at once comes to the same."""

    def propose(self, limit: int) -> Draft:
        """A guess of at most `limit` tokens; an empty one where nothing speaks for any."""

    def feedback(self, draft: Draft, accepted: int) -> None:
        """Tells how many tokens of a verified draft stood, before `extend` brings the outcome."""


@runtime_checkable
class LearnsFromAlternatives(Protocol):
    """What a drafter adds that also learns from tokens the target held likely but did not emit.

    The verifying forward has them for free. A loop asks `isinstance(drafter,
    LearnsFromAlternatives)` once a request, and where `alternatives_wanted` is positive calls
    `learn_alternatives` after the `extend` of each round. Source: Romsto's `filler_top_k`.
    """

    @property
    def alternatives_wanted(self) -> int:
        """How many ids a row should have; 0 when the drafter was set up not to want any."""

    def learn_alternatives(self, position: int, rows: Sequence[Sequence[int]]) -> None:
        """Learns the target's likeliest ids at positions that `extend` has brought already.

        Args:
            position: index, in prompt and emitted tokens together, of the position that the first
                row speaks of: `rows[i]` are the ids likeliest at `position + i`, given the tokens
                before it.
            rows: one row a position, the likeliest id first.
        """


FIRST_BOUNDARY: Final = 1 << 31
"""Ids from here on close references; no vocabulary is that large.

A drafter that copies keeps the references and the prompt in one list. Each boundary occurs once, so
no match runs across it.
"""


def joined(references: Sequence[Sequence[int]], prompt: Sequence[int]) -> list[int]:
    """The references, each closed by a boundary, and then the prompt."""
    tokens: list[int] = []
    for number, reference in enumerate(references):
        tokens.extend(reference)
        tokens.append(FIRST_BOUNDARY + number)
    tokens.extend(prompt)
    return tokens


def until_boundary(tokens: Sequence[int]) -> tuple[int, ...]:
    """The tokens before the first boundary among them."""
    for position, token in enumerate(tokens):
        if token >= FIRST_BOUNDARY:
            return tuple(tokens[:position])
    return tuple(tokens)


class NoDrafter:
    """Never guesses; what `--drafter none` decodes with."""

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        pass

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, limit: int) -> Draft:
        return NO_DRAFT

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass
