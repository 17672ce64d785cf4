"""NGramModelDrafter: samples drafts from a statistical model, with the distributions they are from.

What it hands to the verifier is a sampled q: row `i` of a draft's probabilities is the very
distribution that token `i` was drawn from, as rejection sampling needs it. Chance is keyed by a
seed and a position, so that a seed drafts the same whatever the draft's length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.drafting.ngram_model import NGramModel
from akunu_py.errors import InvalidRequestError
from akunu_py.sampling.chance import draw, uniform


class NGramModelDrafter:
    """Draws each token from the model's row for the tokens before it, its own drafts included.

    Source: "Trigram draft for nanoGPT"; the noise is that of "Trading accuracy for parallelism".

    Args:
        model: what to sample from; it is not changed.
        temperature: of the rows, applied after the row is chosen; more than 0.
        noise: how much of the uniform distribution is mixed into every row, 0 to 1.
        seed: of all draws.

    Raises:
        InvalidRequestError: if temperature or noise is outside its range.
    """

    def __init__(
        self, model: NGramModel, *, temperature: float = 1.0, noise: float = 0.0, seed: int = 0
    ) -> None:
        if not temperature > 0:
            raise InvalidRequestError(f"The draft's temperature must exceed 0, not {temperature}.")
        if not 0 <= noise <= 1:
            raise InvalidRequestError(f"The draft's noise lies between 0 and 1, not at {noise}.")
        self._model = model
        self._temperature = temperature
        self._noise = noise
        self._seed = seed
        self._context: list[int] = []
        self._position = 0

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._context = []
        self._position = 0
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self._context = self._rolled(self._context, tokens)
        self._position += len(tokens)

    def propose(self, limit: int) -> Draft:
        context = self._context
        match_length = self._model.context_length(context)
        tokens: list[int] = []
        rows: list[npt.NDArray[np.float32]] = []
        while len(tokens) < limit:
            row = self.row(context)
            token = draw(row, uniform(self._seed, self._position + len(tokens)))
            tokens.append(token)
            rows.append(row)
            context = self._rolled(context, (token,))
        if not tokens:
            return NO_DRAFT
        return Draft(tuple(tokens), f"{self._model.order}-gram model", match_length, np.stack(rows))

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass

    def row(self, context: Sequence[int]) -> npt.NDArray[np.float32]:
        """The distribution that the token after `context` is drawn from."""
        row = self._model.distribution(context, self._temperature)
        row = (1.0 - self._noise) * row + self._noise / self._model.vocabulary
        return row.astype(np.float32)

    def _rolled(self, context: Sequence[int], tokens: Sequence[int]) -> list[int]:
        return [*context, *tokens[1 - self._model.order :]][1 - self._model.order :]
