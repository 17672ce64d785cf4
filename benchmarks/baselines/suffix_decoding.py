"""SuffixDecoding's policy over one request. Source: SuffixDecoding (ArcticInference).

Follows the most likely path below each suffix of the context (up to 24 tokens), drafts as many
tokens as the match is long, and takes the suffix whose path promises the most accepted tokens. Its
trees over earlier requests are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.tokens import FIRST_BOUNDARY, joined


class _Node:
    """A sequence of tokens, how often it occurred, and what followed it.

    `children` is None while the sequence occurred once: what followed it is then read from the
    text at `position`, which saves nodes.
    """

    __slots__ = ("children", "count", "position")

    def __init__(self, position: int) -> None:
        self.children: dict[int, _Node] | None = None
        self.count = 1
        self.position = position


class SuffixDecoding(Drafter):
    """A trie with counts of every sequence of up to `depth` tokens."""

    name = "suffix-decoding"
    _least: Final = 0.1

    def __init__(self, depth: int = 24) -> None:
        self._depth = depth
        self.begin(())

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._tokens: list[int] = []
        self._root = _Node(0)
        self._root.children = {}
        self._repeated: list[_Node] = []
        self.extend(joined(references, prompt))

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._tokens.append(token)
            if token >= FIRST_BOUNDARY:
                self._repeated = []
                continue
            repeated = []
            for node in [self._root, *self._repeated][: self._depth]:
                children = self._children(node)
                child = children.get(token)
                if child is None:
                    children[token] = _Node(len(self._tokens))
                else:
                    child.count += 1
                    repeated.append(child)
            self._repeated = repeated

    def propose(self, limit: int) -> Draft:
        best: tuple[int, ...] = ()
        best_score, best_length = 0.0, 0
        for length, node in enumerate(self._repeated, start=1):
            longest = min(limit, length, self._depth - length)
            path, score = self._path(node, longest)
            if score >= best_score:
                best, best_score, best_length = path, score, length
        return Draft(best, self.name, best_length) if best else NO_DRAFT

    def _path(self, node: _Node, length: int) -> tuple[tuple[int, ...], float]:
        """The most likely path below `node`, and the accepted tokens to expect from it."""
        tokens: list[int] = []
        probability, score = 1.0, 0.0
        while len(tokens) < length and (children := self._children(node)):
            token, child = max(children.items(), key=lambda step: step[1].count)
            probability *= child.count / sum(other.count for other in children.values())
            if probability < self._least:
                break
            tokens.append(token)
            score += probability
            node = child
        return tuple(tokens), score

    def _children(self, node: _Node) -> dict[int, _Node]:
        if node.children is not None:
            return node.children
        if node.position >= len(self._tokens):
            return {}
        token = self._tokens[node.position]
        node.children = {} if token >= FIRST_BOUNDARY else {token: _Node(node.position + 1)}
        return node.children
