"""MemoryTier: what followed the last tokens of a request in other texts, such as earlier requests.

How often its guesses are accepted is learnt by the drafter, for each length of the match and each
agreement of the places; where that falls, nothing is drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from akunu_py.drafting.evidence import recall_evidence
from akunu_py.drafting.occurrences import Occurrences, key_of_four
from akunu_py.tokens import FIRST_BOUNDARY, agreement

DEPTH: Final = 16
"""How long a match can be."""

PLACES: Final = 16
"""How many places a recall is made of at most."""

ENOUGH: Final = 3
"""With fewer places left of those found earlier, a shorter match is searched again."""

MAX_CARRIED: Final = 64
"""After more new tokens than this, places are searched again."""

MAX_RECENT_TOKENS: Final = 1 << 17
"""Of all texts together; a token takes about 130 bytes."""

MAX_TEXTS: Final = 32
"""Each is looked up in every round that is drafted for."""

_LEAST_TOKENS: Final = 32
"""Of a text that is worth keeping."""
_SAMPLES: Final = 16
_END: Final = FIRST_BOUNDARY + (1 << 30)
"""Closes a text; no boundary of references is that large."""

_SHORTER: Final = 2.0
"""What a shorter context says counts as much as this many places of the longer one."""


class Place(NamedTuple):
    """A place in a text: its tokens, the index of the next one, and how long the match is."""

    tokens: Sequence[int]
    at: int
    length: int

    @property
    def token(self) -> int:
        return self.tokens[self.at]


class Texts(Protocol):
    """What a tier recalls from.

    Attributes:
        version: changes when a place that was found may no longer be what it was.
    """

    version: int

    def nearest(self, context: Sequence[int]) -> list[Place]:
        """The places, `PLACES` at most, whose tokens before them agree longest with the end of a
        context; the longest match first."""


class RecentTexts:
    """The prompts and answers of the requests that have ended; those of one user, who may see them
    all. Nothing is written anywhere.

    A text is kept with the index that its own drafter made of it, so keeping it takes no time. The
    texts that were kept first go first.
    """

    def __init__(self, max_tokens: int = MAX_RECENT_TOKENS) -> None:
        self.version = 0
        self._max_tokens = max_tokens
        self._texts: list[Occurrences] = []  # the latest first

    def __len__(self) -> int:
        return sum(len(text.tokens) for text in self._texts)

    def keep(self, text: Occurrences) -> None:
        """Keeps a text in place of those that are part of it; drops the oldest if they are too
        many. Nobody changes the text until `take_back` was called."""
        size = len(text.tokens)
        if not _LEAST_TOKENS <= size < self._max_tokens or any(text is one for one in self._texts):
            return
        self.version += 1
        if text.tokens[-1] != _END:
            text.append(_END)
        others = [kept for kept in self._texts if not _holds(text, kept.tokens)]
        self._texts, room = [text], self._max_tokens - len(text.tokens)
        for kept in others[: MAX_TEXTS - 1]:
            room -= len(kept.tokens)
            if room >= 0:
                self._texts.append(kept)

    def take_back(self, text: Occurrences) -> None:
        self.version += 1
        self._texts = [kept for kept in self._texts if kept is not text]

    def nearest(self, context: Sequence[int]) -> list[Place]:
        """The latest places after four or more tokens that a context ends with; the longest match
        first, and of these the latest text."""
        if not self._texts or len(context) < 4:
            return []
        key, recent = key_of_four(*context[-4:]), context[: -DEPTH - 1 : -1]
        found: list[Place] = []
        for text in self._texts:
            latest = text.latest_four.get(key)
            for at in text.after_four(latest) if latest else ():
                length = agreement(text.tokens, at, recent)
                if length >= 4:
                    found.append(Place(text.tokens, at, length))
        found.sort(key=lambda place: -place.length)
        return found[:PLACES]


class Recall:
    """The places that agree longest with the last tokens, and the token that likely follows.

    The shares of tokens among the longest matches are blended with those among all shorter ones,
    as PPM does (Cleary and Witten 1984): so one place is believed if shorter contexts agree.

    There is a place or more, those with longer matches first. `token` has the largest of the
    `shares`, which are together at most 1; it is None if documents end at most places.
    """

    def __init__(self, places: Sequence[Place], tier: int) -> None:
        self._places = places
        self._tier = tier
        self.length = places[0].length
        counts: dict[int, int] = {}
        levels: list[tuple[int, dict[int, int]]] = []
        for _, level in groupby(places, key=lambda place: place.length):
            for place in level:
                counts[place.token] = counts.get(place.token, 0) + 1
            levels.append((sum(counts.values()), counts.copy()))
        shares = dict.fromkeys(counts, 0.0)
        for number, found in reversed(levels):
            for token, share in shares.items():
                shares[token] = (found.get(token, 0) + _SHORTER * share) / (number + _SHORTER)
        best = max(shares, key=shares.__getitem__)
        self.shares = shares
        self.share = shares[best]
        self.token: int | None = best if best < FIRST_BOUNDARY else None

    @property
    def evidence(self) -> int:
        return recall_evidence(self.length, self.share, self._tier)

    def after(self, token: int) -> Recall | None:
        """What the places that go on with a token recall next; None if there are none."""
        left = [
            Place(place.tokens, place.at + 1, min(place.length + 1, DEPTH))
            for place in self._places
            if place.token == token
        ]
        return Recall(left, self._tier) if left else None

    def fits(self, tokens: Sequence[int]) -> bool:
        """Whether the longest match agrees with the last tokens as far as it says."""
        known, at, length = self._places[0]
        return list(known[at - length : at]) == list(tokens[len(tokens) - length :])

    @property
    def carries(self) -> bool:
        """Whether a new search would hardly find more."""
        return self.length == DEPTH or len(self._places) >= ENOUGH


class MemoryTier:
    """Recalls from texts of the request's tokenizer; the state of one drafter. What is learnt of
    one tier `number` does not count for another."""

    def __init__(self, texts: Texts, number: int = 0) -> None:
        self._texts, self._number, self._version = texts, number, texts.version
        self._recalled: Recall | None = None
        self._size = 0

    def recall(self, tokens: Sequence[int]) -> Recall | None:
        """What followed the last of these tokens, which may be fewer than in the last call, or
        those of another request; None if nothing is likely enough."""
        recalled = self._recalled and self._carried(tokens)
        if recalled is None:
            places = self._texts.nearest(tokens[-DEPTH:])
            recalled = Recall(places, self._number) if places else None
        self._recalled, self._size, self._version = recalled, len(tokens), self._texts.version
        return None if recalled is None or recalled.token is None else recalled

    def _carried(self, tokens: Sequence[int]) -> Recall | None:
        recall, new = self._recalled, tokens[self._size :]
        changed = self._version != self._texts.version
        if changed or len(tokens) < self._size or len(new) > MAX_CARRIED:
            return None
        for token in new:
            if recall is None:
                return None
            recall = recall.after(token)
        # Checked, because these may be the tokens of another request, or of a guess at this one.
        if recall is None or not recall.carries or not recall.fits(tokens):
            return None
        return recall


def _holds(text: Occurrences, part: Sequence[int]) -> bool:
    """Whether a text seems to hold another one, by some places of it."""
    stride = max(1, (len(part) - 4) // _SAMPLES)
    return all(
        key_of_four(*part[at : at + 4]) in text.latest_four
        for at in range(0, len(part) - 4, stride)
    )
