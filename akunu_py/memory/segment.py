"""Segment: a file of tokens, and the order of their places by the tokens before them.

The order is a suffix array of the text read backwards, sorted by the last `DEPTH` tokens, so one
binary search finds the places with the longest match. The arrays are mapped into memory, not read.
A file never changes; opening it verifies its checksum, in a millisecond per million tokens.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from akunu_py.drafting.recall import DEPTH
from akunu_py.package import open_file, replacement
from akunu_py.tokens import FIRST_BOUNDARY, agreement

END: Final = FIRST_BOUNDARY
"""Follows the tokens of each document; no match and no continuation runs across it."""

MAX_TOKENS: Final = 1 << 27
"""The most tokens of a segment: sorting this many takes minutes and gigabytes."""

_MAGIC: Final = b"akunu-py memory\x02"
_HEADER: Final = struct.Struct("<16s32sQII")
"""Magic and version, the fingerprint of the tokenizer, the number of tokens, the largest id, and
the `_checksum` of all other bytes."""

Tokens = npt.NDArray[np.uint32]


class DamagedSegmentError(ValueError):
    """A file is not a segment, or was changed; the message says why."""


def joined_documents(documents: Sequence[Sequence[int]]) -> Tokens:
    """The documents as the tokens of a segment, each followed by an `END`."""
    parts = [np.asarray([*document, END], np.uint32) for document in documents]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint32)


def order_of(tokens: Tokens) -> Tokens:
    """The places after 1 to n-1 tokens, sorted by the `DEPTH` tokens before them, nearest first.

    By prefix doubling: one more sort turns a ranking by the last h tokens into one by the last 2h.
    The first sort is by as many tokens as fit into 64 bits.
    """
    count = len(tokens)
    if count < 2:
        return np.zeros(0, np.uint32)
    largest = _largest(tokens)
    codes = np.where(tokens == END, largest + 1, tokens).astype(np.uint64) + np.uint64(1)
    bits = (largest + 2).bit_length()
    known = min(64 // bits, DEPTH)
    key = np.zeros(count, np.uint64)
    for back in range(known):
        key <<= np.uint64(bits)
        key[back:] |= codes[: max(0, count - back)]
    order = np.argsort(key)
    rank = _ranks(key[order], order)
    while known < min(DEPTH, count):
        key = rank << np.uint64(32)
        key[known:] |= rank[:-known]
        order = np.argsort(key)
        rank = _ranks(key[order], order)
        known *= 2
    after = order.astype(np.uint32) + np.uint32(1)
    return after[after < count]


def _largest(tokens: Tokens) -> int:
    return int(tokens[tokens != END].max(initial=0))


def _ranks(
    sorted_keys: npt.NDArray[np.uint64], order: npt.NDArray[np.intp]
) -> npt.NDArray[np.uint64]:
    steps = np.ones(len(order), np.uint64)
    steps[1:] = sorted_keys[1:] != sorted_keys[:-1]
    ranks = np.empty(len(order), np.uint64)
    ranks[order] = np.cumsum(steps)
    return ranks


def write_segment(path: Path, fingerprint: bytes, tokens: Tokens) -> int:
    """Sorts at most `MAX_TOKENS` tokens and writes them in one step to a file that only the user
    may read; returns its bytes. The fingerprint of the tokenizer has 32 bytes."""
    arrays = np.concatenate([tokens, order_of(tokens)]).astype("<u4").tobytes()
    head = _HEADER.pack(_MAGIC, fingerprint, len(tokens), _largest(tokens), 0)[:-4]
    with replacement(path) as file:
        file.write(head + struct.pack("<I", _checksum(head, arrays)))
        file.write(arrays)
        return file.tell()


def _checksum(head: bytes, arrays: bytes | memoryview) -> int:
    """32 bits that change with any bit of either. The numbers of the arrays are summed, which is
    twenty times as fast as a CRC."""
    paired = len(arrays) // 8
    total = int(np.add.reduce(np.frombuffer(arrays, "<u8", count=paired)))
    return zlib.crc32(arrays[8 * paired :], zlib.crc32(struct.pack("<Q", total), zlib.crc32(head)))


class Segment:
    """An open file: its tokens, with an `END` after each document, the `largest` id, and the
    fingerprint of the tokenizer. Raises a `DamagedSegmentError` if the file was changed.
    """

    def __init__(self, path: Path) -> None:
        with open_file(path) as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or not header.startswith(_MAGIC):
                raise DamagedSegmentError("it has another format")
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        _, self.fingerprint, count, self.largest, checksum = _HEADER.unpack(header)
        if len(mapped) != _HEADER.size + 4 * (2 * count - (count > 0)):
            raise DamagedSegmentError("its length is wrong")
        arrays = mapped[_HEADER.size :]
        if _checksum(header[:-4], arrays) != checksum:
            raise DamagedSegmentError("its checksum is wrong")
        numbers = arrays.cast("I")
        self.tokens, self._order = numbers[:count], numbers[count:]

    def __len__(self) -> int:
        return len(self.tokens)

    def nearest(self, context: Sequence[int], most: int) -> list[tuple[int, int]]:
        """Up to `most` places whose preceding tokens agree longest with the last `DEPTH` tokens of
        a context. Each is the length of the match (1 or more, the longest first) and the index of
        the token that follows.
        """
        recent = list(context[: -DEPTH - 1 : -1])
        tokens, order = self.tokens, self._order
        at, size = self._position(recent), len(order)
        before = agreement(tokens, order[at - 1], recent) if at else 0
        after = agreement(tokens, order[at], recent) if at < size else 0
        below, above = at - 1, at
        found: list[tuple[int, int]] = []
        while len(found) < most and (before or after):
            if after >= before:
                found.append((after, order[above]))
                above += 1
                after = agreement(tokens, order[above], recent) if above < size else 0
            else:
                found.append((before, order[below]))
                below -= 1
                before = agreement(tokens, order[below], recent) if below >= 0 else 0
        return found

    def _position(self, recent: Sequence[int]) -> int:
        """How many places precede a context in the order; `recent` has the last token first."""
        tokens, most = self.tokens, len(recent)

        def before(place: int) -> list[int]:
            return tokens[max(0, place - most) : place].tolist()[::-1]

        return bisect_left(self._order, list(recent), key=before) if most else 0
