"""TokenBuffer: the fixed token buffer that one round reads from and writes to.

Its slots hold `[known, d0 .. d3]` on the way in and the verified tokens, one slot further on, on
the way out. It is allocated once, and its guard says how much of a draft fits. Knows NumPy only.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from akunu_py.errors import InvalidRequestError
from akunu_py.options import DEFAULT_DRAFT_TOKENS


class TokenBuffer:
    """A fixed buffer of `1 + max_drafts` input slots and one more for the output.

    After a round of `n` drafts, slot `i + 1` holds the token that the target chose after slot `i`,
    for `i` in `0..n`: this is why the buffer has one slot more than a forward has positions.
    Layout and guard follow akunu's `decode_speculative`.

    Args:
        max_drafts: the most drafts that a round may verify; 4 gives `[known, d0 .. d3]`.

    Attributes:
        max_drafts: how many drafts fit beside the known token and the output slot.

    Raises:
        InvalidRequestError: if `max_drafts` is negative.
    """

    def __init__(self, max_drafts: int = DEFAULT_DRAFT_TOKENS) -> None:
        if max_drafts < 0:
            raise InvalidRequestError(
                f"The number of draft tokens must be 0 or more, not {max_drafts}."
            )
        self.max_drafts = max_drafts
        self._slots = np.zeros(max_drafts + 2, dtype=np.int32)

    @property
    def slots(self) -> int:
        """How many tokens the buffer can hold."""
        return int(self._slots.size)

    def draft_limit(self, *, cache_room: int, tokens_wanted: int) -> int:
        """The guard: how many drafts the next round may carry, 0 or more.

        A draft is useful only while the round's last token is still wanted, and possible only
        while the cache can take the known token and every draft.

        Args:
            cache_room: positions left in the KV cache.
            tokens_wanted: tokens that the request may still emit.
        """
        return max(0, min(self.max_drafts, cache_room - 1, tokens_wanted - 1))

    def load(self, known: int, drafts: Sequence[int]) -> npt.NDArray[np.int32]:
        """Writes the input of a round and returns it as a view of shape `[1 + len(drafts)]`.

        Raises:
            InvalidRequestError: if the drafts exceed `max_drafts`; nothing is written then.
        """
        if len(drafts) > self.max_drafts:
            raise InvalidRequestError(
                f"A draft of {len(drafts)} tokens does not fit a buffer made for {self.max_drafts}."
            )
        self._slots[0] = known
        self._slots[1 : 1 + len(drafts)] = drafts
        return self._slots[: 1 + len(drafts)]

    def store(self, verified: Sequence[int]) -> None:
        """Writes the target's choices, token `i` into slot `i + 1`.

        Raises:
            InvalidRequestError: if they exceed the slots behind the known token.
        """
        if len(verified) >= self.slots:
            raise InvalidRequestError(
                f"{len(verified)} verified tokens do not fit a buffer of {self.slots} slots."
            )
        self._slots[1 : 1 + len(verified)] = verified

    def emitted(self, count: int) -> list[int]:
        """The first `count` verified tokens: those that a round emits."""
        return [int(token) for token in self._slots[1 : 1 + count]]
