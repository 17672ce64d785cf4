"""Fields that several contracts share: stop strings, seeds, drafting, logit biases, choices,
messages, and the tools that are offered."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from akunu_py.options import MAX_DRAFT_TOKENS, Grammar
from akunu_py.server.body import Body
from akunu_py.server.job import Job
from akunu_py.server.settings import Defaults
from akunu_py.text.gbnf import gbnf_to_lark

if TYPE_CHECKING:
    from akunu_py.text.tokenizer import Tokenizer

_LLAMA_RANDOM_SEED: Final = (1 << 32) - 1
_SEEDS: Final = 1 << 64
MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 512
MIN_TOP_P: Final = 1e-6
MAX_TEMPERATURE: Final = 1e3
MAX_RECENT: Final = 4096
_MAX_GRAMMAR_LENGTH: Final = 1 << 16
_GRAMMARS: Final = (
    ("json_schema", "guided_json"), ("regex", "guided_regex"), ("grammar", "guided_grammar"),
)  # fmt: skip
_NESTED_GRAMMARS: Final = (("json",), ("regex",), ("grammar",))
_UNSERVED: Final[Mapping[str, tuple[Any, ...]]] = {
    "mirostat": (0,), "dry_multiplier": (0,), "typical_p": (1,), "typ_p": (1,), "tfs_z": (1,),
    "dynatemp_range": (0,), "top_n_sigma": (0, -1), "adaptive_target": (-1,), "min_tokens": (0,),
    "stop_token_ids": ([],), "bad_words": ([],), "allowed_token_ids": ([],),
    "use_beam_search": (False,),
}  # fmt: skip
"""Fields of llama-server, Ollama and vLLM, with the values that turn them off."""
FORBIDDEN: Final = -1e9
"""The logit bias that forbids a token: far below every logit, and still a finite number."""


def read_stops(body: Body, name: str = "stop") -> tuple[str, ...]:
    """The stop strings. Some clients send empty ones; these are ignored."""
    stops = body.texts(name, most=body.limits.stops)
    if any(len(stop) > body.limits.stop_characters for stop in stops):
        body.refuse(name, f"has a string of more than {body.limits.stop_characters} characters")
    return tuple(stop for stop in stops if stop)


def read_seed(body: Body, defaults: Defaults) -> int | None:
    """The seed, which Mistral calls `random_seed`; None for a random one. Negative seeds and
    llama.cpp's largest one ask for a random seed, too."""
    seed = body.integer("seed", "random_seed", default=defaults.seed)
    return None if seed is None or seed < 0 or seed == _LLAMA_RANDOM_SEED else seed % _SEEDS


def read_penalty(body: Body, name: str, most: float) -> float:
    """A penalty between `-most` and `most`."""
    return body.number(name, default=0.0, least=-most, most=most)


def read_num_draft_tokens(body: Body, defaults: Defaults) -> int | None:
    """The maximum of draft tokens per forward: `num_draft_tokens`, or llama-server's
    `speculative.n_max`, flat or nested; 0 decodes plainly."""
    number = body.integer(
        "num_draft_tokens", "speculative.n_max", default=None, least=0, most=MAX_DRAFT_TOKENS
    )
    if number is None and isinstance(body.any("speculative"), dict):
        nested = body.object("speculative")
        number = nested.integer("n_max", default=None, least=0, most=MAX_DRAFT_TOKENS)
    return defaults.num_draft_tokens if number is None else number


def read_priority(body: Body) -> int:
    """vLLM's `priority`: requests with a lower number go first."""
    return body.integer("priority", default=0)


def refuse_unserved(body: Body) -> None:
    """Refuses what would change the answer and is not served here, unless it is turned off.

    Raises:
        BodyError: if there is such a field.
    """
    for name, neutral in _UNSERVED.items():
        value = body.any(name)
        if value is not None and value not in neutral:
            body.refuse(name, "is not served; leave it out")


def read_grammar(body: Body, tokenizer: "Tokenizer") -> Grammar | None:
    """A grammar that the answer must match: llama-server's `json_schema`, and `grammar` in GBNF or
    in llguidance's Lark; `regex`; or what vLLM calls them.

    Raises:
        BodyError: if there are several, or one cannot be read.
    """
    found = []
    nested = body.object("structured_outputs")
    for holder, kinds in ((body, _GRAMMARS), (nested, _NESTED_GRAMMARS)):
        schema, regex, grammar = kinds
        if holder.has(*schema):
            value = holder.any(*schema)
            if not isinstance(value, dict | bool):
                holder.refuse(schema[0], "must be an object, or true or false")
            found.append(Grammar.json_schema(value))
        if text := holder.text(*regex, default=""):
            found.append(Grammar("regex", text))
        if text := holder.text(*grammar, default=""):
            found.append(Grammar("lark", _lark(holder, text, tokenizer)))
    if len(found) > 1:
        body.refuse("grammar", "cannot be combined with `json_schema` or `regex`")
    return found[0] if found else None


