"""Fields that several contracts share: stop strings, seeds, drafting, logit biases, choices,
messages, and the tools that are offered."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from akunu_py.options import MAX_DRAFT_TOKENS
from akunu_py.server.body import Body
from akunu_py.server.job import Job
from akunu_py.server.settings import Defaults

_LLAMA_RANDOM_SEED: Final = (1 << 32) - 1
_SEEDS: Final = 1 << 64
MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 512
MIN_TOP_P: Final = 1e-6
MAX_TEMPERATURE: Final = 1e3
MAX_RECENT: Final = 4096
FORBIDDEN: Final = -1e9
"""The logit bias that forbids a token: far below every logit, and still a finite number."""


def read_stops(body: Body, name: str = "stop") -> tuple[str, ...]:
    """The stop strings. Some clients send empty ones; these are ignored."""
    stops = body.texts(name, most=body.limits.stops)
    if any(len(stop) > body.limits.stop_characters for stop in stops):
        body.refuse(name, f"has a string of more than {body.limits.stop_characters} characters")
    return tuple(stop for stop in stops if stop)


def read_seed(body: Body) -> int | None:
    """The seed, which Mistral calls `random_seed`; None for a random one. Negative seeds and
    llama.cpp's largest one ask for a random seed, too."""
    seed = body.integer("seed", "random_seed", default=None)
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


def read_biases(body: Body) -> tuple[tuple[int, float], ...]:
    """Logit biases by token id: `[[ID, BIAS], ...]` or `{"ID": BIAS}`; `false` forbids a token."""
    name = "logit_bias"
    given = body.any(name)
    if given is None:
        return ()
    if not isinstance(given, dict | list):
        body.refuse(name, "must be a list of pairs, or an object")
    if len(given) > body.limits.biases:
        body.refuse(name, f"must have {body.limits.biases} entries or fewer")
    biases = []
    for entry in given.items() if isinstance(given, dict) else given:
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            body.refuse(name, "must be pairs of a token id and a number")
        token, bias = entry
        if isinstance(token, str) and token.isdecimal() and len(token) < 12:
            token = int(token)
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            body.refuse(name, "must name tokens by their ids, 0 or more")
        if bias is False:
            bias = FORBIDDEN
        if isinstance(bias, bool) or not isinstance(bias, int | float) or abs(bias) > -FORBIDDEN:
            body.refuse(name, "must give each token a number, or false")
        biases.append((token, float(bias)))
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
