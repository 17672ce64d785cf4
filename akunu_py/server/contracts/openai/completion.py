"""`/v1/completions`: goes on from a prompt, or fills the gap before a `suffix`.

`echo` with `logprobs` tells those of the prompt as well, by which evaluation harnesses score texts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from starlette.responses import Response

from akunu_py.options import MOST_ALTERNATIVES
from akunu_py.server.body import Body
from akunu_py.server.contract import Call
from akunu_py.server.contracts.openai.answering import Kind, respond
from akunu_py.server.contracts.openai.completion_choice import CompletionChoice
from akunu_py.server.contracts.openai.request import read_options, read_request
from akunu_py.server.job import Job

_KIND: Final = Kind("cmpl-", "text_completion", "text_completion")
_MAX_TOKENS: Final = 16
"""OpenAI's, where nobody says how many."""

Prompt = str | list[int]


async def complete(call: Call) -> Response:
    """Answers a prompt, or several."""
    body = call.body
    logprobs = body.integer("logprobs", default=None, least=0, most=MOST_ALTERNATIVES)
    echoes = body.flag("echo", default=False)
    scores = echoes and logprobs is not None
    suffix = body.text("suffix", default=None)
    if scores and suffix is not None:
        body.refuse("logprobs", "cannot be told of an echoed prompt that has a suffix")
    _check_best_of(body)
    options = read_options(call, max_tokens=_MAX_TOKENS, logprobs=logprobs)
    options = replace(options, scores_prompt=scores)
    jobs = [Job(prompt, options, suffix) for prompt in _read_prompts(body)]
    request = read_request(body, jobs)
    spelling = call.service.engine.tokenizer.token_bytes

    def spelled(tokens: Sequence[int]) -> str:
        return b"".join(map(spelling.of, tokens)).decode(errors="replace")

    def choice(index: int) -> CompletionChoice:
        echo = request.jobs[index].prompt_text(spelled) if echoes else ""
        return CompletionChoice(index, echo, None if logprobs is None else spelling)

    return await respond(call, request, _KIND, choice)


def _read_prompts(body: Body) -> list[Prompt]:
    """The prompts: a text, a list of texts, ids, or a list of lists of ids."""
    given = body.any("prompt")
    if given is None:
        body.refuse("prompt", "is missing")
    if isinstance(given, list) and given:
        if all(_is_id(entry) for entry in given):
            return [given]
        if all(isinstance(entry, list) and all(map(_is_id, entry)) for entry in given):
            return given
        return list(body.texts("prompt"))
    return [body.text("prompt", default="")]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_best_of(body: Body) -> None:
    """Raises BodyError if the best of more answers than are wanted is asked for."""
    best_of = body.integer("best_of", default=None, least=1)
    if best_of is not None and best_of != body.integer("n", default=1):
        body.refuse("best_of", "must be `n` or be left out: no answer is made to be thrown away")
