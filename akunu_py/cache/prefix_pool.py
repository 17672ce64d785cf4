"""PrefixPool: several caches with the tokens in them, and which of them serves a request.

The one that shares most with the prompt does, by rolling back, where it keeps more than it drops.
Where it would drop more, it is left alone, and what it shares is copied into another: a new one
while memory lasts, then that of the one that has not been used for longest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time
from typing import Final

from akunu_py.cache.prefix_slot import PrefixSlot
from akunu_py.model import TargetModel
from akunu_py.options import MOST_SLOTS

FIRST_CAPACITY: Final = 2048
"""Tokens a slot is made for if its first request needs no more."""


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """What a slot holds.

    Attributes:
        id: what `Options.slot` calls it.
        tokens: how many tokens it holds.
        capacity: how many it has room for.
        nbytes: what its buffers take.
        last_used: when it served a request, in seconds since 1970; 0 if it has not yet.
        busy: whether it serves one now; its tokens are then those that it began with.
    """

    id: int
    tokens: int
    capacity: int
    nbytes: int
    last_used: float
    busy: bool


class PrefixPool:
    """The slots of an engine.

    Args:
        model: whose caches they are.
        limit: the most tokens that one may hold.
        memory: bytes that all of them may take together; one may always be as large as it must.
        clock: tells the time, in seconds since 1970.

    Attributes:
        statuses: of every slot; any thread may read it.
    """

    def __init__(
        self, model: TargetModel, *, limit: int, memory: int, clock: Callable[[], float] = time
    ) -> None:
        self.limit = limit
        self.memory = memory
        self.statuses: tuple[SlotStatus, ...] = ()
        self._model = model
        self._clock = clock
        self._slots: dict[int, PrefixSlot] = {}  # the least recently used one first
        self._last_used: dict[int, float] = {}
        self._noted: dict[int, SlotStatus] = {}

    def take(
        self, prompt: Sequence[int], tokens: int, slot_id: int | None = None
    ) -> tuple[PrefixSlot, int]:
        """The slot for a prompt, ready for it, and how many of its tokens are in it already.

        Args:
            prompt: 1 token at least.
            tokens: how many there must be room for, at most `limit`.
            slot_id: the slot that is wanted; None takes the one that suits.
        """
        capacity = self._capacity(tokens)
        latest_first = reversed(self._slots.values())
        best = max(latest_first, key=lambda slot: slot.usable(prompt), default=None)
        shared = 0 if best is None else best.usable(prompt)
        if slot_id is not None and slot_id in self._slots:
            slot = self._slots[slot_id]
        elif slot_id is None and best is not None and best.held < 2 * shared:
            slot = best
        else:
            slot = self._make(capacity, slot_id, spared=best if shared else None)
        self._slots[slot.id] = self._slots.pop(slot.id)
        if capacity > slot.cache.capacity:
            self.grow(slot, capacity)
        if best is not None and best.id in self._slots and shared > slot.usable(prompt):
            slot.copy(best, shared)
        cached = slot.reuse(prompt)
        self._note(slot, busy=True)
        return slot, cached

    def grow(self, slot: PrefixSlot, capacity: int) -> None:
        """Makes a slot larger, at the cost of others where memory is short."""
        self._free((capacity - slot.cache.capacity) * self._bytes_per_token, spared=slot)
        slot.grow(capacity)

    def settle(self, slot: PrefixSlot, tokens: Sequence[int]) -> None:
        """Books what a slot holds after a request: `tokens` as far as they were computed."""
        slot.settle(tokens)
        if slot.held:
            self._last_used[slot.id] = self._clock()
            self._free(0, spared=slot)
        else:
            self._slots.pop(slot.id, None)
        self._note(slot)

    def drop(self, slot: PrefixSlot) -> None:
        """Forgets a slot with all that it holds."""
        self._slots.pop(slot.id, None)
        self._note()

    def clear(self) -> None:
        """Forgets every slot."""
        self._slots.clear()
        self._note()

    @property
    def _nbytes(self) -> int:
        return sum(slot.cache.nbytes for slot in self._slots.values())

    @property
    def _bytes_per_token(self) -> float:
        """What a token takes, as the slots there are show; 0 before the first has computed."""
        caches = [slot.cache for slot in self._slots.values()]
        return max((cache.nbytes / cache.capacity for cache in caches), default=0)

    def _capacity(self, tokens: int) -> int:
        """Room for that many tokens, in one of few sizes."""
        capacity = FIRST_CAPACITY
        while capacity < tokens:
            capacity *= 2
        return min(capacity, self.limit)

    def _make(self, capacity: int, slot_id: int | None, spared: PrefixSlot | None) -> PrefixSlot:
        """A new slot; or the one to be spared, where there is no room beside it."""
        needed = capacity * self._bytes_per_token
        if spared is not None and spared.cache.nbytes + needed > self.memory:
            if slot_id is None:
                return spared
            spared = None
        self._free(needed, spared=spared, slots=1)
        if slot_id is None:
            slot_id = next(number for number in range(MOST_SLOTS) if number not in self._slots)
        self._slots[slot_id] = PrefixSlot(self._model, capacity, slot_id)
        return self._slots[slot_id]

    def _free(self, needed: float, *, spared: PrefixSlot | None, slots: int = 0) -> None:
        """Drops the least recently used slots until so many bytes and slots are to be had."""
        others = [slot for slot in self._slots.values() if slot is not spared]
        for slot in others:
            if self._nbytes + needed <= self.memory and len(self._slots) + slots <= MOST_SLOTS:
                return
            del self._slots[slot.id]

    def _note(self, changed: PrefixSlot | None = None, *, busy: bool = False) -> None:
        """Tells what slots there are; all but the one that changed are as they were noted."""
        if changed is not None and changed.id in self._slots:
            self._noted[changed.id] = SlotStatus(
                changed.id,
                changed.held,
                changed.cache.capacity,
                changed.cache.nbytes,
                self._last_used.get(changed.id, 0.0),
                busy,
            )
        ids = sorted(self._slots.keys() & self._noted)
        self.statuses = tuple(self._noted[number] for number in ids)
