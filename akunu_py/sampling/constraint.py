"""Constraint: keeps an answer within a grammar, whether its tokens were drafted or not.

A constraint is a logits processor: for each row it masks the tokens that the grammar forbids after
the tokens before that row. It also says how far a draft is allowed and which tokens the grammar
forces. A grammar may hold for parts of an answer only, such as its tool calls: it sleeps until the
model emits a mark. The state is keyed by position: a forward that begins earlier undoes what came
after. llguidance does the work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from akunu_py.errors import UnreadableRequestError
from akunu_py.options import Wake

if TYPE_CHECKING:
    from llguidance import LLMatcher

_BITS: Final = 32


class GrammarPart:
    """A grammar's state along a part of an answer, or all of it.

    Args:
        matcher: the grammar's matcher, at its beginning.
        start: position of the part's first token.
    """

    def __init__(self, matcher: "LLMatcher", start: int) -> None:
        self._matcher = matcher
        self._start = start
        self._taken = 0  # tokens of the part that the matcher has seen

    @property
    def complete(self) -> bool:
        """Whether the grammar is satisfied and nothing can follow."""
        return self._matcher.is_stopped()

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Sets which tokens may follow those taken, one bit per token."""
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()

    def allowed_length(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may follow the emitted ones."""
        return self._matcher.validate_tokens(list(tokens)) if tokens else 0

    def forced_tokens(self, limit: int) -> tuple[int, ...]:
        """The next tokens, `limit` at most, if the grammar allows only one text there."""
        forced = tuple(self._matcher.compute_ff_tokens()[:limit])
        self._check()
        return forced

    def take(self, token: int, position: int) -> bool:
        """Makes `token` the last one that the matcher has seen; False if it is forbidden there."""
        self.roll_back(position)
        taken = self._matcher.try_consume_tokens([token]) == 1
        self._check()
        self._taken += taken
        return taken

    def skip(self, tokens: Sequence[int]) -> None:
        """Takes tokens that are the end of the prompt."""
        self._matcher.consume_tokens(list(tokens))
        self._check()

    def roll_back(self, position: int) -> None:
        """Forgets the tokens at a position and after it."""
        length = max(position - self._start, 0)
        if length < self._taken:
            self._matcher.rollback(self._taken - length)
            self._taken = length

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = one_line(self._matcher.get_error())
            raise UnreadableRequestError(f"The grammar is too complex to follow: {reason}.")


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
    part: GrammarPart | None = None
    ended: bool = False


class Constraint:
    """Keeps an answer, or parts of it, within a grammar.

    Args:
        begin: makes the state of a part whose mark begins with the token at a position.
        spell: the bytes of an id.
        wake: the mark; an empty one, and `once`, for the whole answer.
        first: the part that the answer begins in, or None.
        start: position of the answer's first token.
        vocabulary: how many ids the matcher knows.
        predicted: how many of these the model predicts; some tokenizers have more.
    """

    def __init__(
        self,
        begin: Callable[[int], GrammarPart],
        spell: Callable[[int], bytes],
        wake: Wake,
        *,
        first: GrammarPart | None,
        start: int,
        vocabulary: int,
        predicted: int,
    ) -> None:
        self._begin, self._start, self._spell = begin, start, spell
        self._words = (vocabulary + _BITS - 1) // _BITS
        self._predicted = predicted
        self._predicts_all = predicted >= vocabulary
        self._once = wake.once
        self._mark, self._think_start, self._think_end = (
            mark.encode() for mark in (wake.mark, wake.think_start, wake.think_end)
        )
        self._reach = max(1, *map(len, (self._mark, self._think_start, self._think_end))) - 1
        self._tokens: list[int] = []
        self._states = [_State(thinking=wake.thinking, part=first)]  # the one before them, first

    @property
    def complete(self) -> bool:
        """Whether the grammar is satisfied and nothing can follow."""
        return self._states[-1].ended

    def process(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        """The logits with forbidden tokens at minus infinity; see `Sampler.process_logits`.

        Waits for `inputs` if they are lazy.
        """
        masks = self.masks(position, np.asarray(inputs).tolist())
        return logits if masks is None else masked(logits, masks)

    def masks(self, position: int, inputs: Sequence[int]) -> npt.NDArray[np.uint32] | None:
        """Which tokens may follow each input, one bit per token, `[inputs, words of 32 bits]`; None
        if all may.

        Rows after a forbidden input allow everything, because nothing is read from them.

        Args:
            position: the position of the token that the first row predicts.
            inputs: the token before it, and the draft tokens.
        """
        masks = None
        for row, token in enumerate(inputs):
            if not self._take(token, position - 1 + row):
                break
            part = self._states[-1].part
            if part is not None:
                if masks is None:
                    masks = np.full((len(inputs), self._words), 0xFFFFFFFF, dtype=np.uint32)
                part.fill(masks[row])
                if not self._predicts_all:
                    self._check_predicted(masks[row])
        return masks

    def extend(self, position: int, tokens: Sequence[int]) -> int:
        """Takes the tokens emitted from `position` on, which replace those drafted there.

        Returns:
            How many of them the grammar took; nothing can follow the one that completes it.
        """
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
        forced = () if part is None else part.forced_tokens(limit)
        return tuple(takewhile(lambda token: token < self._predicted, forced))

    def _check_predicted(self, mask: npt.NDArray[np.uint32]) -> None:
        whole, rest = divmod(self._predicted, _BITS)
        if not mask[:whole].any() and not (rest and mask[whole] & ((1 << rest) - 1)):
            raise UnreadableRequestError(
                "The grammar needs a token that the tokenizer has and the model lacks."
            )

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

    def _woken(self, reach: int, token: int, position: int) -> GrammarPart | None:
        """The part whose mark begins `reach` bytes before the end of `token`."""
        tokens = [token]
        while sum(len(self._spell(each)) for each in tokens) < reach:
            tokens.insert(0, self._tokens[-len(tokens)])
        part = self._begin(position + 1 - len(tokens))
        places = range(position + 1 - len(tokens), position + 1)
        return part if all(map(part.take, tokens, places)) else None


def masked(logits: mx.array, masks: npt.NDArray[np.uint32]) -> mx.array:
    """Logits `[rows, vocabulary]` with the tokens that masks forbid at minus infinity."""
    words = mx.array(masks)
    bits = (words[:, :, None] >> mx.arange(_BITS, dtype=mx.uint32)) & 1
    allowed = bits.reshape(words.shape[0], -1)[:, : logits.shape[-1]]
    return mx.where(allowed.astype(mx.bool_), logits, -mx.inf)


def one_line(reason: str) -> str:
    """What llguidance says, shortened."""
    return " ".join(reason.split()).rstrip(".")[:300]
