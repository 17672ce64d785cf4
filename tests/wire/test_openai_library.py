"""The `openai` library for Python, in every mode it has for completions and chats."""

from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from tests.server.live import LiveServer

PROMPT = "import os\n"
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "developer", "content": "Answer with code."},
    {"role": "user", "content": [{"type": "text", "text": "Add two numbers in Python."}]},
]


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    url = f"{live.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_completions_in_every_other_mode(live: LiveServer, client: openai.OpenAI) -> None:
    ids = live.worker.call(lambda engine: engine.tokenizer.encode(PROMPT))
    answer = client.completions.create(
        model="m",
        prompt=[ids, ids],
        logprobs=3,
        n=2,
        best_of=2,
        echo=True,
        seed=3,
        max_tokens=4,
        temperature=0.8,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={"1000": -100},
        stop=["\n\n\n", "###"],
        user="somebody",
        extra_body={"num_draft_tokens": 0, "top_k": 40},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert all(choice.text.startswith(PROMPT) for choice in answer.choices)
    assert answer.choices[0].text == answer.choices[2].text
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.top_logprobs is not None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2 * len(ids)


class Verdict(BaseModel):
    word: Literal["yes", "no"]
    sure: bool


def test_the_librarys_own_helper_for_streams(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="m",
        messages=MESSAGES,
        response_format=Verdict,
        seed=1,
        n=2,
        logprobs=True,
        top_logprobs=2,
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "logprobs.content.delta", "logprobs.content.done"} <= kinds
    assert len(final.choices) == 2
    for choice in final.choices:
        assert isinstance(choice.message.parsed, Verdict)
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def test_a_schema_is_parsed_into_an_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="m", messages=MESSAGES, seed=2, response_format=Verdict
    )
    assert isinstance(answer.choices[0].message.parsed, Verdict)


def test_errors_are_the_librarys(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="m", messages=[])
    assert refused.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as overflow:
        client.completions.create(model="m", prompt="word " * 20_000)
    assert overflow.value.code == "context_length_exceeded"
