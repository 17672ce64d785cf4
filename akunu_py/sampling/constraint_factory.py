"""ConstraintFactory: compiles grammars, and makes the constraints of answers from them.

Another process tries grammars from clients first; see `text/sandbox.py`.
"""

import json
import logging
from collections import OrderedDict
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from akunu_py.errors import InvalidRequestError, QueueFullError, UnreadableRequestError
from akunu_py.options import Grammar, Reasoning
from akunu_py.sampling.constraint import Constraint, GrammarPart
from akunu_py.text.json_schema import bounded, closed, json_lark, one_line, unmet_of
from akunu_py.text.sandbox import Guide, Trial, make_matcher, make_tokenizer, try_out
from akunu_py.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

logger = logging.getLogger(__name__)

_KEPT_MATCHERS: Final = 4
"""Agents send the same tools with every request; a hundred of them take 0.1 s to compile."""
_LARGE_S: Final = 0.2
_LARGE_CHARACTERS: Final = 1 << 18
"""A grammar of this length, or whose trial takes this long, takes ten megabytes or more. Such
grammars are compiled one at a time, and not kept for later requests."""
_MOST_LARGE: Final = 8


@dataclass(eq=False)
class CompiledGrammar:
    """A matcher at the beginning of its grammar, which is only ever copied; `is_large`: see
    above."""

    matcher: "LLMatcher"
    is_large: bool


class ConstraintFactory:
    """Makes constraints for a model that predicts `vocabulary_size` of its tokenizer's ids; they
    share one llguidance tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        self._predicted = vocabulary_size
        self._vocabulary = max(vocabulary_size, len(tokenizer.wrapped))
        self._kept: OrderedDict[tuple[Grammar, Reasoning | None], CompiledGrammar] = OrderedDict()
        self._large: WeakSet[CompiledGrammar] = WeakSet()
        self._compiling_large = Lock()

    def compile(
        self, grammar: Grammar, reasoning: Reasoning | None = None, *, tries: bool = False
    ) -> CompiledGrammar:
        """Compiles a grammar; any thread may call this. With `tries`, another process compiles it
        first, because a client's grammar could take all time and memory. Raises InvalidRequestError
        if it is invalid or too complex, or llguidance cannot read the tokenizer; QueueFullError if
        too many wait.
        """
        key = grammar, reasoning if grammar.wake is None else None
        found = self._kept.pop(key, None) or self._compile(*key, tries=tries)
        if not found.is_large:
            self._kept[key] = found
        while len(self._kept) > _KEPT_MATCHERS:
            self._kept.popitem(last=False)
        return found

    def make(self, grammar: Grammar, start: int, reasoning: Reasoning | None = None) -> Constraint:
        """A constraint for the answer whose first token is at position `start`; see `compile`."""
        compiled = grammar.compiled
        if not isinstance(compiled, CompiledGrammar):
            compiled = self.compile(grammar, reasoning)

        def begin(position: int) -> GrammarPart:
            return GrammarPart(compiled.matcher.deep_copy(), position)

        begins = grammar.wake is None or (grammar.wake.headers and reasoning is not None)
        think_end = None if reasoning is None else self._tokenizer.token_id(reasoning.end)
        return Constraint(
            begin,
            self._tokenizer.token_bytes.of,
            grammar.wake,
            reasoning=reasoning,
            think_end=think_end,
            first=begin(start) if begins else None,
            start=start,
            vocabulary=self._vocabulary,
            predicted=self._predicted,
        )

    def _compile(
        self, grammar: Grammar, reasoning: Reasoning | None, *, tries: bool = False
    ) -> CompiledGrammar:
        guide, tokenizer = self._guide
        try:
            source = _source(tokenizer, grammar, reasoning)
            trial = Trial("")
            if tries:
                trial = try_out(guide, source)
            reason = trial.reason
            is_large = trial.seconds > _LARGE_S or len(source) > _LARGE_CHARACTERS
            if not reason:
                with self._compiling_large if is_large else nullcontext():
                    if is_large and len(self._large) >= _MOST_LARGE:
                        raise QueueFullError("Too many large grammars are in use; try again later.")
                    matcher = make_matcher(tokenizer, source)
                reason = matcher.get_error()
        except (ValueError, RecursionError) as error:
            reason = str(error)
        if reason:
            sentence = f"The {grammar.name} cannot be used: {one_line(reason)}."
            raise UnreadableRequestError(sentence)
        if grammar.kind == "json_schema" and not grammar.unmet:  # or the client knows it already
            for unmet in unmet_of(matcher.get_grammar_warnings()):
                logger.warning("The %s is enforced without %s.", grammar.name, unmet)
        compiled = CompiledGrammar(matcher, is_large)
        if is_large:
            self._large.add(compiled)
        return compiled

    @cached_property
    def _guide(self) -> "tuple[Guide, LLTokenizer]":
        wrapped = self._tokenizer.wrapped
        fast = getattr(wrapped, "_tokenizer", wrapped)
        ends = tuple(sorted(self._tokenizer.end_tokens)) or None
        try:
            plain = copy(fast.backend_tokenizer)
            plain.no_padding()
            plain.no_truncation()
            guide = Guide(plain.to_str(), self._vocabulary, ends)
            return guide, make_tokenizer(guide)
        except (ValueError, AttributeError) as error:  # not a fast tokenizer
            raise InvalidRequestError(
                f"This model's answers cannot be constrained: {one_line(str(error))}."
            ) from None


def _source(tokenizer: "LLTokenizer", grammar: Grammar, reasoning: Reasoning | None) -> str:
    if grammar.kind == "json_schema":
        schema = closed(bounded(json.loads(grammar.source)))
        source = _as_lark(f"start: {json_lark(schema)}")
    elif grammar.kind == "regex":
        from llguidance import LLMatcher  # noqa: PLC0415  (most requests do not need it)

        source = LLMatcher.grammar_from_regex(grammar.source)
    else:
        source = _as_lark(grammar.source)
    if reasoning is not None:
        (answer,) = json.loads(source)["grammars"]
        headers = () if grammar.headed else reasoning.headers
        thought = {"lark_grammar": _thought(tokenizer, reasoning, "".join(headers[:1]))}
        source = json.dumps({"grammars": [thought, answer | {"name": "answer"}]})
    return source


def _as_lark(source: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": source}]})


def _thought(tokenizer: "LLTokenizer", reasoning: Reasoning, header: str) -> str:
    """The grammar of reasoning, a header, and the grammar named `answer`. Control tokens are given
    by their ids, because llguidance does not treat their spelling as text."""

    def spelled(mark: str) -> str:
        tokens = tokenizer.tokenize_str(mark, parse_special=True)
        if not any(map(tokenizer.is_special_token, tokens)):
            return json.dumps(mark)
        return " ".join(map(piece, tokens))

    def piece(token: int) -> str:
        special = tokenizer.is_special_token(token)
        return f"<[{token}]>" if special else json.dumps(tokenizer.decode_str([token]))

    end = spelled(reasoning.end)
    if end.startswith("<["):
        thought = f"thought: /(?s:.*)/ {end}"
    else:
        thought = f"thought[lazy]: /(?s:.*)/ {end}"
    inside = "thought gap" if reasoning.is_open else f"({spelled(reasoning.start)} thought gap)?"
    inside += f" {spelled(header)}" if header else ""
    gap = spelled(reasoning.again) if reasoning.again else "/\\n{0,2}/"
    return f"start: {inside} @answer\n{thought}\ngap: {gap}"
