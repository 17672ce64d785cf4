"""Fields that several contracts share: texts, messages, tools, log-probabilities, choices and the
project. Messages and tools come out in OpenAI's form, which templates expect."""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from akunu_py.memory.projects import Memory
from akunu_py.server.body import Body, parse_json
from akunu_py.server.errors import ApiError
from akunu_py.server.service import Job

Message = dict[str, Any]

MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 512
_MAX_TOP_LOGPROBS: Final = 20


def read_choices(body: Body, jobs: Sequence[Job], *names: str) -> tuple[int, tuple[Job, ...]]:
    """How many choices each prompt has, and the jobs, repeated for every choice."""
    most = body.limits.choices
    choices = body.integer(*names, default=1, least=1, most=most)
    if len(jobs) * choices > most:
        body.refuse("prompt", f"asks for more than {most} answers in one request")
    return choices, tuple(job.variant(choice) for job in jobs for choice in range(choices))


def read_logprobs(body: Body) -> int | None:
    """How many alternatives to report per token; None reports no log-probabilities."""
    wanted = body.flag("logprobs", default=False)
    alternatives = body.integer("top_logprobs", default=0, least=0, most=_MAX_TOP_LOGPROBS)
    if alternatives and not wanted:
        body.refuse("top_logprobs", "needs `logprobs` to be true")
    return alternatives if wanted else None


def read_text(
    holder: Body, name: str, kinds: Collection[str] = ("text",), *, joint: str = "\n\n"
) -> str:
    """A text, or a list of parts that are all text, of one of these kinds; the first one is that of
    a part without a type. Parts are separate paragraphs, as for llama-server."""
    if not isinstance(holder.any(name), list):
        return holder.text(name, default="")
    texts = []
    for part in holder.objects(name):
        if part.text("type", default=next(iter(kinds))) not in kinds:
            part.refuse("type", "must be text; this model reads nothing else")
        texts.append(part.text("text", "refusal", default=""))
    return joint.join(texts)


def read_messages(body: Body) -> list[Message]:
    """The messages, with their content as one text; other fields go on to the template."""
    return [_message(message) for message in some_messages(body)]


def some_messages(body: Body) -> list[Body]:
    """The messages as they came, at least one."""
    messages = body.objects("messages", most=MAX_MESSAGES)
    if not messages:
        body.refuse("messages", "must have at least one message")
    return messages


def _message(message: Body) -> Message:
    message.require("role")
    role = message.text("role", default="")
    kept = {key: message.any(key) for key in message.names() if message.has(key)}
    if message.has("tool_calls"):
        calls = message.objects("tool_calls")
        kept["tool_calls"] = [
            {key: call.any(key) for key in call.names()}
            | call_of(call.object("function"), call.any("id"))
            for call in calls
        ]
    # `developer` is OpenAI's newer word for the role of the system message; no template knows it.
    role = "system" if role == "developer" else role
    return kept | {"role": role, "content": read_text(message, "content")}


def merged(messages: Sequence[Message]) -> list[Message]:
    """Messages in an order that all templates accept: one system message, at the beginning; then
    users and the assistant in turn. Later system messages become the user's."""
    found: list[Message] = []
    for given in messages:
        message = dict(given)
        last = found[-1] if found else {"role": "system"}
        if message["role"] == "system" and last["role"] != "system":
            message["role"] = "user"
        if not found or last["role"] != message["role"] or message["role"] == "tool":
            found.append(message)
        elif message["role"] == "assistant":
            calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
            last["content"] += message["content"]
            last |= {"tool_calls": calls} if calls else {}
        else:
            last["content"] += f"\n\n{message['content']}"
    return found


def call_of(function: Body, id_: Any, field: str = "arguments") -> dict[str, Any]:
    """An earlier call, whose arguments are in a field of an object with its name. Templates expect
    them as an object, so they are parsed if they are JSON."""
    arguments = function.any(field)
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = parse_json(arguments)
    return made_call(function.text("name", default=""), arguments, id_)


def made_call(name: str, arguments: Any, id_: Any) -> dict[str, Any]:
    """A call, with its arguments as they are given."""
    named = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return named if id_ is None else {"id": id_} | named


def read_offered_tools(body: Body) -> list[dict[str, Any]]:
    """The tools that the model may call; all are functions."""
    tools = body.objects("tools", most=MAX_TOOLS)
    for tool in tools:
        if tool.text("type", default="function") != "function":
            tool.refuse("type", "must be function")
    return [offered(tool.object("function")) for tool in tools]


def offered(function: Body, schema: str = "parameters") -> dict[str, Any]:
    """A tool as the client sent it, after checking the fields that templates and parsers use;
    `schema` is the name of the one that describes its arguments."""
    if not function.text("name", default=""):
        function.refuse("name", "is missing")
    function.text("description", default="")
    function.object(schema).object("properties")
    kept = {name: function.any(name) for name in function.names() if name != schema}
    if schema in function.names():
        kept["parameters"] = function.any(schema)
    return {"type": "function", "function": kept}


def read_project(body: Body, memory: Memory) -> str | None:
    """The only project that a request drafts from: a folder that the server was started with, or
    its last name. None for all projects, an empty text for none. Without the field, a file of
    `input_extra` stands for its project.

    Raises:
        ApiError: if the server was not started with it, whether or not there is such a folder.
    """
    given = body.text("project", default=None)
    if given is None:
        names = [extra.text("filename", default="") for extra in body.objects("input_extra")]
        paths = [Path(os.path.normpath(name)) for name in names]
        within = (key for path in paths for key in memory.projects if path.is_relative_to(key))
        return next(within, None)
    if not given or given in memory.projects:
        return given
    wanted = os.path.normpath(given)
    for key in memory.projects:
        if wanted in (key, Path(key).name):
            return key
    raise ApiError(
        HTTPStatus.FORBIDDEN,
        "The field `project` names none of the folders that this server was started with; see "
        "`serve --project`.",
        "permission_error",
        param="project",
    )
