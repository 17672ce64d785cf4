"""The options of a model and of a request: frozen dataclasses that check their values.

Each option is declared here once; see `option_field.py`. Plain Python, so that the command line can
refuse a wrong option before it loads any library.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from sys import float_info
from typing import Any, Final, Literal, Self

from akunu_py.errors import InvalidRequestError
from akunu_py.option_field import OneOf, Range, check_options, documented, option
from akunu_py.option_words import (
    PLANNED,
    UnreadableWordError,
    byte_count,
    chat_template,
    draft_tokens,
    file_text,
    json_object,
    on_or_off,
    token_bias,
    token_limit,
)

BUNDLED_MODEL: Final = "ember"
"""The name of the model that comes with the package."""
WEIGHT_LAYOUTS: Final = ("auto", "quantized", "dense")
DRAFTERS: Final = ("auto", "copies", "head", "ngram", "model", "none")
"""The drafters that a user can choose."""

DEFAULT_MAX_TOKENS: Final = 256
DEFAULT_REPETITION_CONTEXT: Final = 20
DEFAULT_XTC_THRESHOLD: Final = 0.1
KV_BITS: Final = (4, 8)
KV_GROUP_SIZES: Final = (32, 64, 128)
DEFAULT_KV_GROUP_SIZE: Final = 64
DEFAULT_QUANTIZED_KV_START: Final = 5000
"""These are mlx-lm's defaults, except for the first."""
MAX_XTC_THRESHOLD: Final = 0.5
"""No two tokens can both be more likely than this, so a higher threshold excludes nothing."""
MAX_DRAFT_TOKENS: Final = 1024
"""A longer draft would be more like a prefill than a guess at the next few tokens."""
MAX_PLANNED_TOKENS: Final = 32
"""The planner drafts at most this many tokens in a round."""
MAX_SLOTS: Final = 16
"""The most caches of earlier requests that an engine keeps."""
DEFAULT_PARALLEL: Final = 4
MAX_PARALLEL: Final = MAX_SLOTS // 2
"""The most requests answered at a time. As many again may be paused for more urgent ones, and keep
their caches."""
MAX_ALTERNATIVES: Final = 100
"""The most alternatives reported with a token's log-probability."""
MAX_WAIT_S: Final = 3600.0

SPECULATION: Final = "speculation: the same text in fewer forward passes"
"""The help heading of the options that change the speed but not the text."""

_COLDEST: Final = 1e-5
"""Dividing scores by a lower temperature would overflow float32."""
_SHARE: Final = Range(0, 1)
_STRONGEST: Final = 1000

KVForm = Literal["packed", "dequantized", "bytewise"]


@dataclass(frozen=True)
class KVQuantization:
    """How the keys and values of layers with full attention are quantized, as in mlx-lm: to 4 or 8
    bits in groups of 32, 64 or 128, from the context length `start` on. Attention reads them
    `packed`, as mlx-lm's does; `dequantized` by MLX's kernel for each forward pass; or dequantized
    `bytewise`, which is faster on a CPU.
    """

    bits: int
    group_size: int = DEFAULT_KV_GROUP_SIZE
    start: int = DEFAULT_QUANTIZED_KV_START
    form: KVForm = "dequantized"

    def __str__(self) -> str:
        begin = f" from token {self.start:,} on" if self.start else ""
        return f"{self.bits} bits in groups of {self.group_size}{begin}"


