"""The lookup policies of transformers, vLLM and llama.cpp, each with its system's constants.

Each copies what followed an earlier occurrence of the last few tokens. They differ in how long a
match must be, which occurrence counts, and how much they copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.options import MAX_DRAFT_TOKENS
from akunu_py.tokens import FIRST_BOUNDARY, joined


def until_boundary(tokens: Sequence[int]) -> tuple[int, ...]:
    """The tokens before the first boundary among them."""
    for position, token in enumerate(tokens):
        if token >= FIRST_BOUNDARY:
            return tuple(tokens[:position])
    return tuple(tokens)


class _Lookup(Drafter):
    """The tokens of a request, where each key occurred in them, and drafts that copy some.

    Attributes:
        keys: how many tokens a key has, the preferred number first.
        copied: how many tokens are copied at most.
        latest: whether the latest occurrence counts, or the earliest.
    """

    name: str
    keys: tuple[int, ...] = ()
    copied = MAX_DRAFT_TOKENS
    latest = False

    def __init__(self) -> None:
        self._tokens: list[int] = []

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._tokens = []
        self._starts: dict[tuple[int, ...], list[int]] = {}  # of what followed each key
        self.extend(joined(references, prompt))

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            for length in self.keys:
                if len(self._tokens) >= length and token < FIRST_BOUNDARY:
                    self._starts.setdefault(self._last(length), []).append(len(self._tokens))
            self._tokens.append(token)

    def propose(self, limit: int) -> Draft:
        for length in self.keys:
            if starts := self._starts.get(self._last(length)):
                start = starts[-1 if self.latest else 0]
                tokens = until_boundary(self._tokens[start : start + min(limit, self.copied)])
                return Draft(tokens, self.name, length) if tokens else NO_DRAFT
        return NO_DRAFT

    def _last(self, length: int) -> tuple[int, ...]:
        return tuple(self._tokens[-length:])


class TransformersLookup(_Lookup):
    """Transformers' prompt lookup: the leftmost match of 2 tokens, else of 1; copies 10."""

    name = "transformers-lookup"
    keys = (2, 1)
    copied = 10


class VllmNGram(_Lookup):
    """vLLM's `ngram`: the earliest match of exactly 5 tokens; copies up to the limit."""

    name = "vllm-ngram"
    keys = (5,)


class LlamaSimple(_Lookup):
    """llama.cpp's `ngram-simple`: the latest match of 12 tokens; copies 48."""

    name = "llama-simple"
    keys = (12,)
    copied = 48
    latest = True


class LlamaMapK(LlamaSimple):
    """llama.cpp's `ngram-map-k`: copies no more than the same key had accepted last time."""

    name = "llama-map-k"

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._last_accepted: dict[tuple[int, ...], int] = {}
        super().begin(prompt, references)

    def propose(self, limit: int) -> Draft:
        key = self._last(self.keys[0])
        return super().propose(min(limit, self._last_accepted.get(key, limit)))

    def feedback(self, draft: Draft, accepted: int) -> None:
        if draft:
            self._last_accepted[self._last(self.keys[0])] = accepted


class LlamaMapK4v(LlamaSimple):
    """llama.cpp's `ngram-map-k4v`: up to 4 values per key; copies one that outnumbers them 3:1."""

    name = "llama-map-k4v"
    _values: Final = 4
    _dominance: Final = 3

    def propose(self, limit: int) -> Draft:
        copies: Counter[tuple[int, ...]] = Counter()
        for start in self._starts.get(self._last(self.keys[0]), ()):
            value = until_boundary(self._tokens[start : start + self.copied])
            if value in copies or len(copies) < self._values:
                copies[value] += 1
        if not copies:
            return NO_DRAFT
        value, count = copies.most_common(1)[0]
        if count < self._dominance * (copies.total() - count):
            return NO_DRAFT
        return Draft(value[:limit], self.name, self.keys[0]) if limit else NO_DRAFT


