"""DraftTrimmer: cuts drafts where the text would end, before they are verified.

The token that ends the text is kept and those behind it dropped: whether a token is verified thus
never depends on which one it is, as `verification.py` demands.
"""

from collections.abc import Callable, Sequence

from akunu_py.drafting.base import Draft


class DraftTrimmer:
    """Knows where an answer ends: at its end tokens and stop strings.

    Args:
        end_tokens: ids that end the answer.
        stops: strings that end it.
        decode: ids to text; needed where there are stop strings.
    """

    def __init__(
        self,
        end_tokens: frozenset[int],
        stops: Sequence[str] = (),
        decode: Callable[[Sequence[int]], str] = lambda _: "",
    ) -> None:
        self._end_tokens = end_tokens
        self._stops = tuple(stops)
        self._decode = decode
        # A token brings a character at least, but for those that are a part of one.
        self._reach = max((len(stop.encode()) for stop in self._stops), default=0)
        self._recent: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens of the answer that were emitted."""
        if self._reach:
            self._recent = [*self._recent, *tokens][-self._reach :]

    def trim(self, draft: Draft) -> Draft:
        """The draft up to the first token that would end the answer."""
        ends = self._end_tokens
        if not ends.isdisjoint(draft.tokens):
            first = next(index for index, token in enumerate(draft.tokens) if token in ends)
            draft = draft.cut(first + 1)
        if self._stops and draft and self._stops_within(len(draft), draft):
            for length in range(1, len(draft)):
                if self._stops_within(length, draft):
                    return draft.cut(length)
        return draft

    def _stops_within(self, length: int, draft: Draft) -> bool:
        text = self._decode([*self._recent, *draft.tokens[:length]])
        return any(stop in text for stop in self._stops)