@documented
@dataclass(frozen=True)
class ModelOptions:
    """Which model to load, and how. Contradictory options are refused.

    >>> akunu_py.load(akunu_py.ModelOptions("ember", max_context=1024)).context_limit
    1024
    """

    # fmt: off
    name: str = option(BUNDLED_MODEL, f"a folder, a name on the hub, or `{BUNDLED_MODEL}`, the "
        "bundled model", flag="--model")
    weights: str = option("auto", "layout of the weights in memory; auto picks the fastest on this "
        "machine", choices=WEIGHT_LAYOUTS)
    no_wire: bool = option(False, "let macOS page out the weights of a large model")
    max_context: int | None = option(None, "context window: the most tokens of a prompt and its "
        "answer together", within=Range(1), shown="the model's")
    adapter_path: str | None = option(None, "folder of a LoRA or DoRA adapter that mlx-lm trained "
        "for this model", metavar="FOLDER")
    trust_remote_code: bool = option(False, "run Python code that comes with the model")
    chat_template: str | None = option(None, "a Jinja template, or a file with one, to use instead "
        "of the model's", meaning="a Jinja template to use instead of the model's",
        read=chat_template, metavar="TEMPLATE")
    use_default_chat_template: bool = option(False, "use ChatML if the model has no chat template")
    chat_template_args: Mapping[str, Any] | None = option(None,
        """variables for the chat template as JSON, such as '{"enable_thinking": false}'""",
        read=json_object, metavar="JSON")
    prefill_step_size: int | None = option(None, "prompt tokens per forward pass; a cancelled "
        "request ends after the current pass", within=Range(1), shown="depends on the machine")
    prompt_cache_bytes: int | None = option(None, "memory for cached prompts (4GB, 500MB; 0 keeps "
        "only one prompt); a server's cache folder may take as much again on disk",
        within=Range(0), read=byte_count, shown="a quarter of the free memory; 8GB on disk")
    prompt_cache_dir: Path | None = option(None, "keep cached prompts in this folder, so that a "
        "restarted server need not compute them again", metavar="DIR")
    prompt_cache_file: Path | None = option(None, "keep the cached prompt in this file, so that a "
        "later run need not compute it again; /save and /load keep a chat's messages")
    kv_bits: int | None = option(None, "quantize the keys and values of layers with full attention "
        "to 4 or 8 bits", within=OneOf(KV_BITS))
    kv_group_size: int = option(DEFAULT_KV_GROUP_SIZE, "how many numbers share a scale: 32, 64 or "
        "128", within=OneOf(KV_GROUP_SIZES))
    quantized_kv_start: int = option(DEFAULT_QUANTIZED_KV_START,
        "quantize keys and values once the context has this many tokens", within=Range(0))
    max_kv_size: int | None = option(None, "tokens that layers with full attention keep, at least "
        "16: the first 4 and the most recent; the model forgets the rest", within=Range(16),
        shown="all")
    pipeline: bool = option(False, "with `mlx.launch`: give each process some of the layers "
        "instead of a part of every layer; messages are neither encrypted nor authenticated")
    # A chunk of a prompt takes less, even if the processes are far apart.
    rank_timeout: float = option(60.0, "with `mlx.launch`: seconds after which a process that does "
        "not answer counts as lost", within=Range(0, MAX_WAIT_S, above=True), metavar="S",
        shown="60")
    draft_model: str | None = option(None, "a smaller model with the same tokenizer, to draft "
        "with")
    mtp: str | None = option(None, "a drafting head (MTP) to use instead of the model's own: a "
        "folder or a hub name", metavar="PATH", group=SPECULATION)
    no_mtp: bool = option(False, "do not load the model's own drafting head (MTP)",
        group=SPECULATION)
    projects: tuple[str, ...] = option((), "also draft from this indexed folder; auto means the "
        "git root of the current folder; may be repeated", flag="--project", metavar="PATH",
        group=SPECULATION, repeated=True)
    remembers: bool = option(False, "do not draft from earlier requests", flag="--no-memory",
        meaning="draft from earlier requests too",
        group=SPECULATION)
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        if self.kv_bits is None:
            if self.kv_group_size != DEFAULT_KV_GROUP_SIZE:
                raise InvalidRequestError("`kv_group_size` needs `kv_bits`.")
            if self.quantized_kv_start != DEFAULT_QUANTIZED_KV_START:
                raise InvalidRequestError("`quantized_kv_start` needs `kv_bits`.")
        elif self.max_kv_size is not None:
            raise InvalidRequestError("`max_kv_size` cannot be combined with `kv_bits`; omit one.")
        if self.mtp is not None and self.no_mtp:
            raise InvalidRequestError("`mtp` names a head and `no_mtp` loads none; omit one.")
        if self.prompt_cache_dir is not None and self.prompt_cache_file is not None:
            raise InvalidRequestError("Set `prompt_cache_dir` or `prompt_cache_file`, not both.")

    @property
    def is_bundled(self) -> bool:
        """Whether it is the bundled model, unchanged."""
        return self.name == BUNDLED_MODEL and self.adapter_path is None

    def kv_quantization(self, form: KVForm) -> KVQuantization | None:
        """How keys and values are quantized, in the form that suits the machine; None if not."""
        if self.kv_bits is None:
            return None
        return KVQuantization(self.kv_bits, self.kv_group_size, self.quantized_kv_start, form)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen. The default is greedy; the filters work like mlx-lm's."""

    # fmt: off
    temperature: float = option(0.0, "sampling temperature", within=Range(0, _STRONGEST),
        flag="--temp", metavar="T", shown="0, greedy", wire=("temp",))
    top_p: float = option(1.0, "sample from the most likely tokens that add up to P",
        within=Range(0, 1, above=True), metavar="P", shown="1, all")
    top_k: int = option(0, "sample from the K most likely tokens", within=Range(0), metavar="K",
        shown="0, all")
    min_p: float = option(0.0, "sample from tokens at least P times as likely as the most likely "
        "one", within=_SHARE, metavar="P", shown="0, all")
    # Mistral calls it `random_seed`.
    seed: int | None = option(None, "seed that makes sampling repeatable", wire=("random_seed",))
    xtc_probability: float = option(0.0, "how often to exclude all likely tokens except the least "
        "likely one", within=_SHARE, metavar="P", shown="0, never")
    xtc_threshold: float = option(DEFAULT_XTC_THRESHOLD, "how likely such tokens are, up to 0.5",
        within=Range(0, MAX_XTC_THRESHOLD), metavar="P")
    repetition_penalty: float = option(1.0, "above 1: make recent tokens less likely, including "
        "the prompt's", within=Range(0, _STRONGEST, above=True), metavar="R", shown="1, off",
        wire=("repeat_penalty",))
    repetition_context_size: int = option(DEFAULT_REPETITION_CONTEXT, "how many count as recent",
        within=Range(1), wire=("repeat_last_n",))
    presence_penalty: float = option(0.0, "above 0: make generated tokens less likely",
        within=Range(-_STRONGEST, _STRONGEST), metavar="P", shown="0, off")
    frequency_penalty: float = option(0.0, "the same, for each time a token was generated",
        within=Range(-_STRONGEST, _STRONGEST), metavar="P", shown="0, off")
    logit_bias: tuple[tuple[int, float], ...] = option((), "add VALUE to the logit of the token "
        "ID, before any penalty; may be repeated", read=token_bias, metavar="ID=VALUE",
        repeated=True)
    infill: bool = option(False, "apply llama.cpp's `infill` sampler after the filters; without a "
        "top-k, it looks at the 40 most likely tokens", flag=None)
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        for token, bias in self.logit_bias:
            if token < 0 or not abs(bias) <= float_info.max:
                raise InvalidRequestError(f"`logit_bias` must be ID=NUMBER, not {token}={bias}.")

    @property
    def greedy(self) -> bool:
        """Whether each token is the most likely one."""
        return self.temperature < _COLDEST


