"""`launch`: starts a coding agent for a running server. It is set up only through its environment
and its arguments; none of its files is changed."""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import quote
from urllib.request import getproxies

from akunu_py.cli.models import ask_server
from akunu_py.cli.parser import PROGRAM
from akunu_py.cli.settings import LaunchSettings
from akunu_py.errors import AkunuError, InvalidRequestError
from akunu_py.option_field import did_you_mean
from akunu_py.server.settings import KEY_VARIABLE, ServerSettings

_ID: Final = "akunu_py"
_MOST_ANSWER: Final = 32_000


class Served(NamedTuple):
    """A server, one of its models, and the limits of that model's context and answers."""

    url: str
    key: str
    model: str
    context: int
    answer: int


Setup = tuple[dict[str, str], Sequence[str]]
"""Variables of the environment, and arguments that come before the user's."""


def _codex(served: Served) -> Setup:
    provider = {"name": _ID, "base_url": f"{served.url}/v1", "wire_api": "responses",
                "env_key": KEY_VARIABLE}  # fmt: skip
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in provider.items())
    model = json.dumps(served.model, ensure_ascii=False)  # TOML has no halves of characters
    settings = (f"model={model}", f'model_provider="{_ID}"',
                f"model_providers.{_ID}={{{table}}}",
                f"model_context_window={served.context}")  # fmt: skip
    return {KEY_VARIABLE: served.key}, [word for each in settings for word in ("-c", each)]


def _claude(served: Served) -> Setup:
    roles = ("ANTHROPIC_", "ANTHROPIC_DEFAULT_OPUS_", "ANTHROPIC_DEFAULT_SONNET_",
             "ANTHROPIC_DEFAULT_HAIKU_", "CLAUDE_CODE_SUBAGENT_")  # fmt: skip
    return {f"{role}MODEL": served.model for role in roles} | {
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_AUTH_TOKEN": served.key,
        "ANTHROPIC_API_KEY": "",  # it would take precedence over the token
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(served.answer),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # it changes the beginning of every prompt
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }, ()


def _opencode(served: Served) -> Setup:
    limits = {"context": served.context, "output": served.answer}
    options = {"baseURL": f"{served.url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": _ID, "options": options,
                "models": {served.model: {"name": served.model, "limit": limits}}}  # fmt: skip
    named = dict.fromkeys(("model", "small_model"), f"{_ID}/{served.model}")
    config = json.dumps({**named, "provider": {_ID: provider}})
    return {KEY_VARIABLE: served.key, "OPENCODE_CONFIG_CONTENT": config}, ()


def _aider(served: Served) -> Setup:
    variables = {"OPENAI_API_BASE": f"{served.url}/v1", "OPENAI_API_KEY": served.key}
    return variables, ("--model", f"openai/{served.model}", "--no-show-model-warnings")


class Client(NamedTuple):
    """A client, and the context that it needs: its own prompt, some work, and a reserve."""

    name: str
    install: str
    tokens: int
    setup: Callable[[Served], Setup]


_AIDER: Final = "python -m pip install aider-install && aider-install"
CLIENTS: Final[Mapping[str, Client]] = {
    "codex": Client("Codex", "npm install -g @openai/codex", 20_000, _codex),
    "claude": Client("Claude Code", "npm install -g @anthropic-ai/claude-code", 45_000, _claude),
    "opencode": Client("opencode", "npm install -g opencode-ai", 20_000, _opencode),
    "aider": Client("aider", _AIDER, 8_000, _aider),
}


def run(settings: LaunchSettings) -> int:
    """Replaces this process by the client."""
    client, name = CLIENTS[settings.client], settings.model
    key = ServerSettings(api_key_file=settings.api_key_file).key
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{settings.port}"
    hint = f"start one with `{PROGRAM} serve --model NAME`, or give its --host and --port"
    models = ask_server(f"{url}/v1/models", "data", key, hint)
    contexts: dict[str, int] = {}
    with suppress(TypeError, ValueError, LookupError):  # another program's answer
        contexts |= {model["id"]: int(model["meta"]["n_ctx"]) for model in models
                     if model["capabilities"] == ["completion"]}  # fmt: skip
    if not contexts:
        raise InvalidRequestError(f"The server at {url} offers no model that generates text.")
    if name is not None and name not in contexts:  # another of its names
        with suppress(AkunuError):
            name = ask_server(f"{url}/v1/models/{quote(name)}", "id", key, hint)
    if name is not None and name not in contexts:
        meant = did_you_mean(name, [*contexts]) or f"it has {', '.join(contexts)}."
        raise InvalidRequestError(f"The server has no model {name} that generates text; {meant}")
    name = name or next(iter(contexts))
    if (context := contexts[name]) < client.tokens:
        longer = [other for other, tokens in contexts.items() if tokens >= client.tokens]
        remedy = f"give --model {longer[0]}" if longer else "serve a model with a longer one"
        raise InvalidRequestError(
            f"{client.name} needs a context of {client.tokens:,} tokens, but that of {name} has "
            f"{context:,}; {remedy}."
        )
    answer = min(context // 8, _MOST_ANSWER)
    variables, words = client.setup(Served(url, key or "none", name, context, answer))
    if getproxies():  # a proxy would not find this machine
        variables |= {each: ",".join(filter(None, (os.environ.get(each), settings.host)))
                      for each in ("no_proxy", "NO_PROXY")}  # fmt: skip
    command = [settings.client, *words, *settings.arguments]
    if settings.prints:
        told = {name: shlex.quote(value) if value != key else f"${KEY_VARIABLE}"
                for name, value in variables.items()}  # fmt: skip
        print(*(f"{name}={value}" for name, value in told.items()), shlex.join(command))
        return 0
    if (path := shutil.which(settings.client)) is None:
        raise InvalidRequestError(f"{client.name} is not installed; run `{client.install}`.")
    return os.execve(path, command, os.environ | variables)