class LlamaMod(_Lookup):
    """llama.cpp's `ngram-mod`: hash of 24 tokens -> next token, shared by all requests.

    Keys are not verified. Drafts 48 to 64 tokens, or the limit if that is less. The table is
    cleared when a quarter of it is full, and after 5 rounds in a row that accept less than a
    quarter of their draft.
    """

    name = "llama-mod"
    _key: Final = 24
    _shortest: Final = 48
    _longest: Final = 64
    _slots: Final = 4 * 1024 * 1024
    _occupancy: Final = 0.25
    _acceptance: Final = 0.25
    _patience: Final = 5

    def __init__(self) -> None:
        super().__init__()
        self._next: dict[int, int] = {}
        self._bad_rounds = 0

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        for document in (*references, prompt):
            self._tokens = []
            self.extend(document)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if len(self._tokens) >= self._key:
                self._next[self._slot(self._tokens[-self._key :])] = token
            self._tokens.append(token)
        if len(self._next) > self._occupancy * self._slots:
            self._next.clear()

    def propose(self, limit: int) -> Draft:
        longest = min(limit, self._longest)
        window = self._tokens[-self._key :]
        drafted: list[int] = []
        while len(window) == self._key and len(drafted) < longest:
            token = self._next.get(self._slot(window))
            if token is None:
                break
            drafted.append(token)
            window = [*window[1:], token]
        if not drafted or len(drafted) < min(self._shortest, longest):
            return NO_DRAFT
        return Draft(tuple(drafted), self.name, self._key)

    def feedback(self, draft: Draft, accepted: int) -> None:
        if not draft:
            return
        bad = accepted < self._acceptance * len(draft)
        self._bad_rounds = self._bad_rounds + 1 if bad else 0
        if self._bad_rounds >= self._patience:
            self._next.clear()
            self._bad_rounds = 0

    def _slot(self, window: Sequence[int]) -> int:
        return hash(tuple(window)) % self._slots


class LlamaCache(_Lookup):
    """llama.cpp's `ngram-cache`: counts after 4 to 1 tokens, with thresholds; drafts 8.

    The request's own counts need to pass the lax thresholds, the counts of earlier requests the
    strict ones. llama.cpp's static cache, which is made from a corpus beforehand, is left out.
    """

    name = "llama-cache"
    _longest: Final = 4
    _copied: Final = 8
    _lax: Final = {4: (1, 0.50), 3: (1, 0.50), 2: (2, 0.50), 1: (2, 0.66)}
    _strict: Final = {4: (2, 0.66), 3: (2, 0.66), 2: (3, 0.66), 1: (4, 0.75)}

    def __init__(self) -> None:
        super().__init__()
        self._request: dict[tuple[int, ...], Counter[int]] = {}
        self._earlier: dict[tuple[int, ...], Counter[int]] = {}

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        for context, counts in self._request.items():
            self._earlier.setdefault(context, Counter()).update(counts)
        self._request = {}
        for document in (*references, prompt):
            self._tokens = []
            self.extend(document)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            for length in range(1, min(self._longest, len(self._tokens)) + 1):
                context = tuple(self._tokens[-length:])
                self._request.setdefault(context, Counter())[token] += 1
            self._tokens.append(token)

    def propose(self, limit: int) -> Draft:
        window = self._tokens[-self._longest :]
        drafted: list[int] = []
        while len(drafted) < min(limit, self._copied):
            token = self._known(self._request, window, self._lax)
            if token is None:
                token = self._known(self._earlier, window, self._strict)
            if token is None:
                break
            drafted.append(token)
            window = [*window, token][-self._longest :]
        return Draft(tuple(drafted), self.name) if drafted else NO_DRAFT

    @staticmethod
    def _known(
        counts: dict[tuple[int, ...], Counter[int]],
        window: list[int],
        thresholds: dict[int, tuple[int, float]],
    ) -> int | None:
        for length in range(len(window), 0, -1):
            followers = counts.get(tuple(window[-length:]))
            if followers is None:
                continue
            token, count = max(followers.items(), key=lambda follower: follower[1])
            least, share = thresholds[length]
            if count >= least and count >= share * followers.total():
                return token
        return None
