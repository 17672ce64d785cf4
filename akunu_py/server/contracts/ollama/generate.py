"""`/api/generate`: an answer to one prompt, put into the model's template or taken as it is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from akunu_py.server.body import Body
from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call
from akunu_py.server.contracts.ollama.request import read_options, refuse_images
from akunu_py.server.contracts.ollama.response import Reply, respond
from akunu_py.server.job import Job
from akunu_py.text.fim import FILL_FORMATS
from akunu_py.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from akunu_py.engine import Engine

_BARE_TEMPLATES: Final = ("{{.Prompt}}", "{{ .Prompt }}")
"""Templates that add nothing, which makes them `raw`."""


@dataclass(frozen=True)
class _Question:
    """What is asked.

    Attributes:
        prompt: text, or ids where the answer comes with its `context`.
        suffix: what follows the gap to fill; None goes on from the prompt.
    """

    prompt: str | list[int]
    suffix: str | None = None


class _GenerateReply(Reply):
    """Puts text into `response`, and the conversation so far into `context`."""

    def __init__(self, call: Call, question: _Question | None) -> None:
        super().__init__(call)
        self._question = question

    def tell(self, text: str, *, ends: bool) -> dict[str, Any]:
        return self.tell_all(text) if text else {}

    def tell_all(self, text: str) -> dict[str, Any]:
        return {"response": text}

    def close(self) -> dict[str, Any]:
        if self._question is None or isinstance(self._question.prompt, str):
            return {}
        return {"context": [*self._question.prompt, *self.tokens]}


async def generate(call: Call) -> Response:
    """Answers a prompt; one that is empty only asks for the model to be there."""
    question = _read_question(call.body, call.service.engine)
    reply = _GenerateReply(call, question)
    options = read_options(call)
    if question is None:
        return CompactJSONResponse(reply.loaded())
    return await respond(call, Job(question.prompt, options, suffix=question.suffix), reply)


def _read_question(body: Body, engine: "Engine") -> _Question | None:
    """What is asked, or None if nothing is.

    A prompt that spells the model's own fill-in-the-middle tokens is taken as it is, even without
    `raw`: it was made up by the client.

    Raises:
        BodyError: if there is a field that cannot be served.
    """
    refuse_images(body)
    prompt = body.text("prompt", default="")
    suffix = body.text("suffix", default="") or None
    system = body.text("system", default="")
    context = _read_context(body)
    template = body.text("template", default="").strip()
    if template and template not in _BARE_TEMPLATES:
        body.refuse("template", "cannot be served; the model has its own, and `raw` uses none")
    raw = body.flag("raw", default=False)
    if raw and (system or context):
        body.refuse("raw", "does not go with `system` or `context`")
    if not prompt and not suffix:
        return None
    if raw or template or _spells_fill_tokens(engine.tokenizer, prompt):
        return _Question(prompt) if prompt else None
    if suffix:
        return _Question(prompt, suffix)
    return _Question([*context, *_ask(engine, system, prompt, opens=not context)])


def _ask(engine: "Engine", system: str, prompt: str, *, opens: bool) -> list[int]:
    """The ids of a question, put as the model's template has it, if it has one."""
    tokenizer = engine.tokenizer
    if tokenizer.has_chat_template:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        text = tokenizer.render_chat(messages, open_answer=True)
    else:
        text = "\n\n".join(part for part in (system, prompt) if part)
    return tokenizer.encode(text, special_tokens=opens, most=engine.context_limit)


def _read_context(body: Body) -> list[int]:
    """The ids of the conversation so far, as the last answer gave them."""
    tokens = body.values("context")
    for index, token in enumerate(tokens):
        if type(token) is not int or token < 0:
            body.refuse(f"context[{index}]", "must be a token id")
    return tokens


def _spells_fill_tokens(tokenizer: Tokenizer, prompt: str) -> bool:
    return any(
        layout.prefix in prompt and tokenizer.token_id(layout.prefix) is not None
        for layout in FILL_FORMATS
    )
