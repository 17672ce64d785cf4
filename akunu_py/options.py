"""What a request may ask for, besides its prompt: frozen, checked when it is made.

Plain Python, so that a command line can refuse a wrong option before it loads any library.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from akunu_py.errors import InvalidRequestError

DEFAULT_MAX_TOKENS: Final = 256
DEFAULT_DRAFT_TOKENS: Final = 4
"""Drafts in a token buffer of the usual shape, `[known, d0 .. d3]`."""
DEFAULT_REPETITION_CONTEXT: Final = 20
"""As in mlx-lm."""
MOST_DRAFT_TOKENS: Final = 1024
"""Beyond this a draft is no longer a guess at the next few tokens but a prefill."""
MOST_SLOTS: Final = 16
"""Caches of earlier requests that an engine keeps at most."""

MOST_ALTERNATIVES: Final = 100
"""Alternatives that may be reported with a token's log-probability."""

_COLDEST: Final = 1e-5
"""Temperatures below this leave float32's range when scores are divided by them."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. The defaults are greedy; the filters work as mlx-lm's.

    Attributes:
        temperature: 0 takes the most likely token, as does anything below 1e-5; 1 samples from
            the model's distribution.
        top_p: keeps the most likely tokens whose probabilities reach this sum; 1 keeps all.
        top_k: keeps this many tokens; 0 keeps all.
        min_p: keeps tokens at least this likely, relative to the likeliest one.
        repetition_penalty: divides the positive logits of recent tokens and multiplies the
            negative ones; 1 changes nothing.
        repetition_context_size: how many tokens are recent, the prompt's included.
        presence_penalty: taken off the logits of tokens that were generated before, as OpenAI's;
            0 changes nothing, and a negative one makes them likelier.
        frequency_penalty: the same, for every time that a token was generated.
        infill: drops what llama.cpp's `infill` sampler drops, after the filters above; see
            `sampling/infill.py`. Without a top-k it looks at the 40 likeliest tokens.
        logit_bias: pairs of an id and what is added to its logit, before any penalty.
        seed: makes a sampled text repeatable; None draws one.

    Raises:
        InvalidRequestError: if a value is out of its range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    repetition_context_size: int = DEFAULT_REPETITION_CONTEXT
    logit_bias: tuple[tuple[int, float], ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    infill: bool = False

    def __post_init__(self) -> None:
        checks = (
            (0 <= self.temperature < math.inf, "temperature", "0 or more", self.temperature),
            (0 < self.top_p <= 1, "top-p", "above 0 and at most 1", self.top_p),
            (self.top_k >= 0, "top-k", "0 or more", self.top_k),
            (0 <= self.min_p <= 1, "min-p", "from 0 to 1", self.min_p),
            (
                0 < self.repetition_penalty < math.inf,
                "repetition penalty",
                "above 0",
                self.repetition_penalty,
            ),
            (
                self.repetition_context_size > 0,
                "repetition context size",
                "1 or more",
                self.repetition_context_size,
            ),
            (
                math.isfinite(self.presence_penalty),
                "presence penalty",
                "a number",
                self.presence_penalty,
            ),
            (
                math.isfinite(self.frequency_penalty),
                "frequency penalty",
                "a number",
                self.frequency_penalty,
            ),
            *(
                (token >= 0 and math.isfinite(bias), "logit bias", "ID=NUMBER", f"{token}={bias}")
                for token, bias in self.logit_bias
            ),
        )
        for holds, name, expected, value in checks:
            if not holds:
                raise InvalidRequestError(f"The {name} must be {expected}, not {value}.")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < _COLDEST


GrammarKind = Literal["json_schema", "regex", "lark"]

GRAMMAR_NAMES: Final[Mapping[str, str]] = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "grammar",
}


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must match from its first character to its last.

    Whether a schema or an expression makes sense turns out when the request begins.

    Attributes:
        kind: the language of `source`.
        source: a JSON schema as JSON text, a regular expression in the syntax of Rust's `regex`,
            or a context-free grammar in llguidance's variant of Lark.

    Raises:
        InvalidRequestError: if the kind is unknown, or a schema is no JSON.
    """

    kind: GrammarKind
    source: str

    def __post_init__(self) -> None:
        if self.kind not in GRAMMAR_NAMES:
            raise InvalidRequestError(
                f"There is no kind of grammar {self.kind!r}; choose {', '.join(GRAMMAR_NAMES)}."
            )
        if self.kind == "json_schema":
            try:
                schema = json.loads(self.source)
            except (ValueError, RecursionError) as error:
                raise InvalidRequestError(f"The JSON schema is not JSON: {error}.") from None
            if not isinstance(schema, dict | bool):
                raise InvalidRequestError("A JSON schema must be an object, or true or false.")

    @classmethod
    def json_object(cls) -> Self:
        """Any JSON object; OpenAI's `{"type": "json_object"}`."""
        return cls("json_schema", '{"type": "object"}')

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Self:
        """JSON that a schema describes.

        Raises:
            InvalidRequestError: if the schema cannot be written as JSON.
        """
        try:
            return cls("json_schema", json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"The JSON schema is not JSON: {error}.") from None

    @property
    def name(self) -> str:
        """What it is, for a sentence."""
        return GRAMMAR_NAMES[self.kind]


