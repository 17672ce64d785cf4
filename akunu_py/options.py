"""The options of a request: frozen, and checked when they are made.

Plain Python, so that the command line can refuse a wrong option before it loads any library.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from akunu_py.errors import InvalidRequestError

DEFAULT_MAX_TOKENS: Final = 256
DEFAULT_REPETITION_CONTEXT: Final = 20
DEFAULT_XTC_THRESHOLD: Final = 0.1
"""Both as in mlx-lm."""
MAX_XTC_THRESHOLD: Final = 0.5
"""No two tokens can both be more likely than this, so nothing would be excluded."""
MAX_DRAFT_TOKENS: Final = 1024
"""A longer draft would be more like a prefill than a guess at the next few tokens."""
MAX_PLANNED_TOKENS: Final = 32
"""The most draft tokens of a round if a request does not set a number."""
MAX_SLOTS: Final = 16
"""The most caches of earlier requests that an engine keeps."""

KVForm = Literal["packed", "dequantized", "bytewise"]

KV_BITS: Final = (4, 8)
KV_GROUP_SIZES: Final = (32, 64, 128)
DEFAULT_KV_GROUP_SIZE: Final = 64
DEFAULT_QUANTIZED_KV_START: Final = 5000
"""Both as in mlx-lm."""

MAX_ALTERNATIVES: Final = 100
"""The most alternatives reported with a token's log-probability."""

MIN_KV_SIZE: Final = 16

DEFAULT_RANK_TIMEOUT_S: Final = 60.0
"""Longer than a chunk of a prompt takes, even where the processes are far apart."""

_COLDEST: Final = 1e-5
"""Scores divided by a lower temperature would exceed the range of float32."""


@dataclass(frozen=True)
class KVQuantization:
    """How the keys and values of layers with full attention are quantized, as in mlx-lm.

    Attributes:
        bits: bits of a number, 4 or 8.
        group_size: how many numbers share a scale and a bias: 32, 64 or 128.
        start: how many tokens of context there are before anything is quantized.
        form: how attention reads them: `packed`, as mlx-lm's does; `dequantized` by MLX's kernel
            for each forward; or dequantized `bytewise`, which is faster on a CPU.

    Raises:
        InvalidRequestError: if a value is out of its range.
    """

    bits: int
    group_size: int = DEFAULT_KV_GROUP_SIZE
    start: int = DEFAULT_QUANTIZED_KV_START
    form: KVForm = "dequantized"

    def __post_init__(self) -> None:
        if self.bits not in KV_BITS:
            raise InvalidRequestError(f"--kv-bits must be 4 or 8, not {self.bits}.")
        if self.group_size not in KV_GROUP_SIZES:
            raise InvalidRequestError(
                f"--kv-group-size must be 32, 64 or 128, not {self.group_size}."
            )
        if self.start < 0:
            raise InvalidRequestError(f"--quantized-kv-start must be 0 or more, not {self.start}.")

    def __str__(self) -> str:
        begin = f" from token {self.start:,} on" if self.start else ""
        return f"{self.bits} bits in groups of {self.group_size}{begin}"


