"""Constraint: a logits processor that keeps an answer within a grammar, drafted or not.

It also says how far a draft is allowed and which tokens the grammar forces. A grammar may hold for
parts of an answer only, such as its tool calls: it sleeps until the model emits a mark. The state
is keyed by position: a forward that begins earlier undoes what came after.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from akunu_py.errors import InvalidRequestError, UnreadableRequestError
from akunu_py.options import Grammar, Wake
from akunu_py.text.json_schema import JSON_STYLE, bounded, closed, one_line, readable, unmet_of
from akunu_py.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

logger = logging.getLogger(__name__)

Masks = npt.NDArray[np.uint32]
"""Which tokens are allowed, one bit per token, `[rows, words of 32 bits]`."""

_BITS: Final = 32
_WHOLE: Final = Wake("", awake=True, once=True)
"""Of a grammar that holds for the whole answer."""
_KEPT_MATCHERS: Final = 4
"""Agents send the same tools with every request; a hundred of them take long to compile."""


class GrammarPart:
    """A grammar's state along a part of an answer whose first token is at position `start`;
    `matcher` is at the beginning of the part."""

    def __init__(self, matcher: "LLMatcher", start: int) -> None:
        self._matcher, self._start = matcher, start
        self._taken = 0  # tokens of the part that the matcher has seen

    @property
    def complete(self) -> bool:
        return self._matcher.is_stopped()

    def fill(self, mask: Masks) -> None:
        """Sets which tokens may follow those taken, in one row."""
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self.check()

    def allowed_length(self, tokens: Sequence[int]) -> int:
        return self._matcher.validate_tokens(list(tokens)) if tokens else 0

    def forced_tokens(self) -> Sequence[int]:
        forced = self._matcher.compute_ff_tokens()
        self.check()
        return forced

    def take(self, token: int, position: int) -> bool:
        """Makes `token` the last one that the matcher has seen; False if it is forbidden there."""
        self.rollback(position)
        taken = self._matcher.try_consume_tokens([token]) == 1
        self.check()
        self._taken += taken
        return taken

    def rollback(self, position: int) -> None:
        """Forgets the tokens at a position and after it."""
        length = max(position - self._start, 0)
        if length < self._taken:
            self._matcher.rollback(self._taken - length)
            self._taken = length

    def check(self) -> None:
        """Raises UnreadableRequestError if the grammar turned out to be too complex."""
        if self._matcher.is_error():
            reason = one_line(self._matcher.get_error())
            raise UnreadableRequestError(f"The grammar is too complex to follow: {reason}.")


@dataclass(frozen=True, slots=True)
class _State:
    """Where an answer is after one of its tokens: its last bytes, in which a mark may have begun,
    whether it is inside reasoning, its part, if any, and whether nothing may follow."""

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
        first: the part that the answer, whose first token is at position `start`, begins in.
        predicted: how many of the matcher's `vocabulary` the model predicts.
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
        self._begin, self._spell, self._start = begin, spell, start
        self._words = (vocabulary + _BITS - 1) // _BITS
        self._predicted = predicted
        self._predictable: Masks | None = None  # of all tokens, if the model lacks some
        if predicted < vocabulary:
            bits = np.packbits(np.arange(self._words * _BITS) < predicted, bitorder="little")
            self._predictable = bits.view(np.uint32)
        self._once = wake.once
        self._mark, self._think_start, self._think_end = marks = [
            mark.encode() for mark in (wake.mark, wake.think_start, wake.think_end)
        ]
        self._reach = max(1, *map(len, marks)) - 1
        self._tokens: list[int] = []
        self._states = [_State(thinking=wake.thinking, part=first)]  # the one before them, first

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
        `position`. Rows after a forbidden input allow everything: nothing is read from them."""
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
            if self._predictable is not None and not (masks[row] & self._predictable).any():
                raise UnreadableRequestError(
                    "The grammar needs a token that the tokenizer has and the model lacks."
                )
        return masks

    def extend(self, position: int, tokens: Sequence[int]) -> int:
        """Takes the tokens emitted from `position` on, which replace those drafted there. Returns
        how many the grammar took; nothing can follow the one that completes it."""
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
            if not state.part.take(token, position):
                return None
            return _State(ended=self._once) if state.part.complete else state
        text, thinking = state.tail + self._spell(token), state.thinking
        while True:
            marks = (self._think_end,) if thinking else (self._mark, self._think_start)
            found = [(at, each) for each in marks if each and (at := text.find(each)) >= 0]
            if not found:
                tail = text[-self._reach :] if self._reach else b""
                return replace(state, tail=tail, thinking=thinking)
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
        first = position + 1 - len(tokens)
        part = self._begin(first)
        return part if all(map(part.take, tokens, range(first, position + 1))) else None


