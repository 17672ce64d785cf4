"""Constraint: keeps an answer within a grammar, whether its tokens were drafted or not.

A constraint is a logits processor: for each row it masks the tokens that the grammar forbids after
the tokens before that row. It also says how far a draft is allowed and which tokens the grammar
forces. Its state is keyed by position: a forward that begins earlier undoes what came after.
llguidance does the work.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from akunu_py.errors import UnreadableRequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher

_BITS: Final = 32


class Constraint:
    """A grammar's state along one answer.

    Args:
        matcher: the grammar's matcher, at its beginning.
        start: position of the answer's first token.
        vocabulary: how many ids the matcher knows.
    """

    def __init__(self, matcher: "LLMatcher", start: int, vocabulary: int) -> None:
        self._matcher = matcher
        self._start = start
        self._words = words_of(vocabulary)
        self._taken = 0  # tokens of the answer that the matcher has seen

    @property
    def complete(self) -> bool:
        """Whether the grammar is satisfied and nothing can follow."""
        return self._matcher.is_stopped()

    def process(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        """The logits with forbidden tokens at minus infinity; see `Sampler.process_logits`.

        Waits for `inputs` if they are lazy.
        """
        return masked(logits, self.masks(position, np.asarray(inputs).tolist()))

    def masks(self, position: int, inputs: Sequence[int]) -> npt.NDArray[np.uint32]:
        """Which tokens may follow each input, one bit per token, `[inputs, words of 32 bits]`.

        Rows after a forbidden input allow everything, because nothing is read from them.

        Args:
            position: the position of the token that the first row predicts.
            inputs: the token before it, and the draft tokens.
        """
        masks = open_masks(len(inputs), self._words)
        for row, token in enumerate(inputs):
            if not self.take(token, position - 1 + row):
                break
            self.fill(masks[row])
        return masks

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Sets which tokens may follow those taken, one bit per token."""
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()

    def extend(self, position: int, tokens: Sequence[int]) -> int:
        """Takes the tokens emitted from `position` on, which replace those drafted there.

        Returns:
            How many of them the grammar took; nothing can follow the one that completes it.
        """
        for count, token in enumerate(tokens):
            if not self.take(token, position + count):
                return count
            if self.complete:
                return count + 1
        return len(tokens)

    def allowed_length(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may follow the emitted ones."""
        return self._matcher.validate_tokens(list(tokens)) if tokens else 0

    def forced_tokens(self, limit: int) -> tuple[int, ...]:
        """The next tokens, `limit` at most, if the grammar allows only one text there."""
        forced = tuple(self._matcher.compute_ff_tokens()[:limit])
        self._check()
        return forced

    def take(self, token: int, position: int) -> bool:
        """Makes `token` the last one that the matcher has seen; False if it is forbidden there."""
        before = position - self._start
        if before < 0:
            self._roll_back_to(0)
            return True
        if before > self._taken:
            return False
        self._roll_back_to(before)
        taken = self._matcher.try_consume_tokens([token]) == 1
        self._check()
        self._taken += taken
        return taken

    def skip(self, tokens: Sequence[int]) -> None:
        """Takes tokens that are the end of the prompt."""
        self._matcher.consume_tokens(list(tokens))
        self._check()

    def roll_back(self, position: int) -> None:
        """Forgets the tokens at a position and after it."""
        self._roll_back_to(max(position - self._start, 0))

    def _roll_back_to(self, length: int) -> None:
        if length < self._taken:
            self._matcher.rollback(self._taken - length)
            self._taken = length

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = one_line(self._matcher.get_error())
            raise UnreadableRequestError(f"The grammar is too complex to follow: {reason}.")


def words_of(vocabulary: int) -> int:
    """How many words of 32 bits a mask has."""
    return (vocabulary + _BITS - 1) // _BITS


def open_masks(rows: int, words: int) -> npt.NDArray[np.uint32]:
    """Masks that allow everything."""
    return np.full((rows, words), 0xFFFFFFFF, dtype=np.uint32)


def masked(logits: mx.array, masks: npt.NDArray[np.uint32]) -> mx.array:
    """Logits `[rows, vocabulary]` with the tokens that masks forbid at minus infinity."""
    words = mx.array(masks)
    bits = (words[:, :, None] >> mx.arange(_BITS, dtype=mx.uint32)) & 1
    allowed = bits.reshape(words.shape[0], -1)[:, : logits.shape[-1]]
    return mx.where(allowed.astype(mx.bool_), logits, -mx.inf)


def one_line(reason: str) -> str:
    """What llguidance says, shortened."""
    return " ".join(reason.split()).rstrip(".")[:300]
