"""LazyConstraint: a grammar for parts of an answer, such as its tool calls.

It sleeps until the model emits a mark, and then holds the answer to the grammar until that is
complete. Its state is keyed by position, as a constraint's is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from akunu_py.options import Wake
from akunu_py.sampling.constraint import Constraint, masked, open_masks, words_of


@dataclass(frozen=True, slots=True)
class _State:
    """Where an answer is after one of its tokens.

    Attributes:
        tail: the last bytes, in which a mark may have begun.
        thinking: whether it is inside reasoning.
        part: the constraint of the part that it is in, if any.
        ended: whether nothing may follow.
    """

    tail: bytes = b""
    thinking: bool = False
    part: Constraint | None = None
    ended: bool = False


class LazyConstraint:
    """A grammar's state along one answer, parts of which it holds for.

    Args:
        begin: makes the constraint of a part whose mark begins with the token at a position.
        spell: the bytes of an id.
        wake: the mark.
        first: the constraint of the part that the prompt has begun, or None.
        start: position of the answer's first token.
        vocabulary: how many ids there are.
    """

    def __init__(
        self,
        begin: Callable[[int], Constraint],
        spell: Callable[[int], bytes],
        wake: Wake,
        *,
        first: Constraint | None,
        start: int,
        vocabulary: int,
    ) -> None:
        self._begin, self._start, self._spell = begin, start, spell
        self._words = words_of(vocabulary)
        self._once = wake.once
        self._mark, self._think_start, self._think_end = (
            mark.encode() for mark in (wake.mark, wake.think_start, wake.think_end)
        )
        self._reach = max(map(len, (self._mark, self._think_start, self._think_end))) - 1
        self._tokens: list[int] = []
        self._states = [_State(thinking=wake.thinking, part=first)]  # the one before them, first

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""
        return self._states[-1].ended

    def process(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        """See `Constraint.process`."""
        masks = self._masks(position, np.asarray(inputs).tolist())
        return logits if masks is None else masked(logits, masks)

    def masks(self, position: int, inputs: Sequence[int]) -> npt.NDArray[np.uint32]:
        """See `Constraint.masks`."""
        masks = self._masks(position, inputs)
        return open_masks(len(inputs), self._words) if masks is None else masks

    def _masks(self, position: int, inputs: Sequence[int]) -> npt.NDArray[np.uint32] | None:
        """The masks; None if everything is allowed."""
        masks = None
        for row, token in enumerate(inputs):
            if not self._take(token, position - 1 + row):
                break
            part = self._states[-1].part
            if part is not None:
                masks = open_masks(len(inputs), self._words) if masks is None else masks
                part.fill(masks[row])
        return masks

    def extend(self, position: int, tokens: Sequence[int]) -> int:
        """See `Constraint.extend`."""
        for count, token in enumerate(tokens):
            if not self._take(token, position + count):
                return count
            if self.complete:
                return count + 1
        return len(tokens)

    def allowed_length(self, tokens: Sequence[int]) -> int:
        """See `Constraint.allowed_length`."""
        part = self._states[-1].part
        if part is not None:
            return part.allowed_length(tokens)
        end = self._start + len(self._tokens)
        allowed = self.extend(end, tokens)
        self._truncate(end)
        return allowed

    def forced_tokens(self, limit: int) -> tuple[int, ...]:
        """See `Constraint.forced_tokens`."""
        part = self._states[-1].part
        return () if part is None else part.forced_tokens(limit)

    def _take(self, token: int, position: int) -> bool:
        """Makes `token` the last one; False if it is forbidden there."""
        if position - self._start > len(self._tokens):
            return False
        self._truncate(position)
        if position < self._start:
            return True
        state = self._after(self._states[-1], token, position)
        if state is None:
            return False
        self._tokens.append(token)
        self._states.append(state)
        return True

    def _truncate(self, position: int) -> None:
        """Forgets the tokens at a position and after it."""
        length = max(position - self._start, 0)
        del self._tokens[length:], self._states[length + 1 :]
        part = self._states[-1].part
        if part is not None:
            part.roll_back(position)

    def _after(self, state: _State, token: int, position: int) -> _State | None:
        if state.part is not None:
            if not state.part.take(token, position):
                return None
            return _State(ended=self._once) if state.part.complete else state
        text, thinking = state.tail + self._spell(token), state.thinking
        while True:
            mark, other = (self._think_end, b"") if thinking else (self._mark, self._think_start)
            found = [(at, each) for each in (mark, other) if each and (at := text.find(each)) >= 0]
            if not found:
                return replace(
                    state, tail=text[-self._reach :] if self._reach else b"", thinking=thinking
                )
            at, each = min(found)
            if each == self._mark and not thinking:
                part = self._woken(len(text) - at, token, position)
                return _State(part=part)  # asleep if the token goes on as the grammar cannot
            text, thinking = text[at + len(each) :], not thinking

    def _woken(self, reach: int, token: int, position: int) -> Constraint | None:
        """The constraint of a part whose mark begins `reach` bytes before the end of `token`."""
        tokens = [token]
        while sum(len(self._spell(each)) for each in tokens) < reach:
            tokens.insert(0, self._tokens[-len(tokens)])
        part = self._begin(position + 1 - len(tokens))
        places = range(position + 1 - len(tokens), position + 1)
        return part if all(map(part.take, tokens, places)) else None
