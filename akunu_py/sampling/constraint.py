"""Constraint: keeps an answer within a grammar, whether its tokens were drafted or not.

A constraint is a logits processor: for each row it masks the tokens that the grammar forbids after
the tokens before that row. It also says how far a draft is allowed and which tokens the grammar
forces. Its state is keyed by position: a forward that begins earlier undoes what came after.
llguidance does the work; it is imported when the first grammar is asked for.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from akunu_py.errors import InvalidRequestError, UnreadableRequestError
from akunu_py.options import Grammar
from akunu_py.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_WHITESPACE: Final = r"[ ]?|\n[ \t]{0,20}"
"""The white space allowed between the parts of JSON, so that a model cannot emit blanks forever."""

_BITS: Final = 32


class Constraint:
    """A grammar's state along one answer.

    Args:
        matcher: the grammar's matcher, at its beginning.
        start: position of the answer's first token.
        vocabulary: how many ids the matcher knows.
    """

    def __init__(self, matcher: "LLMatcher", start: int, vocabulary: int) -> None:
        self._matcher = matcher
        self._start = start
        self._words = (vocabulary + _BITS - 1) // _BITS
        self._taken = 0  # tokens of the answer that the matcher has seen

    @property
    def complete(self) -> bool:
        """Whether the grammar is satisfied and nothing can follow."""
        return self._matcher.is_stopped()

    def process(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        """The logits with forbidden tokens at minus infinity; see `Sampler.process_logits`.

        Waits for `inputs` if they are lazy.
        """
        words = mx.array(self.masks(position, np.asarray(inputs).tolist()))
        bits = (words[:, :, None] >> mx.arange(_BITS, dtype=mx.uint32)) & 1
        allowed = bits.reshape(words.shape[0], -1)[:, : logits.shape[-1]]
        return mx.where(allowed.astype(mx.bool_), logits, -mx.inf)

    def masks(self, position: int, inputs: Sequence[int]) -> npt.NDArray[np.uint32]:
        """Which tokens may follow each input, one bit per token, `[inputs, words of 32 bits]`.

        Rows after a forbidden input allow everything, because nothing is read from them.

        Args:
            position: the position of the token that the first row predicts.
            inputs: the token before it, and the draft tokens.
        """
        masks = np.full((len(inputs), self._words), 0xFFFFFFFF, dtype=np.uint32)
        for row, token in enumerate(inputs):
            if not self._take(token, position - 1 + row):
                break
            mask = masks[row]
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            self._check()
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
        return self._matcher.validate_tokens(list(tokens)) if tokens else 0

    def forced_tokens(self, limit: int) -> tuple[int, ...]:
        """The next tokens, `limit` at most, if the grammar allows only one text there."""
        forced = tuple(self._matcher.compute_ff_tokens()[:limit])
        self._check()
        return forced

    def _take(self, token: int, position: int) -> bool:
        """Makes `token` the last one that the matcher has seen; False if it is forbidden there."""
        before = position - self._start
        if before < 0:
            self._roll_back_to(0)
            return True
        if before > self._taken:
            return False
        self._roll_back_to(before)
        taken = self._matcher.try_consume_tokens([token]) == 1
        self._check()
        self._taken += taken
        return taken

    def _roll_back_to(self, length: int) -> None:
        if length < self._taken:
            self._matcher.rollback(self._taken - length)
            self._taken = length

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = _one_line(self._matcher.get_error())
            raise UnreadableRequestError(f"The grammar is too complex to follow: {reason}.")


class ConstraintFactory:
    """Makes constraints for one model's answers; they share one llguidance tokenizer.

    Args:
        tokenizer: the tokenizer of the model.
        vocabulary_size: how many ids the model predicts.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = max(vocabulary_size, len(tokenizer.wrapped))
        self._guide: LLTokenizer | None = None

    def make(self, grammar: Grammar, start: int) -> Constraint:
        """A constraint for the answer whose first token is at position `start`.

        Raises:
            InvalidRequestError: if the grammar is invalid, or llguidance cannot read the model's
                tokenizer.
        """
        from llguidance import LLMatcher  # noqa: PLC0415  (most requests do not need it)

        if self._guide is None:
            self._guide = self._make_guide()
        try:
            matcher = LLMatcher(self._guide, _compiled(grammar), log_level=0)
            reason = matcher.get_error()
        except ValueError as error:
            reason = str(error)
        if reason:
            raise UnreadableRequestError(
                f"The {grammar.name} cannot be followed: {_one_line(reason)}."
            )
        return Constraint(matcher, start, self._vocabulary)

    def _make_guide(self) -> "LLTokenizer":
        from llguidance.hf import from_tokenizer  # noqa: PLC0415

        wrapped = self._tokenizer.wrapped
        fast = getattr(wrapped, "_tokenizer", wrapped)
        ends = sorted(self._tokenizer.end_tokens) or None
        try:
            return from_tokenizer(fast, self._vocabulary, eos_token=ends)
        except ValueError as error:
            raise InvalidRequestError(
                f"This model's answers cannot be constrained: {_one_line(str(error))}."
            ) from error


def _compiled(grammar: Grammar) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415

    if grammar.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(
            grammar.source, defaults={"whitespace_pattern": _WHITESPACE}
        )
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.source)
    return LLMatcher.grammar_from_lark(grammar.source)


def _one_line(reason: str) -> str:
    return " ".join(reason.split()).rstrip(".")[:300]