def _lark(body: Body, grammar: str, tokenizer: "Tokenizer") -> str:
    if len(grammar) > _MAX_GRAMMAR_LENGTH:
        body.refuse("grammar", f"is longer than {_MAX_GRAMMAR_LENGTH} characters")
    try:
        return gbnf_to_lark(grammar, tokenizer.token_id)
    except ValueError as error:
        body.refuse("grammar", f"cannot be read: {error}", quotes=True)


def read_biases(body: Body, tokenizer: "Tokenizer") -> tuple[tuple[int, float], ...]:
    """Logit biases, `[[TOKEN, BIAS], ...]` or `{"TOKEN": BIAS}`: `false` forbids a token, and a
    text stands for all its tokens. `ignore_eos` forbids those that end an answer."""
    name = "logit_bias"
    biases: list[tuple[int, float]] = []
    if body.flag("ignore_eos", default=False):
        biases = [(token, FORBIDDEN) for token in sorted(tokenizer.end_tokens)]
    given = body.any(name)
    if given is None:
        return tuple(biases)
    if not isinstance(given, dict | list):
        body.refuse(name, "must be a list of pairs, or an object")
    if len(given) > body.limits.biases:
        body.refuse(name, f"must have {body.limits.biases} entries or fewer")
    for entry in given.items() if isinstance(given, dict) else given:
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            body.refuse(name, "must be pairs of a token id and a number")
        token, bias = entry
        if isinstance(token, str) and token.isdecimal() and len(token) < 12:
            token = int(token)
        tokens = [token]
        if isinstance(token, str) and 0 < len(token) <= body.limits.stop_characters:
            tokens = tokenizer.encode_plain(token)
        elif isinstance(token, bool) or not isinstance(token, int) or token < 0:
            body.refuse(name, "must name tokens by their ids, 0 or more, or by a short text")
        if bias is False:
            bias = FORBIDDEN
        if isinstance(bias, bool) or not isinstance(bias, int | float) or abs(bias) > -FORBIDDEN:
            body.refuse(name, "must give each token a number, or false")
        biases += [(each, float(bias)) for each in tokens]
    return tuple(biases)


def read_choices(body: Body, jobs: Sequence[Job], *names: str) -> tuple[int, tuple[Job, ...]]:
    """How many choices each prompt has, and the jobs, repeated for every choice.

    Raises:
        BodyError: if these are more than the server allows.
    """
    most = body.limits.choices
    choices = body.integer(*names, default=1, least=1, most=most)
    if len(jobs) * choices > most:
        body.refuse("prompt", f"asks for more than {most} answers in one request")
    return choices, tuple(job.variant(choice) for job in jobs for choice in range(choices))


def read_messages(body: Body) -> list[dict[str, Any]]:
    """The messages, with their content as one text; other fields go on to the template.

    Raises:
        BodyError: if there are none, or one has no role, or content that is not text.
    """
    messages = body.objects("messages", most=MAX_MESSAGES)
    if not messages:
        body.refuse("messages", "must have at least one message")
    return [_message(message) for message in messages]


def read_content(message: Body) -> str:
    """A message's content: a text, or a list of parts that are all text."""
    if not isinstance(message.any("content"), list):
        return message.text("content", default="")
    texts: list[str] = []
    for part in message.objects("content"):
        if part.text("type", default="text") != "text":
            part.refuse("type", "must be text; this model reads nothing else")
        texts.append(part.text("text", default=""))
    return "".join(texts)


def _message(message: Body) -> dict[str, Any]:
    message.require("role")
    role = message.text("role", default="")
    kept = {key: message.any(key) for key in message.names() if message.has(key)}
    if message.has("tool_calls"):
        kept["tool_calls"] = [_tool_call(call) for call in message.objects("tool_calls")]
    # `developer` is OpenAI's newer word for the role of the system message; no template knows it.
    role = "system" if role == "developer" else role
    return kept | {"role": role, "content": read_content(message)}


def _tool_call(call: Body) -> dict[str, Any]:
    """An earlier call. Templates expect its arguments as an object, so they are parsed if they are
    JSON."""
    function = call.object("function")
    arguments = function.any("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    kept = {key: call.any(key) for key in call.names()}
    named = {"name": function.text("name", default=""), "arguments": arguments}
    return kept | {"function": named}


def read_offered_tools(body: Body) -> list[dict[str, Any]]:
    """The tools that the model may call, in OpenAI's form, which templates expect.

    Raises:
        BodyError: if one is not a function, or has no name.
    """
    return [_tool(tool) for tool in body.objects("tools", most=MAX_TOOLS)]


def _tool(tool: Body) -> dict[str, Any]:
    """A tool as the client sent it, after checking the fields that templates and parsers use."""
    if tool.text("type", default="function") != "function":
        tool.refuse("type", "must be function")
    function = tool.object("function")
    if not function.text("name", default=""):
        tool.refuse("function.name", "is missing")
    function.text("description", default="")
    function.object("parameters").object("properties")
    kept = {name: function.any(name) for name in function.names()}
    return {"type": "function", "function": kept}
