"""ChatTemplate: the Jinja template that turns a conversation into text, as the user wants it.

By default it is the model's own. Another one, ChatML where the model has none, and variables for
the template can be set when the model is loaded, as with mlx-lm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from typing import Any, Final

from akunu_py.errors import InvalidRequestError, ModelLoadError

_CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What transformers called the default chat template."""


@dataclass(frozen=True)
class ChatTemplate:
    """What to change of a model's chat template.

    Attributes:
        source: a Jinja template instead of the model's own.
        use_default: whether a model without a template gets ChatML.
        args: variables for the template, such as `enable_thinking`.
    """

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
        """Gives the template to what `mlx_lm.utils.load_tokenizer` returned.

        Raises:
            ModelLoadError: if it is not valid Jinja.
            InvalidRequestError: if a variable has a reserved name.
        """
        for name in reserved_names().intersection(self.args):
            raise InvalidRequestError(f"The chat template's arguments cannot set `{name}`.")
        source = self.source
        if source is None and self.use_default and not wrapped.has_chat_template:
            source = _CHATML
        if source is not None:  # again, because transformers prefers the model's template file
            wrapped.chat_template, wrapped.has_chat_template = source, True
            _refuse_broken(wrapped)


@cache
def reserved_names() -> frozenset[str]:
    """The names that no variable of a template can have: they say what is rendered, and how."""
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