@dataclass(frozen=True)
class Options:
    """What a request asks for, besides its prompt.

    Attributes:
        max_tokens: how many tokens to generate at most; None goes on to the context's end, and 0
            only computes the prompt's cache.
        sampling: how tokens are chosen; greedy by default.
        stop: strings to stop at; none of them appears in the text.
        drafter: who drafts; `auto` is the recommended one, `none` decodes plainly, `model` is the
            draft model that the engine was loaded with.
        num_draft_tokens: the most drafts that one forward verifies; 0 decodes plainly, and None
            verifies as many as pay on this machine.
        exact: decides near-ties again as plain decoding would; see `decoding/exactness.py`.
            Greedy only: what is sampled has the model's distribution anyway.
        slot: which of the caches of earlier requests to answer from, 0 to 15; None takes the one
            that holds most of the prompt.
        references: texts that the answer may repeat, the predicted answer or open files say. Drafts
            are copied from them; the model does not see them, and the text does not depend on them.
        logprobs: reports each token's log-probability in the model's own distribution, with this
            many of the likeliest tokens there; 0 reports the token's alone, and None nothing. See
            `sampling/logprobs.py`.
        scores_prompt: reports the log-probabilities of the prompt's own tokens too, and so computes
            all of it, whatever is known of it already.
        grammar: what the text must match; it ends where the grammar is complete.

    Raises:
        InvalidRequestError: if a number is out of its range, a stop string is empty, an exact
            answer is to be sampled, or a prompt to be scored without log-probabilities.
    """

    max_tokens: int | None = DEFAULT_MAX_TOKENS
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    drafter: str = "auto"
    num_draft_tokens: int | None = None
    exact: bool = False
    slot: int | None = None
    references: tuple[str, ...] = ()
    logprobs: int | None = None
    scores_prompt: bool = False
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InvalidRequestError(
                f"The number of tokens to generate must be 0 or more, not {self.max_tokens}."
            )
        if not 0 <= (self.num_draft_tokens or 0) <= MOST_DRAFT_TOKENS:
            raise InvalidRequestError(
                f"The number of draft tokens must be from 0 to {MOST_DRAFT_TOKENS}, "
                f"not {self.num_draft_tokens}."
            )
        if self.slot is not None and not 0 <= self.slot < MOST_SLOTS:
            raise InvalidRequestError(
                f"The slot must be from 0 to {MOST_SLOTS - 1}, not {self.slot}."
            )
        if not 0 <= (self.logprobs or 0) <= MOST_ALTERNATIVES:
            raise InvalidRequestError(
                "The number of alternatives to report log-probabilities of must be from 0 to "
                f"{MOST_ALTERNATIVES}, not {self.logprobs}."
            )
        if self.scores_prompt and self.logprobs is None:
            raise InvalidRequestError("To score a prompt, say how many alternatives to report.")
        if "" in self.stop:
            raise InvalidRequestError("A stop string must not be empty.")
        if self.exact and not self.sampling.greedy:
            raise InvalidRequestError(
                "Only greedy answers can be exact to the token; "
                "leave out the temperature or --exact."
            )
        if self.exact and self.sampling.infill:
            raise InvalidRequestError("The infill sampler's answers cannot be exact to the token.")

    @property
    def drafts(self) -> bool:
        """Whether anything is to be drafted at all."""
        return self.drafter != "none" and self.num_draft_tokens != 0
