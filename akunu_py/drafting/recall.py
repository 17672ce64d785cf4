"""MemoryTier: what followed the last tokens of a request in other texts, such as earlier requests.

The drafter learns how often its guesses are accepted, for each match length and each degree of
agreement between places; where this falls too low, nothing is drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from akunu_py.drafting.acceptance import recall_evidence
from akunu_py.drafting.occurrences import Occurrences, key_of_four
from akunu_py.tokens import FIRST_BOUNDARY, agreement

DEPTH: Final = 16
"""How long a match can be."""

PLACES: Final = 16
"""The most places in a recall."""

ENOUGH: Final = 3
"""If fewer of the places found earlier are left, shorter matches are searched again."""

MAX_CARRIED: Final = 64
"""After more new tokens than this, places are searched again."""

MAX_RECENT_TOKENS: Final = 1 << 17
"""The limit for all texts together; a token takes about 130 bytes."""

MAX_TEXTS: Final = 32
"""The most texts; each is searched in every round that may draft."""

_LEAST_TOKENS: Final = 32
"""The fewest tokens of a text worth keeping."""
_SAMPLES: Final = 16
_END: Final = FIRST_BOUNDARY + (1 << 30)
"""Ends a text; no boundary of references is this large."""

_SHORTER: Final = 2.0
"""A shorter context counts as much as this many places of the longer one."""


class Place(NamedTuple):
    """A place in a text: its tokens, the index of the next one, and how long the match is."""

    tokens: Sequence[int]
    at: int
    length: int

    @property
    def token(self) -> int:
        return self.tokens[self.at]


class Texts(Protocol):
    """What a tier recalls from. A new `version` means that places found earlier may be invalid."""

    version: int

    def nearest(self, context: Sequence[int]) -> list[Place]:
        """The places, `PLACES` at most, whose preceding tokens agree longest with the end of a
        context; the longest match first."""


class RecentTexts:
    """The prompts and answers of requests that have ended, all from one user, who may see them all.
    Nothing is written anywhere.

    A text is kept together with the index that its drafter built, so keeping it takes no time. The
    oldest texts are dropped first.
    """

    def __init__(self, max_tokens: int = MAX_RECENT_TOKENS) -> None:
        self.version = 0
        self._max_tokens = max_tokens
        self._texts: list[Occurrences] = []  # the latest first

    def __len__(self) -> int:
        return sum(len(text.tokens) for text in self._texts)

    def keep(self, text: Occurrences) -> None:
        """Keeps a text in place of those that are part of it; drops the oldest if there are too
        many. The text must not change until `take_back` is called."""
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
        """The latest places after four or more tokens that the context ends with; the longest match
        first, then the latest text."""
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

    The shares of tokens among the longest matches are blended with those among all shorter ones, as
    in PPM (Cleary and Witten 1984): so a single place counts if shorter contexts agree.

    There is at least one place; those with longer matches come first. `token` has the largest of
    the `shares`, whose sum is at most 1; it is None if documents end at most places.
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
        """The recall after `token`, from the places that continue with it; None if none do."""
        left = [
            Place(place.tokens, place.at + 1, min(place.length + 1, DEPTH))
            for place in self._places
            if place.token == token
        ]
        return Recall(left, self._tier) if left else None

    def fits(self, tokens: Sequence[int]) -> bool:
        """Whether the longest match still agrees with the last tokens over its full length."""
        known, at, length = self._places[0]
        return list(known[at - length : at]) == list(tokens[len(tokens) - length :])

    @property
    def carries(self) -> bool:
        """Whether a new search is unlikely to find more."""
        return self.length == DEPTH or len(self._places) >= ENOUGH


class MemoryTier:
    """Recalls from texts with the request's tokenizer; it belongs to one drafter. What is learnt
    about one tier `number` does not apply to another."""

    def __init__(self, texts: Texts, number: int = 0) -> None:
        self._texts, self._number, self._version = texts, number, texts.version
        self._recalled: Recall | None = None
        self._size = 0

    def recall(self, tokens: Sequence[int]) -> Recall | None:
        """What followed the last of these tokens; None if nothing is likely enough. There may be
        fewer tokens than in the last call, or those of another request."""
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
        # Checked, because the tokens may be another request's, or a guess.
        if recall is None or not recall.carries or not recall.fits(tokens):
            return None
        return recall


def _holds(text: Occurrences, part: Sequence[int]) -> bool:
    """Whether a text seems to contain another one, judged by some of its places."""
    stride = max(1, (len(part) - 4) // _SAMPLES)
    return all(
        key_of_four(*part[at : at + 4]) in text.latest_four
        for at in range(0, len(part) - 4, stride)
    )
