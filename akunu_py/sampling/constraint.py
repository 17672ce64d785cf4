"""Constraint: a logits processor that keeps an answer within a grammar, drafted or not.

It also says how far a draft is allowed and which tokens the grammar forces. A grammar may apply to
parts of an answer only, such as its tool calls: it sleeps until the model emits a mark. It never
applies to reasoning. The state is keyed by position: a forward pass that begins earlier undoes what
came after.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from time import thread_time
from typing import TYPE_CHECKING, Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from akunu_py.errors import UnreadableRequestError
from akunu_py.options import Reasoning, Wake

if TYPE_CHECKING:
    from llguidance import LLMatcher

Masks = npt.NDArray[np.uint32]
"""The allowed tokens, one bit per token: `[rows, words of 32 bits]`."""

_BITS: Final = 32
_GRACE_S: Final = 0.1
_ROW_S: Final = 0.01
"""How long a grammar may take per token on average, beyond its grace, because other requests wait:
usual grammars take 0.1 ms."""


class GrammarPart:
    """The state of a grammar in a part of an answer whose first token is at position `start`;
    `matcher` is at the beginning of the part."""

    def __init__(self, matcher: "LLMatcher", start: int) -> None:
        self._matcher, self._start = matcher, start
        self._taken = 0  # tokens of the part that the matcher has seen
        self._allowed_s = _GRACE_S

    @property
    def complete(self) -> bool:
        return self._matcher.is_stopped()

    def fill(self, mask: Masks) -> None:
        """Writes which tokens may come next into one row."""
        begun = thread_time()
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._allowed_s += _ROW_S
        self._check(thread_time() - begun)

    def allowed_length(self, tokens: Sequence[int]) -> int:
        return self._matcher.validate_tokens(list(tokens)) if tokens else 0

    def forced_tokens(self) -> Sequence[int]:
        begun = thread_time()
        forced = self._matcher.compute_ff_tokens()
        self._check(thread_time() - begun)
        return forced

    def take(self, token: int, position: int) -> bool:
        """Adds `token` to those that the matcher has seen; returns False if it is forbidden."""
        self.rollback(position)
        taken = self._matcher.try_consume_tokens([token]) == 1
        self._check()
        self._taken += taken
        return taken

    def rollback(self, position: int) -> None:
        """Forgets the tokens from a position on."""
        length = max(position - self._start, 0)
        if length < self._taken:
            self._matcher.rollback(self._taken - length)
            self._taken = length

    def _check(self, spent_s: float = 0.0) -> None:
        self._allowed_s -= spent_s
        if self._allowed_s < 0 or self._matcher.is_error():  # the library has limits of its own
            raise UnreadableRequestError(
                "The grammar is too complex: it takes too long for each token."
            )


@dataclass(frozen=True, slots=True)
class _State:
    """The state of an answer after one of its tokens: its last bytes, in which a mark may have
    begun; whether it is inside reasoning (None while reasoning may still begin); its part, if any;
    and whether nothing may follow."""

    tail: bytes = b""
    thinking: bool | None = False
    part: GrammarPart | None = None
    ended: bool = False


class Constraint:
    """Keeps an answer, or parts of it, within a grammar; `begin` makes the state of a part whose
    mark, `wake`, begins at a position. Without a mark, the `first` part, from position `start`, is
    the whole answer. In reasoning, the mark is plain text; a budget needs `think_end`, the id of
    its last mark. The model predicts `predicted` tokens of the matcher's `vocabulary`; `spell`
    gives an id's bytes.
    """

    def __init__(
        self,
        begin: Callable[[int], GrammarPart],
        spell: Callable[[int], bytes],
        wake: Wake | None,
        *,
        reasoning: Reasoning | None = None,
        think_end: int | None = None,
        first: GrammarPart | None,
        start: int,
        vocabulary: int,
        predicted: int,
    ) -> None:
        self._begin, self._spell, self._start = begin, spell, start
        self._words = (vocabulary + _BITS - 1) // _BITS
        self._predicted = predicted
        self._predictable: Masks | None = None  # of all tokens, if the model lacks some
        if predicted < vocabulary:
            bits = np.packbits(np.arange(self._words * _BITS) < predicted, bitorder="little")
            self._predictable = bits.view(np.uint32)
        self._once = wake is None or wake.once
        self._mark = wake.mark.encode() if wake else b""
        self._headers = [header.encode() for header in wake.headers] if wake else []
        self._think_start = reasoning.start.encode() if reasoning else b""
        self._think_end = reasoning.end.encode() if reasoning else b""
        self._end_token = think_end
        has_budget = wake is None and reasoning is not None and think_end is not None
        self._budget = reasoning.budget if reasoning and has_budget else None
        self._tokens: list[int] = []
        thinking = False if reasoning is None else reasoning.is_open or None
        self._states = [_State(thinking=thinking, part=first)]  # the one before them, first

    @property
    def complete(self) -> bool:
        return self._states[-1].ended

    def process(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        """See `Sampler.process_logits`; waits for `inputs` if they are lazy."""
        masks = self.masks(position, np.asarray(inputs).tolist())
        if masks is None:
            return logits
        bits = (mx.array(masks)[:, :, None] >> mx.arange(_BITS, dtype=mx.uint32)) & 1
        allowed = bits.reshape(len(masks), -1)[:, : logits.shape[-1]]
        return mx.where(allowed.astype(mx.bool_), logits, -mx.inf)

    def masks(self, position: int, inputs: Sequence[int]) -> Masks | None:
        """Which tokens may follow each input; None if all may. The first row predicts the token at
        `position`. Rows after a forbidden input allow everything, because they are not used."""
        masks = None
        for row, token in enumerate(inputs):
            if not self._take(token, position - 1 + row):
                break
            part = self._states[-1].part
            if part is None:
                continue
            if masks is None:
                masks = np.full((len(inputs), self._words), 0xFFFFFFFF, dtype=np.uint32)
            part.fill(masks[row])
            if self._budget is not None and position + row - self._start >= self._budget:
                self._end_reasoning(masks[row])
            if self._predictable is not None and not (masks[row] & self._predictable).any():
                raise UnreadableRequestError(
                    "The grammar needs a token that the tokenizer has but the model lacks."
                )
        return masks

    def _end_reasoning(self, mask: Masks) -> None:
        """Allows only the token that ends reasoning, unless the last character is incomplete."""
        end = self._end_token
        if self._states[-1].thinking and end is not None:
            word, bit = end // _BITS, 1 << end % _BITS
            if mask[word] & bit:
                mask[:] = 0
                mask[word] = bit

    def extend(self, position: int, tokens: Sequence[int]) -> int:
        """Takes the tokens emitted from `position` on, which replace those drafted there. Returns
        how many the grammar accepted; nothing can follow a token that completes it."""
        for count, token in enumerate(tokens):
            if not self._take(token, position + count):
                return count
            if self.complete:
                return count + 1
        return len(tokens)

    def allowed_length(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may follow the emitted ones."""
        part = self._states[-1].part
        if part is not None:
            return part.allowed_length(tokens)
        end = self._start + len(self._tokens)
        allowed = self.extend(end, tokens)
        self._truncate(end)
        return allowed

    def forced_tokens(self, limit: int) -> tuple[int, ...]:
        """The next tokens, `limit` at most, if the grammar allows only one text there."""
        part = self._states[-1].part
        forced = () if part is None else part.forced_tokens()[:limit]
        return tuple(takewhile(lambda token: token < self._predicted, forced))

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
        length = max(position - self._start, 0)
        del self._tokens[length:], self._states[length + 1 :]
        part = self._states[-1].part
        if part is not None:
            part.rollback(position)

    def _after(self, state: _State, token: int, position: int) -> _State | None:
        if state.part is not None:
            return self._within(state, state.part, token, position)
        text, thinking = state.tail + self._spell(token), state.thinking
        if thinking is None:
            begun = text.lstrip()
            if not begun.startswith(self._think_start) and self._think_start.startswith(begun):
                return replace(state, tail=text)
            thinking = begun.startswith(self._think_start)
        if thinking:
            _, mark, rest = text.partition(self._think_end)
            if not mark:
                return _State(_tail(text, self._think_end), thinking=True)
            text = rest
        at = text.find(self._mark) if self._mark else -1
        if at < 0:
            return _State(_tail(text, self._mark))
        # It sleeps if the grammar does not allow the token.
        return _State(part=self._woken(len(text) - at, token, position))

    def _within(self, state: _State, part: GrammarPart, token: int, position: int) -> _State | None:
        if not part.take(token, position):
            return None
        spelled = self._spell(token)
        if part.complete:
            in_header = any(header.endswith(spelled) for header in self._headers)
            return _State(ended=self._once and not in_header)
        if state.thinking is None:
            begun = state.tail + spelled
            if begun != self._think_start and self._think_start.startswith(begun):
                return replace(state, tail=begun)
            return replace(state, tail=b"", thinking=begun.startswith(self._think_start))
        is_over = state.thinking and token == self._end_token
        return replace(state, thinking=False) if is_over else state

    def _woken(self, reach: int, token: int, position: int) -> GrammarPart | None:
        """The part whose mark begins `reach` bytes before the end of `token`."""
        tokens = [token]
        while sum(len(self._spell(each)) for each in tokens) < reach:
            tokens.insert(0, self._tokens[-len(tokens)])
        first = position + 1 - len(tokens)
        part = self._begin(first)
        return part if all(map(part.take, tokens, range(first, position + 1))) else None


def _tail(text: bytes, mark: bytes) -> bytes:
    """The end of a text, in which a mark may have begun."""
    return text[len(text) - len(mark) + 1 :] if len(text) >= len(mark) else text