GrammarKind = Literal["json_schema", "regex", "lark"]

GRAMMAR_NAMES: Final[Mapping[str, str]] = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "grammar",
}


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a model marks the reasoning at the beginning of an answer. Grammars and stop strings
    apply only after it, and tool-call marks inside it are plain text. `is_open`: the prompt ends
    with `start`.

    `budget` limits its tokens before a grammar. `again` begins another message, which may have more
    reasoning, if answers are messages with `headers`, of which the usual is first.
    """

    start: str
    end: str
    is_open: bool = False
    budget: int | None = None
    again: str = ""
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wake:
    """When a grammar applies to parts of an answer only. A part begins where the model emits `mark`
    (text or control tokens), with which the grammar itself begins too, and ends where the grammar
    is complete. With `once`, the answer ends with the first part.

    With `headers`, the answer itself begins with a part, without the mark, and continues after a
    part that is only a header.
    """

    mark: str
    once: bool = False
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that an answer must match: all of it after the reasoning or, with `wake`, parts. An
    invalid one is refused when the request begins; an unknown kind, and a schema that is not JSON,
    with an InvalidRequestError here.

    >>> digits = akunu_py.Grammar("regex", "[0-9]{3}")
    >>> engine.generate("The year 1", max_tokens=8, grammar=digits).text.isdigit()
    True

    `source` is a JSON schema, a regular expression of Rust's `regex`, or a grammar in llguidance's
    variant of Lark; `headed`: with the headers of messages (see `Reasoning`). `unmet` are
    constraints of a schema that it cannot enforce. `compiled` is the result of `Engine.compile`.
    """

    kind: GrammarKind
    source: str
    wake: Wake | None = None
    headed: bool = False
    unmet: tuple[str, ...] = ()
    compiled: object = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in GRAMMAR_NAMES:
            raise InvalidRequestError(
                f"{self.kind!r} is no kind of grammar; choose one of {', '.join(GRAMMAR_NAMES)}."
            )
        if self.kind == "json_schema":
            try:
                schema = json.loads(self.source)
            except (ValueError, RecursionError) as error:
                raise InvalidRequestError(f"The JSON schema is not valid JSON: {error}.") from None
            if not isinstance(schema, dict | bool):
                raise InvalidRequestError("A JSON schema must be an object, or true or false.")

    @classmethod
    def json_object(cls) -> Self:
        """Any JSON object; OpenAI's `{"type": "json_object"}`."""
        return cls("json_schema", '{"type": "object"}')

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Self:
        """JSON that matches a schema."""
        try:
            return cls("json_schema", json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"The JSON schema is not valid JSON: {error}.") from None

    @property
    def name(self) -> str:
        """The name of its kind in a sentence."""
        return GRAMMAR_NAMES[self.kind]


