"""Encodes the input of a request into ids that fit the model."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, cast

from akunu_py.errors import ContextOverflowError, InvalidRequestError
from akunu_py.options import DEFAULT_MAX_TOKENS, Options
from akunu_py.text.fim import FillRequest, fill_prompt, fills_gap
from akunu_py.text.tokenizer import Message, Tokenizer

if TYPE_CHECKING:
    from akunu_py.model.target_model import TargetModel


@dataclass(frozen=True)
class EncodedPrompt:
    """The ids of a prompt, stored compactly; the ids that end its answer; and whether the answer
    fills a gap."""

    tokens: "array[int]"
    end_tokens: frozenset[int]
    fills_gap: bool


PromptInput = str | Sequence[int] | FillRequest
"""Text, ids exactly as the model should see them, or a gap to fill."""
Asked = PromptInput | Sequence[Message]
"""A prompt, or the messages of a conversation."""


def encode_prompt(
    model: "TargetModel", asked: Asked | EncodedPrompt, options: Options, limit: int
) -> EncodedPrompt:
    """Encodes a prompt, unless it consists of ids already, so that it fits `limit` with its answer;
    the text around a gap is cut. Any thread may call this. Raises ContextOverflowError if not even
    one token of the answer fits, and InvalidRequestError if it is empty, has ids outside the
    vocabulary, or is a gap that the model cannot fill.
    """
    tokenizer = model.tokenizer
    if isinstance(asked, EncodedPrompt):
        return asked
    if isinstance(asked, FillRequest):
        longest = DEFAULT_MAX_TOKENS if options.max_tokens is None else options.max_tokens
        tokens, end_tokens = fill_prompt(tokenizer, asked, limit - min(longest, limit // 4))
    else:
        if not isinstance(asked, str | list | tuple | array):
            raise InvalidRequestError(
                "A prompt must be text, a list of token ids or a list of messages, not "
                f"{type(asked).__name__}."
            )
        if not isinstance(asked, str) and asked and isinstance(asked[0], Mapping):
            asked = tokenizer.render_chat(messages_of(asked), open_answer=True)
        try:
            tokens = (
                tokenizer.encode(asked, most=limit)
                if isinstance(asked, str)
                else [index(token) for token in cast("Sequence[int]", asked)]
            )
        except TypeError:
            is_text = isinstance(asked, str)
            why = "text is not valid UTF-8" if is_text else "ids must be whole numbers"
            raise InvalidRequestError(f"The prompt's {why}.") from None
        end_tokens = frozenset()
    if not tokens:
        raise InvalidRequestError("The prompt is empty; give it at least one character.")
    if not 0 <= min(tokens) <= max(tokens) < model.vocabulary_size:
        raise InvalidRequestError(
            f"The prompt has ids outside the vocabulary of {model.vocabulary_size} tokens."
        )
    if len(tokens) + (options.max_tokens != 0) > limit:  # as in llama-server
        remedy = "shorten it" if limit == model.context_length else "raise --max-context"
        raise ContextOverflowError(
            f"The prompt has {len(tokens)} tokens and exceeds the available context size of "
            f"{limit}; {remedy}.",
            tokens=len(tokens),
            limit=limit,
        )
    gap = isinstance(asked, FillRequest) or fills_gap(tokenizer, tokens)
    return EncodedPrompt(array("I", tokens), end_tokens | tokenizer.end_tokens, gap)


def messages_of(asked: Any) -> list[Message]:
    """The messages of a conversation; raises an `InvalidRequestError` if they are invalid."""
    if not isinstance(asked, list | tuple):
        raise InvalidRequestError(f"Give messages in a list, not as {type(asked).__name__}.")
    for one in asked:
        if not (isinstance(one, Mapping) and {"role", "content"} <= one.keys()):
            raise InvalidRequestError(
                f"A message must have a `role` and a `content`, unlike {one!r}."
            )
    return [{**one, "content": _text_of(one["content"])} for one in asked]


def _text_of(content: Any) -> str:
    """The text of a message, whose parts, as OpenAI's clients send them, become paragraphs."""
    if not isinstance(content, list | tuple):
        content = [{"text": "" if content is None else content}]
    texts: list[Any] = [
        it.get("text")
        for it in content
        if isinstance(it, Mapping) and it.get("type", "text") == "text"
    ]
    if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(
            "The `content` of a message must be text, or a list of parts such as "
            '{"type": "text", "text": "Hi"}; this model reads nothing else.'
        )
    return "\n\n".join(texts)


def encode_references(
    tokenizer: Tokenizer, texts: Sequence[str], limit: int, sample_calls: Sequence[str] = ()
) -> list[list[int]]:
    """The ids of texts that an answer may repeat, the most important last, of at most `limit`
    tokens. Control tokens spelled out in `sample_calls`, which come first, count as such.

    An answer mostly repeats whole lines. So each text is encoded as if it followed a line break.
    """
    room = limit * tokenizer.longest_piece
    references: list[list[int]] = []
    for text in reversed(texts):
        references.append(tokenizer.encode_plain(f"\n{text[:room]}"))
        room -= len(text)
        if room <= 0:
            break
    calls = [tokenizer.encode(text, special_tokens=False) for text in sample_calls]
    return calls + references[::-1]
