"""Conversation: messages and tools in OpenAI's form as one job, and the blocks of its answer."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import Any, Final, Literal

from akunu_py.errors import InvalidRequestError, UnreadableRequestError
from akunu_py.events import Completion, Event
from akunu_py.options import Grammar, Options, Wake
from akunu_py.server.body import Body, check_json, parse_json
from akunu_py.server.service import Job, Service
from akunu_py.server.wire import JSONAnswer, finish_word
from akunu_py.text.answer_parser import AnswerFormat, AnswerParser, Block, Step
from akunu_py.text.call_grammar import CallGrammar, make_checked
from akunu_py.text.calls import MAX_NAME
from akunu_py.text.tokenizer import Tokenizer

Message = dict[str, Any]

MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 512


def read_messages(body: Body) -> list[Message]:
    """The messages, with their content as one text; other fields are passed to the template."""
    messages = some_messages(body)
    calls = [call for message in messages for call in message.objects("tool_calls", most=MAX_TOOLS)]
    check_arguments(call.object("function") for call in calls)
    return list(map(_message, messages))


def some_messages(body: Body) -> list[Body]:
    """The messages as the client sent them, at least one."""
    messages = body.objects("messages", most=MAX_MESSAGES)
    if not messages:
        body.refuse("messages", "must have at least one message")
    return messages


def _message(message: Body) -> Message:
    message.require("role")
    role = message.text("role", default="")
    kept = {key: message.any(key) for key in message.names() if message.has(key)}
    kept.pop("tool_calls", None)
    if calls := message.objects("tool_calls"):
        kept["tool_calls"] = [
            {key: call.any(key) for key in call.names()}
            | call_of(call.object("function"), call.any("id"))
            for call in calls
        ]
    # `developer` is OpenAI's newer name for the system role; no template knows it.
    role = "system" if role == "developer" else role
    return kept | {"role": role, "content": message.joined("content")}


def merged(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages in an order that all templates accept: one system message at the beginning, then
    user and assistant in turn. Later system messages become user messages."""
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
            if thought := f"{_thought_of(last)}{_thought_of(message)}":
                last["reasoning_content"] = thought
        else:
            last["content"] += f"\n\n{message['content']}"
    return found


def _thought_of(message: Mapping[str, Any]) -> str:
    names = ("reasoning_content", "reasoning", "thinking")
    return next((text for name in names if isinstance(text := message.get(name), str)), "")


def in_words(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    format_: AnswerFormat,
) -> Sequence[Mapping[str, Any]]:
    """Messages for a template that cannot show tools, earlier calls or results; these become
    text."""
    missing = format_.in_words
    if not (tools or any(one["role"] == "tool" or "tool_calls" in one for one in messages)):
        return messages
    said: list[Message] = []
    for given in messages:
        message = dict(given)
        if "calls" in missing:
            calls = [call["function"] for call in message.pop("tool_calls", ())]
            message["content"] += format_.written(*calls)
        if message["role"] == "tool" and "results" in missing:
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            message = {"role": "user", "content": result}
        said.append(message)
    if tools and "tools" in missing:
        offer = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        call = format_.written({"name": "NAME", "arguments": {"PARAMETER": "VALUE"}})
        words = f"You can call these functions:\n{offer}\nWrite a call like this:\n{call}"
        has_system = bool(said) and said[0]["role"] == "system"
        role = "system" if has_system else "user"
        said.insert(has_system, {"role": role, "content": words})
    return merged(said)


