"""Conversations as text and as token ids: ChatTemplate and ChatTranscript.

The ids of an answer are kept as they were generated, because encoding its text again might split it
differently. So the prompt of the next turn begins with the ids that the cache holds already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from typing import Any, Final

from akunu_py.errors import InvalidRequestError, ModelLoadError
from akunu_py.text.tokenizer import Message, Tokenizer
from akunu_py.text.trial import runs_away

_CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What transformers called the default chat template."""


@dataclass(frozen=True)
class ChatTemplate:
    """What to change of the Jinja template that turns a conversation into text: its `source`, and
    variables such as `enable_thinking`. With `use_default`, a model without one gets ChatML."""

    source: str | None = None
    use_default: bool = False
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokenizer_config(self) -> dict[str, Any]:
        """The settings to load the tokenizer with. mlx-lm reads the model's format of tool calls
        from the template; `chat_template_type` names one of its templates in Python."""
        if self.source is None:
            return {}
        return {"chat_template": self.source, "chat_template_type": None}

    def install(self, wrapped: Any) -> None:
        """Gives the template to what `mlx_lm.utils.load_tokenizer` returned. One that is not valid
        Jinja, or takes far too much time or memory, is a `ModelLoadError`.
        """
        for name in reserved_names().intersection(self.args):
            raise InvalidRequestError(f"The chat template's arguments cannot set `{name}`.")
        source = self.source
        if source is None and self.use_default and not wrapped.has_chat_template:
            source = _CHATML
        if source is not None:  # again, because transformers prefers the model's template file
            wrapped.chat_template, wrapped.has_chat_template = source, True
        used = wrapped.chat_template
        for each in used.values() if isinstance(used, dict) else (used,):
            if isinstance(each, str) and runs_away(each):
                why = "The chat template takes too much time or memory; see --chat-template."
                raise ModelLoadError(why)
        if source is not None:
            _refuse_broken(wrapped)


@cache
def reserved_names() -> frozenset[str]:
    """The names that no variable of a template can have."""
    from transformers import PreTrainedTokenizerBase  # noqa: PLC0415  (loads slowly)

    render = signature(PreTrainedTokenizerBase.apply_chat_template)
    return frozenset((*render.parameters, "messages"))


def _refuse_broken(wrapped: Any) -> None:
    try:
        wrapped.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    except Exception as error:  # of Jinja; a good template may refuse this conversation
        if type(error).__name__ == "TemplateSyntaxError":
            reason = f"in line {getattr(error, 'lineno', 1)}: {str(error).rstrip('.')}"
            raise ModelLoadError(f"The chat template is not valid Jinja, {reason}.") from None


@dataclass(frozen=True)
class ChatTranscript:
    """The messages of a conversation, and the ids that the model has seen of them, which only grow
    at the end."""

    tokenizer: Tokenizer
    messages: Sequence[Message] = ()
    _seen_text: str = ""
    _seen_tokens: Sequence[int] = ()

    def prompt_for(self, question: str) -> list[int]:
        """The ids that ask for an answer to `question`."""
        _, text = self._ask(question)
        if self._seen_text and text.startswith(self._seen_text):
            rest = text[len(self._seen_text) :]
            return [*self._seen_tokens, *self.tokenizer.encode(rest, special_tokens=False)]
        return self.tokenizer.encode(text)

    def after_turn(
        self, question: str, prompt: list[int], answer: str, tokens: list[int]
    ) -> "ChatTranscript":
        """The conversation after a question and its answer, finished or not: `prompt` has the ids
        that `prompt_for` returned for the question, `tokens` the generated ids of the answer."""
        asked, text = self._ask(question)
        messages = [*asked, {"role": "assistant", "content": answer}]
        seen = text + self.tokenizer.decode(tokens)
        return ChatTranscript(self.tokenizer, messages, seen, [*prompt, *tokens])

    def _ask(self, question: str) -> tuple[list[Message], str]:
        asked = [*self.messages, {"role": "user", "content": question}]
        return asked, self.tokenizer.render_chat(asked, open_answer=True)
