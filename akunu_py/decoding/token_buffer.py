"""TokenBuffer: the fixed buffer `[known, d0 .. d(n-1)]` that a round sends through the target.

It is allocated once, and its guard says how much of a draft fits. After a rollback of a recurrent
model, the accepted tokens that have to be computed again stand before the known one. Knows NumPy
only.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from akunu_py.errors import InvalidRequestError


class TokenBuffer:
    """A fixed buffer of one known token and up to `num_draft_tokens` draft tokens.

    Layout and guard are those of akunu's `decode_speculative`.

    Args:
        num_draft_tokens: `n`, the most draft tokens of a round.

    Raises:
        InvalidRequestError: if that number is negative.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        if num_draft_tokens < 0:
            raise InvalidRequestError(
                f"The number of draft tokens must be 0 or more, not {num_draft_tokens}."
            )
        self.num_draft_tokens = num_draft_tokens
        self._slots = np.zeros(1 + num_draft_tokens, dtype=np.int32)

    def draft_limit(self, *, cache_room: int, tokens_wanted: int, replayed: int = 0) -> int:
        """The guard: how many draft tokens the next round may have, 0 or more.

        A draft token is useful only if the round's last token is still wanted, and possible only if
        the cache has room for the known token and the whole draft.

        Args:
            cache_room: positions left in the KV cache.
            tokens_wanted: tokens that the request may still emit.
            replayed: tokens that the forward has to compute again. They take the places of draft
                tokens, so however often drafts are rejected, a forward has no more rows.
        """
        places = self.num_draft_tokens - replayed
        return max(0, min(places, cache_room - 1, tokens_wanted - 1))

    def load(
        self, known: int, draft: Sequence[int], replayed: Sequence[int] = ()
    ) -> npt.NDArray[np.int32]:
        """Writes the input of a round and returns it as a view of shape `[tokens]`.

        Raises:
            InvalidRequestError: if the draft does not fit; nothing is written then.
        """
        size = len(replayed) + 1 + len(draft)
        if size > len(self._slots):
            raise InvalidRequestError(
                f"A draft of {len(draft)} tokens does not fit a buffer made for "
                f"{self.num_draft_tokens - len(replayed)}."
            )
        self._slots[:size] = [*replayed, known, *draft]
        return self._slots[:size]
