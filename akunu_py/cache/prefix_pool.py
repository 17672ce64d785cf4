"""PrefixPool: several caches with their tokens, and the choice of one for each request.

A request gets the slot that shares most with its prompt. If the shared part is more than half of
the slot's tokens, the slot rolls back to it. Otherwise the slot stays as it is, and the shared part
is copied into another one: a new slot while memory lasts, then the least recently used one. If
files on disk hold much more of the prompt than any slot, a new slot is filled from them.

Several requests may be served at once. What a busy slot has computed of its prompt can be copied by
others, but a busy slot is neither reused nor dropped. Call `has_room` before admitting a request.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from time import time
from typing import TYPE_CHECKING, Final, Protocol

from akunu_py.options import MAX_SLOTS
from akunu_py.tokens import common_prefix_length

if TYPE_CHECKING:
    from akunu_py.cache.kv_cache import KVCache
    from akunu_py.cache.prompt_store import PromptStore
    from akunu_py.cache.states import Checkpoint

GROWTH: Final = 512
"""The fewest tokens that a slot grows by."""

_HEADROOM: Final = 8
"""A slot gets this share of its tokens as extra room: an eighth. It is copied when it grows, so a
long answer copies each token about eight times in all, and at most an eighth of the memory is
unused."""


class OtherCaches(Protocol):
    """Other caches in the same memory, which are cheaper to compute again than a slot."""

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""

    def clear(self) -> None:
        """Drops those that no request uses."""


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """What a slot holds; for a busy one, how many tokens of the prompt when it was last checked.

    `last_used` is in seconds since 1970; 0 if it has not served a request yet.
    """

    id: int
    tokens: int
    capacity: int
    nbytes: int
    last_used: float
    busy: bool


class PrefixSlot:
    """A cache that knows its tokens, so that a shared prefix is computed once. The `tokens` of a
    busy slot are those that others may copy."""

    def __init__(self, cache: "KVCache", slot_id: int = 0) -> None:
        self.id = slot_id
        self.cache = cache
        self.last_used = 0.0
        self.busy = False
        self.tokens: list[int] = []
        self.unsaved = False

    @property
    def status(self) -> SlotStatus:
        tokens, cache = len(self.tokens), self.cache
        return SlotStatus(self.id, tokens, cache.capacity, cache.nbytes, self.last_used, self.busy)

    def usable(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt need not be computed again.

        The last one always must be, because a request needs its prediction.
        """
        shared = min(common_prefix_length(self.tokens, prompt), len(prompt) - 1)
        return self.cache.reach(shared)

    def cut(self, tokens: Sequence[int], length: int) -> None:
        """Drops all but the first tokens, which are the first of `tokens`."""
        self.tokens = list(tokens[:length])
        self.cache.rollback(length)