def _schema_file(word: str) -> Grammar:
    try:
        return Grammar("json_schema", file_text(word))
    except UnreadableWordError:
        raise
    except InvalidRequestError as error:
        raise UnreadableWordError(str(error)) from None


@documented
@dataclass(frozen=True)
class Options(Sampling):
    """The options of a request. Values that make no sense are refused.

    >>> akunu_py.Options(max_tokens=20, temperature=0.7, seed=1, stop=("\\n\\n",)).greedy
    False
    """

    # fmt: off
    # None continues to the end of the context; 0 only fills the prompt's cache.
    max_tokens: int | None = option(DEFAULT_MAX_TOKENS,
        "most tokens to generate; -1 for no limit",
        meaning="most tokens to generate; None for no limit", within=Range(0), read=token_limit,
        short="-m")
    stop: tuple[str, ...] = option((), "end the answer before this text; may be repeated",
        metavar="TEXT", repeated=True)
    drafter: str = option("auto", f"the drafter: {', '.join(DRAFTERS)}", choices=DRAFTERS,
        metavar="NAME", group=SPECULATION,
        off=("--no-speculate", "none", "decode without drafts, like --drafter none"))
    num_draft_tokens: int | None = option(None, "maximum number of draft tokens per round, up to "
        f"{MAX_DRAFT_TOKENS}", within=Range(0, MAX_DRAFT_TOKENS), read=draft_tokens,
        metavar=f"N|{PLANNED}", shown=f"{PLANNED}, chosen in each round", group=SPECULATION)
    # See `decoding/target.py`.
    exact: bool | None = option(None, "guarantee the same tokens as without drafts, also in "
        "16 bits, even if that is slower", group=SPECULATION, read=on_or_off,
        shown="where it costs nothing",
        off=("--no-exact", False, "draft in the fastest way; near-ties may then go the other way"))
    references: tuple[str, ...] = option((), "texts that the answer may repeat, such as open "
        "files: drafts are copied from them, but the model does not see them", flag=None)
    logprobs: int | None = option(None, "report each token's log-probability in the model's own "
        "distribution, and this many of the most likely tokens; None reports nothing",
        within=Range(0, MAX_ALTERNATIVES), flag=None)
    drawn_logprobs: bool = option(False, "report those of the distribution that tokens are sampled "
        "from: after bias, penalties, grammar, filters and temperature", flag=None)
    reports_progress: bool = option(False, "send events without text while the prompt is computed",
        flag=None)
    scores_prompt: bool = option(False, "report the log-probabilities of the prompt's tokens too; "
        "all of it is computed then", flag=None)
    grammar: Grammar | None = option(None, "answer in JSON that matches the schema in this file; "
        "the exit code is 4 if the answer ends before the JSON does", flag="--schema",
        meaning="what the answer must match",
        read=_schema_file, metavar="FILE")
    reasoning: Reasoning | None = option(None, "how reasoning at the beginning is marked; grammars "
        "and stop strings do not apply to it; None treats everything as the answer",
        flag=None)
    priority: int = option(0, "requests with a lower number go first, as in vLLM", flag=None)
    project: str | None = option(None, "draft from only this one of the engine's indexed folders; "
        "None means all, an empty name none", flag=None)
    sample_calls: tuple[str, ...] = option((), "tool calls as the model would write them, with its "
        "control tokens; drafts are copied from them", flag=None)
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scores_prompt and self.logprobs is None:
            raise InvalidRequestError("`scores_prompt` needs `logprobs`; set `logprobs`.")
        if "" in self.stop:
            raise InvalidRequestError("A stop string must not be empty.")

    def sampled_as(self, sampling: Sampling) -> Self:
        """The same options with other sampling settings."""
        return replace(self, **{it.name: getattr(sampling, it.name) for it in fields(Sampling)})

    @property
    def drafts(self) -> bool:
        """Whether to draft at all."""
        return self.drafter != "none" and self.num_draft_tokens != 0
