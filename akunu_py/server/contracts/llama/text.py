"""`/tokenize`, `/detokenize` and `/apply-template`: what the tokenizer does, without the engine."""

import asyncio

from starlette.responses import Response

from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call
from akunu_py.server.messages import read_messages


async def tokenize(call: Call) -> Response:
    """`content` as ids: with the opening token if `add_special`, with its special tokens spelled
    out taken for what they are unless `parse_special` is false, and each with its text if
    `with_pieces`."""
    body, tokenizer = call.body, call.service.engine.tokenizer
    content = body.text("content", default="")
    opens = body.flag("add_special", default=False)
    if body.flag("parse_special", default=True):
        tokens = await asyncio.to_thread(tokenizer.encode, content, special_tokens=opens)
    else:
        opening = tokenizer.encode("") if opens else []
        tokens = opening + await asyncio.to_thread(tokenizer.encode_plain, content)
    if not body.flag("with_pieces", default=False):
        return CompactJSONResponse({"tokens": tokens})
    pieces = [{"id": token, "piece": tokenizer.decode([token])} for token in tokens]
    return CompactJSONResponse({"tokens": pieces})


async def detokenize(call: Call) -> Response:
    """The text of `tokens`."""
    engine, body = call.service.engine, call.body
    tokens = body.values("tokens")
    for index, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < engine.model.vocabulary_size:
            body.refuse(f"tokens[{index}]", "must be an id of the model's vocabulary")
    text = await asyncio.to_thread(engine.tokenizer.decode, tokens)
    return CompactJSONResponse({"content": text})


async def apply_template(call: Call) -> Response:
    """The prompt that the model's own chat template makes of `messages`."""
    body = call.body
    opens = body.flag("add_generation_prompt", default=True)
    text = call.service.engine.tokenizer.render_chat(read_messages(body), open_answer=opens)
    return CompactJSONResponse({"prompt": text})