def check_max_kv_size(size: int | None, kv_bits: int | None) -> None:
    """Refuses a bound on the cache that makes no sense.

    Raises:
        InvalidRequestError: if it is too small, or the cache is quantized as well.
    """
    if size is None:
        return
    if size < MIN_KV_SIZE:
        raise InvalidRequestError(f"--max-kv-size must be {MIN_KV_SIZE} or more, not {size}.")
    if kv_bits is not None:
        raise InvalidRequestError("A bounded cache is not quantized; omit --kv-bits.")


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. The default is greedy; the filters work like mlx-lm's.

    Attributes:
        temperature: 0, or anything below 1e-5, takes the most likely token; 1 samples from the
            model's distribution.
        top_p: keeps the most likely tokens whose probabilities reach this sum; 1 keeps all.
        top_k: keeps this many tokens; 0 keeps all.
        min_p: keeps tokens at least this likely, relative to the most likely one.
        repetition_penalty: divides the positive logits of recent tokens and multiplies the
            negative ones; 1 changes nothing.
        repetition_context_size: how many tokens are recent, the prompt's included.
        presence_penalty: subtracted from the logits of tokens that were generated before, like
            OpenAI's; 0 changes nothing, and a negative one makes them more likely.
        frequency_penalty: the same, for every time that a token was generated.
        infill: applies llama.cpp's `infill` sampler after the filters above; see
            `sampling/infill.py`. Without a top-k it looks at the 40 most likely tokens.
        logit_bias: pairs of an id and the number to add to its logit, before any penalty.
        seed: makes a sampled text repeatable; None takes a random one.
        xtc_probability: how often XTC excludes the top choices: all tokens above the threshold but
            the least likely of them; 0 never does. Greedy answers stay as they are.
        xtc_threshold: how likely a token has to be to count as a top choice, at most 0.5.

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
    xtc_probability: float = 0.0
    xtc_threshold: float = DEFAULT_XTC_THRESHOLD

    def __post_init__(self) -> None:
        checks = (
            ("temperature", "0 or more", 0 <= self.temperature < math.inf),
            ("top-p", "above 0 and at most 1", 0 < self.top_p <= 1),
            ("top-k", "0 or more", self.top_k >= 0),
            ("min-p", "from 0 to 1", 0 <= self.min_p <= 1),
            ("xtc probability", "from 0 to 1", 0 <= self.xtc_probability <= 1),
            ("xtc threshold", "from 0 to 0.5", 0 <= self.xtc_threshold <= MAX_XTC_THRESHOLD),
            ("repetition penalty", "above 0", 0 < self.repetition_penalty < math.inf),
            ("repetition context size", "1 or more", self.repetition_context_size > 0),
            ("presence penalty", "a number", math.isfinite(self.presence_penalty)),
            ("frequency penalty", "a number", math.isfinite(self.frequency_penalty)),
        )
        for name, expected, holds in checks:
            if not holds:
                value = getattr(self, name.replace("-", "_").replace(" ", "_"))
                raise InvalidRequestError(f"The {name} must be {expected}, not {value}.")
        for token, bias in self.logit_bias:
            if token < 0 or not math.isfinite(bias):
                raise InvalidRequestError(f"The logit bias must be ID=NUMBER, not {token}={bias}.")

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
class Wake:
    """When a grammar holds for parts of an answer only: each begins with a mark that the model has
    emitted, and ends where the grammar is complete.

    Attributes:
        mark: the text, or control tokens, that the grammar itself begins with.
        awake: whether the prompt ends with the mark.
        thinking: whether the prompt ends inside reasoning.
        think_start, think_end: around reasoning, in which the mark is only text.
        once: whether the answer ends with the first part.
    """

    mark: str
    awake: bool = False
    thinking: bool = False
    think_start: str = ""
    think_end: str = ""
    once: bool = False


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that the whole answer must match, or, with `wake`, parts of it.

    An invalid schema, expression or grammar is refused when the request begins.

    Attributes:
        kind: the language of `source`.
        source: a JSON schema as JSON text, a regular expression in the syntax of Rust's `regex`,
            or a context-free grammar in llguidance's variant of Lark.
        wake: when it holds; None for the whole answer.

    Raises:
        InvalidRequestError: if the kind is unknown, or a schema is not JSON.
    """

    kind: GrammarKind
    source: str
    wake: Wake | None = None

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
        """The name of its kind, for a sentence."""
        return GRAMMAR_NAMES[self.kind]


@dataclass(frozen=True)
class Options:
    """The options of a request.

    Attributes:
        max_tokens: how many tokens to generate at most; None continues to the end of the context,
            and 0 only computes the prompt's cache.
        sampling: how tokens are chosen; greedy by default.
        stop: strings to stop at; none of them appears in the text.
        drafter: the name of the drafter; `auto` is the recommended one, `model` drafts with the
            draft model that the engine was loaded with, and `none` decodes plainly.
        num_draft_tokens: the most draft tokens that one forward verifies; 0 decodes plainly, and
            None leaves the number to the planner, or to `model`, which drafts 3.
        exact: drafts leave every token of the answer as it is with the same options and the drafter
            `none`. See `decoding/exactness.py`.
        slot: which of the caches of earlier requests to use, 0 to 15; None takes the one that holds
            most of the prompt. While another request uses it, another one is taken.
        references: texts that the answer may repeat, such as a predicted answer or open files.
            Drafts are copied from them; the model does not see them, and they do not change the
            text.
        logprobs: reports each token's log-probability in the model's own distribution, and this
            many of the most likely tokens there; None reports nothing. See `sampling/logprobs.py`.
        drawn_logprobs: reports those of the distribution that tokens are drawn from instead: after
            bias, penalties, grammar, filters and temperature.
        reports_progress: sends events without text while the prompt is computed.
        scores_prompt: reports the log-probabilities of the prompt's own tokens too, and so computes
            the whole prompt, even if a cache holds it.
        grammar: a grammar that the text must match; the text ends when it is complete.
        priority: where several requests wait or run, those with a lower number go first, as in
            vLLM.
        project: of the indexed folders that the engine was loaded with, the only one to draft from;
            None takes all, an empty name none.
        sample_calls: calls of tools as the model would write them, with its control tokens; drafts
            are copied from them, as from references.

    Raises:
        InvalidRequestError: if a number is out of its range, a stop string is empty, or a prompt is
            scored without log-probabilities.
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
    drawn_logprobs: bool = False
    reports_progress: bool = False
    scores_prompt: bool = False
    grammar: Grammar | None = None
    priority: int = 0
    project: str | None = None
    sample_calls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InvalidRequestError(
                f"The number of tokens to generate must be 0 or more, not {self.max_tokens}."
            )
        if not 0 <= (self.num_draft_tokens or 0) <= MAX_DRAFT_TOKENS:
            raise InvalidRequestError(
                f"The number of draft tokens must be from 0 to {MAX_DRAFT_TOKENS}, "
                f"not {self.num_draft_tokens}."
            )
        if self.slot is not None and not 0 <= self.slot < MAX_SLOTS:
            raise InvalidRequestError(
                f"The slot must be from 0 to {MAX_SLOTS - 1}, not {self.slot}."
            )
        if not 0 <= (self.logprobs or 0) <= MAX_ALTERNATIVES:
            raise InvalidRequestError(
                "The number of alternatives to report log-probabilities of must be from 0 to "
                f"{MAX_ALTERNATIVES}, not {self.logprobs}."
            )
        if self.scores_prompt and self.logprobs is None:
            raise InvalidRequestError("To score a prompt, set `logprobs`.")
        if "" in self.stop:
            raise InvalidRequestError("A stop string must not be empty.")

    @property
    def drafts(self) -> bool:
        """Whether to draft at all."""
        return self.drafter != "none" and self.num_draft_tokens != 0