def in_turns(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages for gpt-oss's template, which shows one call per message, its result after it, and
    before it either reasoning or text, as reasoning."""
    said: list[Message] = []
    rest = merged(messages)
    while rest:
        message = rest.pop(0)
        if message["role"] != "assistant":
            said.append(message)
            continue
        thought = _thought_of(message)
        calls = message.pop("tool_calls", ())
        if not calls:
            said.append(message | ({"thinking": thought} if thought else {}))
            continue
        results = list(takewhile(lambda one: one["role"] == "tool", rest))
        del rest[: len(results)]
        thought = "\n\n".join(filter(None, (thought, message["content"])))
        ids = [call.get("id") for call in calls]
        for call in calls:
            said.append(message | {"content": "", "thinking": thought, "tool_calls": [call]})
            own = [one for one in results if one.get("tool_call_id") == call.get("id")]
            lost = [one for one in results if one.get("tool_call_id") not in ids]
            for result in own[:1] or lost[:1]:
                said.append(result)
                results.remove(result)
            thought = ""
        said += results
    return said


def check_arguments(functions: Iterable[Body], field: str = "arguments") -> None:
    """Refuses earlier calls if their arguments that are JSON as text have too many values in
    all."""
    given = (function.any(field) for function in functions)
    check_json(*(arguments for arguments in given if isinstance(arguments, str)))


def call_of(function: Body, id_: Any, field: str = "arguments") -> dict[str, Any]:
    """An earlier call, from an object with its name and its checked arguments. Templates expect
    arguments to be an object; anything else, such as the text of a call that was cut, is put into
    one."""
    arguments = function.any(field)
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = parse_json(arguments)
    if not isinstance(arguments, dict):
        arguments = {} if arguments in (None, "") else {"arguments": arguments}
    return made_call(function.text("name", default=""), arguments, id_)


def made_call(name: str, arguments: Any, id_: Any) -> dict[str, Any]:
    """A call with the given arguments."""
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
    `schema` names the field that describes its arguments."""
    if not function.text("name", default="", longest=MAX_NAME):
        function.refuse("name", "is missing")
    function.text("description", default="")
    parameters = function.object(schema)
    if isinstance(kind := parameters.any("type"), str) and kind != "object":
        parameters.refuse("type", "must be object")
    parameters.object("properties")
    kept = {name: function.any(name) for name in function.names() if name != schema}
    if schema in function.names():
        kept["parameters"] = function.any(schema)
    return {"type": "function", "function": kept}


@dataclass(frozen=True)
class Tools:
    """The tools that may be called. With `must_call`, the completion must be a call; with
    `one_call`, it ends after the first."""

    offered: tuple[dict[str, Any], ...] = ()
    must_call: bool = False
    one_call: bool = False


def select_tools(body: Body, offered: Sequence[dict[str, Any]]) -> Tools:
    """The tools that `tool_choice` and `parallel_tool_calls` allow the model to call."""
    may_call, must_call, among, named = _read_tool_choice(body)
    parallel = body.flag("parallel_tool_calls", default=True) and not named
    if among is not None:
        offered = [tool for tool in offered if tool["function"]["name"] in among]
    if among is not None and not offered:
        body.refuse("tool_choice", "names a function that is not among `tools`")
    if must_call and not offered:
        body.refuse("tool_choice", "needs `tools` to choose from")
    if not may_call:
        return Tools()
    return Tools(tuple(offered), must_call, bool(offered) and not parallel)


def _read_tool_choice(body: Body) -> tuple[bool, bool, list[str] | None, bool]:
    """Whether a tool may be called; whether one must be; the names of the allowed ones, None for
    all; and whether exactly one call is wanted. The field is a word, or an object that gives one
    tool by its name or type, or several allowed ones."""
    if not isinstance(body.any("tool_choice"), dict):
        word = body.text("tool_choice", default="auto")
        if word not in ("auto", "none", "required"):
            body.refuse("tool_choice", "must be auto, none, required, or name a tool")
        return word != "none", word == "required", None, False
    given = body.object("tool_choice")
    if given.text("type", default="") == "allowed_tools":
        allowed = given.object("allowed_tools") if given.has("allowed_tools") else given
        names = (tool.object("function") if tool.has("function") else tool
                 for tool in allowed.objects("tools", most=MAX_TOOLS))  # fmt: skip
        among = [name.text("name", default="") for name in names]
        return True, allowed.any("mode") == "required", among, False
    function = given.object("function") if given.has("function") else given
    name = function.text("name", default="") or given.text("type", default="")
    if name in ("", "function"):
        given.refuse("function.name", "is missing")
    return True, True, [name], True


def _hold_calls(
    tokenizer: Tokenizer, answer: Grammar | None, tools: Tools
) -> tuple[Grammar | None, bool]:
    """The grammar of an answer that may call tools, and whether it constrains the calls; `answer`
    is the grammar of an answer without calls.

    The schema of a `strict` function is enforced, or the request is refused. Other schemas are
    enforced as far as possible.
    """
    format_ = tokenizer.answer_format
    if not tools.offered:
        return answer, False
    if answer is not None and answer.kind != "json_schema":
        raise InvalidRequestError(f"A {answer.name} cannot be combined with `tools`.")
    chooses_answer = answer is not None and not tools.must_call
    if chooses_answer and format_.call_start.startswith("{"):
        raise InvalidRequestError(
            "A JSON schema cannot be combined with `tools` for this model, whose calls are JSON "
            "without a mark, unless a call is required."
        )
    strict = [tool for tool in tools.offered if tool["function"].get("strict") is True]
    is_needed = bool(strict) or tools.must_call or chooses_answer
    if format_.layout is None:
        if is_needed:
            raise InvalidRequestError(
                "This server does not know this model's format of tool calls."
            )
        return None, False

    def calls(offered: Sequence[dict[str, Any]], simple: Collection[str] = ()) -> CallGrammar:
        by_id = tokenizer.grammar_tokens
        return CallGrammar(format_, offered, by_id, one_call=tools.one_call, simple=simple)

    def make(simple: Collection[str] = ()) -> str:
        grammar = calls(tools.offered, simple)
        if chooses_answer and answer is not None:
            return grammar.or_answer(answer.source)
        if tools.must_call:
            return grammar.calls_only()
        return grammar.after_mark()

    if strict and (unmet := make_checked(lambda: calls(strict).calls_only()).unmet):
        why = f"a `strict` one cannot require {unmet[0]}"
        raise UnreadableRequestError(f"The schemas of the tools cannot be used: {why}.")

    def is_simple(tool: dict[str, Any]) -> bool:
        try:
            make_checked(lambda: calls([tool]).calls_only())
        except InvalidRequestError:
            return tool not in strict
        return False

    try:
        grammar = make_checked(make)
    except InvalidRequestError:
        simple = [tool["function"]["name"] for tool in filter(is_simple, tools.offered)]
        try:
            grammar = make_checked(partial(make, simple))
        except InvalidRequestError:
            if is_needed:
                raise
            return None, False
        left = f"anything but the names and types of the parameters of {', '.join(simple)}"
        grammar = replace(grammar, unmet=(*grammar.unmet, left))
    if chooses_answer or tools.must_call:
        return grammar, True
    mark, headers = format_.again or format_.call_start, format_.other_headers
    wake = Wake(mark, once=tools.one_call or not format_.call_end, headers=headers)
    return replace(grammar, wake=wake), True


@dataclass(eq=False, kw_only=True)
class ChatJob(Job):
    """A job that continues a conversation. Its answer marks reasoning and calls as the `format`
    says; with `holds_calls`, a grammar enforces that format. `own_stop` is a stop string that is
    not the client's."""

    tools: Tools
    format: AnswerFormat
    holds_calls: bool
    own_stop: str = ""

    @classmethod
    def begin(
        cls,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        options: Options,
        tools: Tools,
        settings: Mapping[str, Any],
        *,
        continues: bool = True,
        opens: bool = True,
        budget: int | None = None,
    ) -> "ChatJob":
        """Renders a conversation with the model's template.

        If the last message is text from the assistant, the answer continues it, unless `continues`
        is false. Without `opens`, the prompt does not begin an answer. The `budget` is that of
        reasoning before a grammar.
        """
        format_ = tokenizer.answer_format
        last = messages[-1]
        begun = last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last
        if begun := begun and continues:
            messages = messages[:-1]
            if not messages:
                Body({}).refuse("messages", "must have one before the message to continue")
        shown = tools.offered
        if format_.in_words:
            messages = in_words(messages, shown, format_)
        if format_.headers:
            messages = in_turns(messages)
            shown = tuple(
                tool | {"function": {"description": ""} | tool["function"]} for tool in shown
            )
        if "tools" in format_.in_words:
            shown = ()
        if not format_.knows_calls:  # such a model may not stop after a call
            tools = replace(tools, one_call=bool(tools.offered))
        if tools.must_call:  # stop strings end texts, and a call that is cut does not parse
            options = replace(options, stop=())
        grammar, holds = _hold_calls(tokenizer, options.grammar, tools)
        prompt = tokenizer.render_chat(
            messages,
            open_answer=opens or begun,
            tools=shown,
            settings=_variables(tokenizer) | dict(settings),
        )
        reasoning = format_.reasoning(prompt)
        if begun:
            prompt += format_.begin_text(tokenizer.as_text(_thought_of(last)), reasoning)
            if tools.offered and format_.leaves_open(last["content"]):
                Body({}).refuse("messages", "cannot end in the middle of a call")
            prompt += tokenizer.as_text(last["content"])
            reasoning = format_.reasoning(prompt, last["content"])
        if reasoning is not None:
            reasoning = replace(reasoning, budget=budget)
        own_stop = ""
        if tools.one_call and not holds and format_.call_end not in ("", *options.stop):
            own_stop = format_.call_end
            options = replace(options, stop=(*options.stop, own_stop))
        samples = format_.sample_calls(tools.offered)
        options = replace(options, grammar=grammar, reasoning=reasoning, sample_calls=samples)
        return cls(
            prompt, options, is_chat=True, tools=tools, format=format_, holds_calls=holds,
            own_stop=own_stop,
        )  # fmt: skip

    def blocks(self) -> "Blocks":
        return Blocks(self.parser(), self.own_stop)

    def parser(self) -> AnswerParser:
        return AnswerParser(self.format, self.tools.offered or None, holds_calls=self.holds_calls)


def count_tokens(service: Service, job: ChatJob, **head: str) -> JSONAnswer:
    """The length of the prompt of a job."""
    engine = service.engine
    tokens = engine.tokenizer.encode(str(job.prompt), most=engine.context_limit)
    return JSONAnswer(head | {"input_tokens": len(tokens)})


def _variables(tokenizer: Tokenizer) -> dict[str, str]:
    """Today's date for templates of Llama 3, as in llama-server: without it, they say that it is
    July 2024. The user may have set another date."""
    if "date_string" not in tokenizer.template or "date_string" in tokenizer.template_args:
        return {}
    return {"date_string": datetime.now(UTC).strftime("%d %b %Y")}


class Blocks:
    """The blocks of one answer, as they grow."""

    def __init__(self, parser: AnswerParser, own_stop: str = "") -> None:
        self.done = parser.done
        self._parser = parser
        self._own_stop = own_stop

    @property
    def calls(self) -> list[Block]:
        """The calls that have ended; the last one may be cut."""
        return [block for block in self.done if block.call]

    @property
    def has_whole_calls(self) -> bool:
        return bool(self.calls) and not any(block.cut for block in self.calls)

    def text(self, kind: Literal["reasoning", "text"]) -> str:
        return "".join(block.text for block in self.done if block.kind == kind)

    def stop_of(self, source: Event | Completion) -> str | None:
        """The client's stop string that ended the answer."""
        return None if source.stop == self._own_stop else source.stop

    def feed(self, source: Event | Completion) -> Iterator[Step]:
        """Takes the next event, or a whole answer; at the end, closes open blocks."""
        text, thought = "", 0
        for piece in source.pieces:
            if piece.thought and len(text) > thought:  # reasoning after text
                yield from self._parser.feed(text, thought)
                text, thought = "", 0
            text, thought = text + piece.text, thought + piece.thought
        yield from self._parser.feed(text, thought)
        if source.finish_reason is not None:
            cut = finish_word(source.finish_reason) == "length"
            yield from self._parser.finish(cut=cut, stop=source.stop)

    def take_all(self, completion: Completion) -> None:
        for _ in self.feed(completion):
            pass