class ConstraintFactory:
    """Makes constraints for a model, which predicts `vocabulary_size` of its tokenizer's ids; they
    share one llguidance tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        self._predicted = vocabulary_size
        self._vocabulary = max(vocabulary_size, len(tokenizer.wrapped))
        self._guide: LLTokenizer | None = None
        self._matchers: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def make(self, grammar: Grammar, start: int) -> Constraint:
        """A constraint for the answer whose first token is at position `start`; refuses invalid
        grammars, and tokenizers that llguidance cannot read."""
        if self._guide is None:
            self._guide = self._make_guide()
        matcher = self._matchers.pop(grammar, None) or _make_matcher(self._guide, grammar)
        self._matchers[grammar] = matcher
        if len(self._matchers) > _KEPT_MATCHERS:
            self._matchers.popitem(last=False)
        wake, first = grammar.wake or _WHOLE, None
        if wake.awake:
            begun = matcher.deep_copy()
            begun.consume_tokens(self._guide.tokenize_str(wake.mark, parse_special=True))
            first = GrammarPart(begun, start)
            first.check()
        return Constraint(
            lambda position: GrammarPart(matcher.deep_copy(), position),
            self._tokenizer.token_bytes.of,
            wake,
            first=first,
            start=start,
            vocabulary=self._vocabulary,
            predicted=self._predicted,
        )

    def _make_guide(self) -> "LLTokenizer":
        from llguidance.hf import from_tokenizer  # noqa: PLC0415  (most requests do not need it)

        wrapped = self._tokenizer.wrapped
        fast = getattr(wrapped, "_tokenizer", wrapped)
        ends = sorted(self._tokenizer.end_tokens) or None
        try:
            return from_tokenizer(fast, self._vocabulary, eos_token=ends)
        except ValueError as error:
            raise InvalidRequestError(
                f"This model's answers cannot be constrained: {one_line(str(error))}."
            ) from error


def _make_matcher(guide: "LLTokenizer", grammar: Grammar) -> "LLMatcher":
    from llguidance import LLMatcher  # noqa: PLC0415  (most requests do not need it)

    try:
        if grammar.kind == "json_schema":
            source = LLMatcher.grammar_from_json_schema(
                json.dumps(readable(closed(bounded(json.loads(grammar.source))))),
                defaults=cast("JsonCompileOptions", JSON_STYLE),
            )
        elif grammar.kind == "regex":
            source = LLMatcher.grammar_from_regex(grammar.source)
        else:
            source = LLMatcher.grammar_from_lark(grammar.source)
        matcher = LLMatcher(guide, source, log_level=0)
        reason = matcher.get_error()
    except (ValueError, RecursionError) as error:
        reason = str(error)
    if reason:
        raise UnreadableRequestError(f"The {grammar.name} cannot be followed: {one_line(reason)}.")
    if grammar.kind == "json_schema" and not grammar.unmet:  # or the client knows it already
        for unmet in unmet_of(matcher.get_grammar_warnings()):
            logger.warning("the %s is followed without %s", grammar.name, unmet)
    return matcher
