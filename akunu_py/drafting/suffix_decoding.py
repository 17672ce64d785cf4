"""SuffixDecoding's policy over one request, for comparison in replay.

Follows the likeliest path below each suffix of the context (up to 24 tokens), drafts as many
tokens as the match is long, and takes the suffix whose path promises most accepted tokens. The
trees over earlier requests are left out. Source: SuffixDecoding (ArcticInference).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft

DEPTH: Final = 24
FACTOR: Final = 1.0
MIN_PROBABILITY: Final = 0.1


class _Node:
    __slots__ = ("children", "count")

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.count = 0

    def likeliest(self) -> tuple[int, _Node] | None:
        return max(self.children.items(), key=lambda child: child[1].count, default=None)


class SuffixDecoding:
    """A trie of every stretch of up to 24 tokens, with counts; memory grows 24-fold with it."""

    name = "suffix-decoding"

    def __init__(
        self, depth: int = DEPTH, factor: float = FACTOR, least: float = MIN_PROBABILITY
    ) -> None:
        self._depth = depth
        self._factor = factor
        self._least = least
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> None:
        self._root = _Node()
        self._suffixes: list[_Node] = []
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            suffixes = [self._root, *self._suffixes][: self._depth]
            self._suffixes = []
            for node in suffixes:
                child = node.children.setdefault(token, _Node())
                child.count += 1
                self._suffixes.append(child)

    def propose(self, limit: int) -> Draft:
        best: tuple[int, ...] = ()
        best_score, best_length = 0.0, 0
        for length, node in enumerate(self._suffixes, start=1):
            if not node.children:
                break
            path, score = self._path(node, min(limit, int(self._factor * length)))
            if score >= best_score:
                best, best_score, best_length = path, score, length
        return Draft(best, self.name, best_length) if best else NO_DRAFT

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass

    def _path(self, node: _Node, length: int) -> tuple[tuple[int, ...], float]:
        """The likeliest way down from `node`, and the accepted tokens it promises."""
        tokens: list[int] = []
        probability, score = 1.0, 0.0
        while len(tokens) < length and (step := node.likeliest()) is not None:
            token, child = step
            probability *= child.count / sum(other.count for other in node.children.values())
            if probability < self._least:
                break
            tokens.append(token)
            score += probability
            node = child
        return tuple(tokens), score
