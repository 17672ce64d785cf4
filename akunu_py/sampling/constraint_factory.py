"""ConstraintFactory: from the grammar of a request to the constraint of its answer.

llguidance is imported when the first grammar is asked for.
"""

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from akunu_py.errors import InvalidRequestError, UnreadableRequestError
from akunu_py.options import Grammar, Wake
from akunu_py.sampling.constraint import Constraint, GrammarPart, one_line
from akunu_py.text.json_schema import WHITESPACE, bounded
from akunu_py.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_WHOLE: Final = Wake("", awake=True, once=True)
"""Of a grammar that holds for the whole answer."""
_KEPT_MATCHERS: Final = 4
"""Agents send the same tools with every request; a hundred of them take long to compile."""


class ConstraintFactory:
    """Makes constraints for one model's answers; they share one llguidance tokenizer.

    Args:
        tokenizer: the tokenizer of the model.
        vocabulary_size: how many ids the model predicts.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        self._predicted = vocabulary_size
        self._vocabulary = max(vocabulary_size, len(tokenizer.wrapped))
        self._guide: LLTokenizer | None = None
        self._matchers: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def make(self, grammar: Grammar, start: int) -> Constraint:
        """A constraint for the answer whose first token is at position `start`.

        Raises:
            InvalidRequestError: if the grammar is invalid, or llguidance cannot read the model's
                tokenizer.
        """
        if self._guide is None:
            self._guide = self._make_guide()
        matcher = self._matchers.pop(grammar, None) or self._make_matcher(grammar)
        self._matchers[grammar] = matcher
        if len(self._matchers) > _KEPT_MATCHERS:
            self._matchers.popitem(last=False)
        wake = grammar.wake or _WHOLE

        def begin(position: int) -> GrammarPart:
            return GrammarPart(matcher.deep_copy(), position)

        first = begin(start) if wake.awake else None
        if first is not None and wake.mark:
            first.skip(self._guide.tokenize_str(wake.mark, parse_special=True))
        return Constraint(
            begin,
            self._tokenizer.token_bytes.of,
            wake,
            first=first,
            start=start,
            vocabulary=self._vocabulary,
            predicted=self._predicted,
        )

    def _make_matcher(self, grammar: Grammar) -> "LLMatcher":
        from llguidance import LLMatcher  # noqa: PLC0415  (most requests do not need it)

        assert self._guide is not None
        try:
            matcher = LLMatcher(self._guide, _compiled(grammar), log_level=0)
            reason = matcher.get_error()
        except (ValueError, RecursionError) as error:
            reason = str(error)
        if reason:
            raise UnreadableRequestError(
                f"The {grammar.name} cannot be followed: {one_line(reason)}."
            )
        return matcher

    def _make_guide(self) -> "LLTokenizer":
        from llguidance.hf import from_tokenizer  # noqa: PLC0415

        wrapped = self._tokenizer.wrapped
        fast = getattr(wrapped, "_tokenizer", wrapped)
        ends = sorted(self._tokenizer.end_tokens) or None
        try:
            return from_tokenizer(fast, self._vocabulary, eos_token=ends)
        except ValueError as error:
            raise InvalidRequestError(
                f"This model's answers cannot be constrained: {one_line(str(error))}."
            ) from error


def _compiled(grammar: Grammar) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415

    if grammar.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(
            json.dumps(bounded(json.loads(grammar.source))),
            defaults={"whitespace_pattern": WHITESPACE},
        )
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.source)
    return LLMatcher.grammar_from_lark(grammar.source)