class PrefixPool:
    """The slots of an engine, of at most `limit` tokens each. Any thread may read `statuses`.

    `memory` is what all slots and the caches of a draft model, which are dropped first, may take;
    busy slots whose requests did not wait may exceed it.
    """

    def __init__(
        self,
        make_cache: Callable[[int], "KVCache"],
        bytes_of: Callable[[int], float],
        *,
        limit: int,
        memory: int,
        store: "PromptStore | None" = None,
        drafts: OtherCaches | None = None,
        clock: Callable[[], float] = time,
    ) -> None:
        self.limit = limit
        self.memory = self._allowed = memory
        self.statuses: tuple[SlotStatus, ...] = ()
        self._make_cache = make_cache
        self._store = store
        self._drafts = drafts
        self._clock = clock
        self._slots: dict[int, PrefixSlot] = {}  # the least recently used one first
        self._bytes_of = bytes_of

    def take(self, prompt: Sequence[int], tokens: int) -> tuple[PrefixSlot, int]:
        """The slot for a prompt, with room for `tokens`, and how many of the prompt it holds."""
        capacity = self._capacity(tokens)
        self._load(prompt, capacity)
        latest_first = reversed(self._slots.values())
        best = max(
            latest_first, key=lambda slot: (slot.usable(prompt), not slot.busy), default=None
        )
        shared = 0 if best is None else best.usable(prompt)
        if best and not best.busy and len(best.tokens) < 2 * shared:
            slot = best
        else:
            slot = self._make(capacity, spared=best if shared else None)
        self._slots[slot.id] = self._slots.pop(slot.id)
        if capacity > slot.cache.capacity:
            self.grow(slot, tokens)
        # Making room may have dropped the best slot, or the checkpoint that it would start from.
        cached = slot.usable(prompt)
        if best is not None and best.id in self._slots and best.cache.can_rollback:
            shared = best.usable(prompt)
            if shared > cached:
                slot.cache.copy(best.cache, shared)
                cached = shared
        slot.cut(prompt, cached)
        slot.busy = True
        self._update_statuses()
        return slot, cached

    def has_room(self, tokens: int, slot: PrefixSlot | None = None) -> bool:
        """Whether there is memory for a slot, or a new one, with room for this many tokens."""
        if slot is not None and tokens <= slot.cache.capacity:
            return True
        busy = [one for one in self._slots.values() if one.busy and one is not slot]
        needed = self._claimed(busy) + self._bytes_of(self._capacity(tokens))
        needed += 0.0 if slot is None else self._left_behind([slot.cache])
        return needed <= self.memory or not busy

    @property
    def in_company(self) -> bool:
        """Whether several requests use slots."""
        return sum(slot.busy for slot in self._slots.values()) > 1

    def may_join(self, caches: Sequence["KVCache"]) -> bool:
        """Whether there is memory for caches of busy slots in shared buffers, where each has as
        much room as the largest. If so, the memory is freed."""
        group = caches[0].group
        if group is not None and not group.left and all(one.group is group for one in caches):
            return True
        most = self._bytes_of(max(one.capacity for one in caches))
        held = [max(one.nbytes, self._bytes_of(one.capacity)) for one in caches]
        needed = sum(max(0.0, most - own) for own in held) + self._left_behind(caches)
        if self._claimed(slot for slot in self._slots.values() if slot.busy) + needed > self.memory:
            return False
        self._free(needed, spared=None)
        return True

    def _left_behind(self, caches: Sequence["KVCache"]) -> float:
        """The bytes that caches leave to others in their group, whose buffers stay whole."""
        staying = {slot.cache.group for slot in self._slots.values() if slot.cache not in caches}
        return sum(
            self._bytes_of(one.group.rows)
            for one in caches
            if one.group is not None and one.group in staying
        )

    def needed_bytes(self, tokens: int) -> tuple[float, float]:
        """The bytes of a slot for this many tokens, and the bytes that idle slots could free."""
        idle = [slot for slot in self._slots.values() if not slot.busy]
        return self._bytes_of(self._capacity(tokens)), self._claimed(idle)

    def bound(self, free: float) -> None:
        """Limits the slots to what they hold plus `free` bytes, but never above the set memory."""
        held = sum(slot.cache.nbytes for slot in self._slots.values())
        self.memory = min(self._allowed, int(held + free))

    @property
    def is_bounded(self) -> bool:
        return self.memory < self._allowed

    def known(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt need not be computed, because a slot holds them."""
        return max((slot.usable(prompt) for slot in self._slots.values()), default=0)

    def seats(self, tokens: int) -> float:
        """How many slots of this many tokens fit into the memory."""
        size = self._bytes_of(min(tokens, self.limit))
        return self.memory / size if size else math.inf

    def share(self, slot: PrefixSlot, prompt: Sequence[int]) -> None:
        """Lets others copy what a busy slot has computed of its prompt."""
        slot.tokens.extend(prompt[len(slot.tokens) : slot.cache.length])
        self._update_statuses()

    def grow(self, slot: PrefixSlot, tokens: int) -> None:
        """Gives a slot room for more tokens; drops others if memory is short."""
        capacity = self._capacity(tokens)
        more = self._bytes_of(capacity) - self._bytes_of(slot.cache.capacity)
        self._free(more + self._left_behind([slot.cache]), spared=slot)
        slot.cache.grow(capacity)

    def keep(self, slot: PrefixSlot) -> None:
        """Keeps a checkpoint of a slot at its present length, if memory lasts."""
        _keep_checkpoint(slot.cache)
        if slot.cache.needs_checkpoints:
            self._free(0, spared=slot)

    def settle(self, slot: PrefixSlot, tokens: Sequence[int]) -> None:
        """Records what a slot holds after a request: `tokens` as far as they were computed."""
        if self._slots.get(slot.id) is not slot:  # it was dropped: its layers may disagree
            return
        slot.cut(tokens, slot.cache.reach(min(slot.cache.length, len(tokens))))
        _keep_checkpoint(slot.cache)
        slot.unsaved, slot.busy = True, False
        if slot.tokens:
            slot.last_used = self._clock()
            is_alone = not any(one.busy for one in self._slots.values())
            self._free(0, spared=slot if is_alone else None)
        else:
            self._slots.pop(slot.id, None)
        self._update_statuses()

    def save(self, *, closing: bool = False) -> bool:
        """Writes one file with content that is not on disk yet, or everything if `closing`; returns
        False if nothing is left to write."""
        store, slots = self._store, [slot for slot in self._slots.values() if not slot.busy]
        if store is None:
            return False
        for slot in slots[-1:] if store.single else slots:
            if closing:
                while store.save(slot.tokens, slot.cache, closing=True):
                    pass
            elif slot.unsaved:
                slot.unsaved = store.save(slot.tokens, slot.cache)
                return True
        return False

    def drop(self, slot: PrefixSlot) -> None:
        self._slots.pop(slot.id, None)
        self._update_statuses()

    def clear(self) -> None:
        """Removes every slot that is not busy."""
        self._slots = {slot.id: slot for slot in self._slots.values() if slot.busy}
        self._update_statuses()

    def _load(self, prompt: Sequence[int], capacity: int) -> None:
        if self._store is None:
            return
        shared = self.known(prompt)
        while (found := self._store.find(prompt, shared)) is not None:
            slot = self._make(capacity, spared=None)
            if self._store.load(found, slot.cache):
                slot.tokens = list(prompt[: slot.cache.length])
                return
            self.drop(slot)

    def _claim(self, slot: PrefixSlot) -> float:
        """Bytes of a slot, including those that a busy one has not allocated yet."""
        nbytes = slot.cache.nbytes
        return max(nbytes, self._bytes_of(slot.cache.capacity)) if slot.busy else nbytes

    def _capacity(self, tokens: int) -> int:
        room = tokens + max(GROWTH, tokens // _HEADROOM)
        return min(room // GROWTH * GROWTH, self.limit)

    def _make(self, capacity: int, spared: PrefixSlot | None) -> PrefixSlot:
        """A new slot, or the spared one if memory does not suffice for both and the busy ones."""
        needed = self._bytes_of(capacity)
        staying = [slot for slot in self._slots.values() if slot.busy or slot is spared]
        if spared is not None and self._claimed(staying) + needed > self.memory:
            if not spared.busy:
                return spared
            spared = None
        self._free(needed, spared=spared, slots=1)
        slot_id = next(number for number in count() if number not in self._slots)
        slot = self._slots[slot_id] = PrefixSlot(self._make_cache(capacity), slot_id)
        return slot

    def _free(self, needed: float, *, spared: PrefixSlot | None, slots: int = 0) -> None:
        """Drops the least recently used slots that are not busy, until this many bytes and slots
        are free."""
        if self._drafts is not None and self._nbytes + needed > self.memory:
            self._drafts.clear()
        kept = [slot.cache.checkpoints for slot in self._slots.values()]
        _drop_checkpoints(kept, self._nbytes + needed - self.memory)
        others = [slot for slot in self._slots.values() if slot is not spared and not slot.busy]
        for slot in others:
            if self._nbytes + needed <= self.memory and len(self._slots) + slots <= MAX_SLOTS:
                return
            del self._slots[slot.id]

    @property
    def _nbytes(self) -> float:
        return self._claimed(self._slots.values())

    def _claimed(self, slots: Iterable[PrefixSlot]) -> float:
        return sum(map(self._claim, slots)) + (self._drafts.nbytes if self._drafts else 0)

    def _update_statuses(self) -> None:
        self.statuses = tuple(self._slots[slot_id].status for slot_id in sorted(self._slots))


def _keep_checkpoint(cache: "KVCache") -> None:
    """All checkpoints but the last two take at most half the memory of the rest of the cache."""
    cache.keep()
    nbytes = sum(one.nbytes for one in cache.checkpoints)
    _drop_checkpoints([cache.checkpoints], nbytes - (cache.nbytes - nbytes) / 2)


def _drop_checkpoints(kept: Sequence[list["Checkpoint"]], nbytes: float) -> None:
    """Drops checkpoints until this many bytes are free, first those with the closest neighbours.
    The last two of each cache stay: the next turn of a conversation begins there."""
    while nbytes > 0:
        gaps = [
            (checkpoints[at + 1].length - (checkpoints[at - 1].length if at else 0), number, at)
            for number, checkpoints in enumerate(kept)
            for at in range(len(checkpoints) - 2)
        ]
        if not gaps:
            return
        _, number, at = min(gaps)
        nbytes -= kept[number].pop(at).nbytes
