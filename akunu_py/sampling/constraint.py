"""Constraint: keeps an answer within a grammar, drafted or not.

Tokens that the grammar forbids are taken out of the logits, row by row, in the light of the tokens
before each row; drafts end at the first that it forbids, and where it leaves no choice it drafts by
itself. What it knows is keyed by position: a forward that begins earlier takes back what came
after. The grammars are llguidance's, which is imported when the first one is asked for.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from akunu_py.drafting.base import Draft
from akunu_py.errors import InvalidRequestError
from akunu_py.model import TargetModel
from akunu_py.options import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

FORCED: Final = "forced"
"""The source of drafts that a grammar makes."""

_FORCED_ACCEPTANCE: Final = 0.98
"""The text of a forced draft is certain; that the model splits it into the same tokens is not."""

_WHITESPACE: Final = r"[ ]?|\n[ \t]{0,20}"
"""What may stand between JSON's parts, so that no model goes on with blanks for ever."""

_BITS: Final = 32


class Constraint:
    """What the grammar allows along one answer.

    Args:
        matcher: of the grammar, at its beginning.
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

    def apply(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        """The logits with forbidden tokens at minus infinity; see `Sampler.edit`.

        Waits for `inputs` if they are lazy.
        """
        words = mx.array(self.masks(position, np.asarray(inputs).tolist()))
        bits = (words[:, :, None] >> mx.arange(_BITS, dtype=mx.uint32)) & 1
        allowed = bits.reshape(words.shape[0], -1)[:, : logits.shape[-1]]
        return mx.where(allowed.astype(mx.bool_), logits, -mx.inf)

    def masks(self, position: int, inputs: Sequence[int]) -> npt.NDArray[np.uint32]:
        """Which tokens may follow each input, a bit a token, `[inputs, words of 32 bits]`.

        Rows after an input that is itself forbidden allow everything: nothing is read from them.

        Args:
            position: of the token that the first row is for.
            inputs: the token before it, and the drafts.
        """
        masks = np.full((len(inputs), self._words), 0xFFFFFFFF, dtype=np.uint32)
        for row, token in enumerate(inputs):
            if not self._take(token, position - 1 + row):
                break
            mask = masks[row]
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            self._check()
        return masks

    def extend(self, position: int, tokens: Sequence[int]) -> None:
        """Takes what was emitted from `position` on, instead of what was drafted there."""
        for index, token in enumerate(tokens, start=position):
            if not self._take(token, index):
                return

    def steer(self, draft: Draft, limit: int) -> Draft:
        """The draft as far as it is allowed after what was emitted; or the grammar's own.

        A draft that was drawn from distributions keeps its first forbidden token, which will be
        rejected, and is never replaced: see `decoding/verification.py`.
        """
        allowed = self._matcher.validate_tokens(list(draft.tokens)) if draft else 0
        if draft.probabilities is not None:
            return draft.cut(allowed + 1)
        draft = draft.cut(allowed)
        forced = tuple(self._matcher.compute_ff_tokens()[:limit])
        self._check()
        if draft.tokens[: len(forced)] == forced:
            return draft
        return Draft(forced, FORCED, accept_probs=(_FORCED_ACCEPTANCE,) * len(forced))

    def _take(self, token: int, position: int) -> bool:
        """Makes `token` the last that the matcher has seen; False if it is forbidden there."""
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
            raise InvalidRequestError(f"The grammar is too much to follow: {reason}.")


class ConstraintMaker:
    """Makes constraints for one model's answers; what all of them share is made once.

    Args:
        model: whose tokens they allow and forbid.
    """

    def __init__(self, model: TargetModel) -> None:
        self._model = model
        self._vocabulary = max(model.vocabulary_size, len(model.tokenizer.wrapped))
        self._tokenizer: LLTokenizer | None = None

    def make(self, grammar: Grammar, start: int) -> Constraint:
        """A constraint for the answer whose first token stands at `start`.

        Raises:
            InvalidRequestError: if the grammar makes no sense, or the model's tokenizer cannot be
                constrained.
        """
        from llguidance import LLMatcher  # noqa: PLC0415  (most requests do not need it)

        if self._tokenizer is None:
            self._tokenizer = self._make_tokenizer()
        try:
            matcher = LLMatcher(self._tokenizer, _compiled(grammar), log_level=0)
            reason = matcher.get_error()
        except ValueError as error:
            reason = str(error)
        if reason:
            raise InvalidRequestError(
                f"The {grammar.name} cannot be followed: {_one_line(reason)}."
            )
        return Constraint(matcher, start, self._vocabulary)

    def _make_tokenizer(self) -> "LLTokenizer":
        from llguidance.hf import from_tokenizer  # noqa: PLC0415

        tokenizer = self._model.tokenizer
        fast = getattr(tokenizer.wrapped, "_tokenizer", tokenizer.wrapped)
        ends = sorted(tokenizer.end_tokens) or None
        try:
            return from_tokenizer(fast, self._vocabulary, eos_token=ends)
        except ValueError as error:
            raise InvalidRequestError(
                f"Answers of {self._model.name} cannot be constrained: {_one_line(str(error))}."
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
