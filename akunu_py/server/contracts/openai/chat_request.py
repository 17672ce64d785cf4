"""What a chat is asked, read into the engine's words."""

from dataclasses import dataclass, replace
from typing import Any, Final

from akunu_py.options import Grammar, Options
from akunu_py.server.body import Body
from akunu_py.server.contract import Call
from akunu_py.server.contracts.openai.request import AnswerRequest, read_options, read_request
from akunu_py.server.contracts.openai.tools import Tools, read_tools
from akunu_py.server.job import Job
from akunu_py.server.messages import read_messages
from akunu_py.text.answer_parser import AnswerFormat, AnswerParser

_MOST_TOP_LOGPROBS: Final = 20
_EFFORTS: Final = 16
"""Characters of a `reasoning_effort`, whatever words a model knows."""


@dataclass(frozen=True)
class ChatRequest:
    """The answers wanted, and how to read them.

    Attributes:
        answers: that are wanted.
        prompt: that the conversation makes.
        format: of what the model writes.
        tools: that it may call; None if it may call none.
        plain: whether all it writes is content, as where a grammar says what that is.
        reports_logprobs: whether tokens come with their log-probabilities.
    """

    answers: AnswerRequest
    prompt: str
    format: AnswerFormat
    tools: tuple[dict[str, Any], ...] | None
    plain: bool
    reports_logprobs: bool

    def parser(self) -> AnswerParser:
        """What tells the parts of one answer apart."""
        if self.plain:
            return AnswerParser(AnswerFormat(), None, "")
        return AnswerParser(self.format, self.tools, self.prompt)


def read_chat(call: Call) -> ChatRequest:
    """Reads a body of `/v1/chat/completions`.

    Raises:
        BodyError: if it has a field that cannot be served.
        InvalidRequestError: if the model's template refuses the conversation.
    """
    body, tokenizer = call.body, call.service.engine.tokenizer
    format_ = tokenizer.answer_format
    grammar = _read_response_format(body)
    tools = read_tools(body, model_has_tools=format_.has_tools)
    if grammar is not None and tools.offered:
        body.refuse("response_format", "cannot be had together with `tools`")
    prompt = tokenizer.render_chat(
        read_messages(body),
        open_answer=True,
        tools=tools.offered,
        settings=_read_template_settings(body),
    )
    if tools.must_call:
        prompt = _open_call(prompt, format_)
    logprobs = _read_logprobs(body)
    options = read_options(call, max_tokens=None, logprobs=logprobs, grammar=grammar)
    job = Job(prompt, _ended_by_call(options, tools, format_))
    return ChatRequest(
        answers=read_request(body, [job]),
        prompt=prompt,
        format=format_,
        tools=tools.offered or None,
        plain=grammar is not None,
        reports_logprobs=logprobs is not None,
    )


def _open_call(prompt: str, format_: AnswerFormat) -> str:
    """A prompt after which nothing but a call can follow."""
    thought = f"{format_.think_end}\n\n" if format_.is_thinking(prompt) else ""
    return f"{prompt}{thought}{format_.call_start}"


def _ended_by_call(options: Options, tools: Tools, format_: AnswerFormat) -> Options:
    """The options, with a stop after the first call if there shall be one only."""
    if not (tools.offered and tools.one_call and format_.call_end):
        return options
    return replace(options, stop=(*options.stop, format_.call_end))


def _read_logprobs(body: Body) -> int | None:
    """How many alternatives are wanted to each token; None for no log-probabilities at all."""
    wanted = body.flag("logprobs", default=False)
    alternatives = body.integer("top_logprobs", default=0, least=0, most=_MOST_TOP_LOGPROBS)
    if alternatives and not wanted:
        body.refuse("top_logprobs", "needs `logprobs` to be true")
    return alternatives if wanted else None


def _read_template_settings(body: Body) -> dict[str, bool | str]:
    """What a template may look at beside the conversation; never a template itself."""
    settings: dict[str, bool | str] = {}
    thinking = body.object("chat_template_kwargs").flag("enable_thinking", default=None)
    if thinking is not None:
        settings["enable_thinking"] = thinking
    effort = body.text("reasoning_effort", default=None)
    if effort is not None:
        settings["reasoning_effort"] = effort[:_EFFORTS]
    return settings


def _read_response_format(body: Body) -> Grammar | None:
    """OpenAI's three kinds; `json_object` takes a `schema` as well, as llama-server's does."""
    given = body.object("response_format")
    kind = given.text("type", default="text")
    if kind == "text":
        return None
    if kind == "json_object":
        return _read_schema(given) if given.has("schema") else Grammar.json_object()
    if kind != "json_schema":
        given.refuse("type", "must be text, json_object or json_schema")
    return _read_schema(given.object("json_schema"))


def _read_schema(body: Body) -> Grammar:
    schema = body.any("schema")
    if not isinstance(schema, dict | bool):
        body.refuse("schema", "must be a JSON schema")
    return Grammar.json_schema(schema)
