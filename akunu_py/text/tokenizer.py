"""Tokenizer: text to token ids and back, through mlx-lm's wrapper around the model's own."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from akunu_py.errors import InvalidRequestError, ModelLoadError
from akunu_py.model_files import find_model
from akunu_py.text.answer_format import AnswerFormat
from akunu_py.text.detokenizer import Detokenizer, WholeTextDetokenizer
from akunu_py.text.token_bytes import TokenBytes

Message = Mapping[str, Any]


class Tokenizer:
    """The tokenizer of a loaded model; any thread may use it.

    Args:
        wrapped: what `mlx_lm.utils.load_tokenizer` returned.
    """

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        # How special tokens are read is a state of the tokenizer, and not one of the call.
        self._encoding = Lock()
        self.end_tokens: frozenset[int] = frozenset(wrapped.eos_token_ids)

    @cached_property
    def answer_format(self) -> AnswerFormat:
        """What the model wraps reasoning and tool calls in."""
        return AnswerFormat.of(self.wrapped)

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """What each id stands for."""
        return TokenBytes(self.wrapped)

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        """The ids of all entries; the tokenizer makes this anew for whoever asks it."""
        return dict(self.wrapped.get_vocab())

    @property
    def has_chat_template(self) -> bool:
        """Whether the model came with a template for conversations."""
        return bool(self.wrapped.has_chat_template)

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """The ids of a prompt, with the model's opening token unless the text starts with it.

        Args:
            text: any text; spelled-out special tokens count as such.
            special_tokens: False encodes the text alone, as a continuation.
        """
        opening = self.wrapped.bos_token
        add = special_tokens and (opening is None or not text.startswith(opening))
        with self._encoding:
            return list(self.wrapped.encode(text, add_special_tokens=add, verbose=False))

    def encode_plain(self, text: str) -> list[int]:
        """The ids of text in which nothing is special, whatever it spells out."""
        with self._encoding:
            ids = self.wrapped.encode(
                text, add_special_tokens=False, split_special_tokens=True, verbose=False
            )
            return list(ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some ids, special tokens spelled out."""
        return str(self.wrapped.decode(list(tokens)))

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer | WholeTextDetokenizer:
        """A fresh detokenizer for the answer to `prompt`."""
        rust = getattr(self.wrapped, "backend_tokenizer", None)
        return WholeTextDetokenizer(self.decode) if rust is None else Detokenizer(rust, prompt)

    def token_id(self, token: str) -> int | None:
        """The id of one vocabulary entry, or None if the model has no such entry."""
        return self._vocabulary.get(token)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        open_answer: bool,
        tools: Sequence[Any] = (),
        settings: Mapping[str, bool | str] | None = None,
    ) -> str:
        """A conversation as text, by the model's template.

        Args:
            messages: dictionaries with `role` and `content`.
            open_answer: whether to end where the assistant is to speak.
            tools: that it may call, in OpenAI's form; for templates that know them.
            settings: further names that a template may look at, `enable_thinking` say.

        Raises:
            InvalidRequestError: if the model has no template, or it refuses these messages.
        """
        if not self.has_chat_template:
            raise InvalidRequestError(
                "This model has no chat template; use `generate` with a plain prompt instead."
            )
        try:
            return str(
                self.wrapped.apply_chat_template(
                    [dict(message) for message in messages],
                    tokenize=False,
                    add_generation_prompt=open_answer,
                    tools=list(tools) or None,
                    **(settings or {}),
                )
            )
        except Exception as error:  # the template is the model's own code and raises what it likes
            raise InvalidRequestError(
                f"The model's chat template refuses this conversation: {error}"
            ) from error


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model whose weights are not needed.

    Args:
        name: the bundled model's name, a folder, or `owner/name` on the hub.

    Raises:
        ModelLoadError: if there is no such model, or its tokenizer cannot be read.
    """
    from mlx_lm import utils  # noqa: PLC0415  (brings MLX along, which a tokenizer does not need)

    folder = find_model(name)
    try:
        ends = utils.load_config(folder).get("eos_token_id")
        return Tokenizer(utils.load_tokenizer(folder, eos_token_ids=ends))
    except Exception as error:  # transformers raises nearly anything on a broken tokenizer
        raise ModelLoadError(f"The tokenizer in {folder} does not load: {error}") from error
