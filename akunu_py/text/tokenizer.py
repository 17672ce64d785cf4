"""Tokenizer: text to token ids and back, through mlx-lm's wrapper around the model's own, and
conversations as both, by a ChatTemplate.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from inspect import signature
from itertools import groupby
from math import floor
from operator import itemgetter
from secrets import randbelow
from threading import Lock
from typing import Any, Final

import numpy as np

from akunu_py.errors import (
    ContextOverflowError,
    InvalidRequestError,
    ModelLoadError,
    UnreadableRequestError,
)
from akunu_py.options import Reasoning
from akunu_py.text.answer_parser import AnswerFormat, answer_format_of
from akunu_py.text.sandbox import runs_away
from akunu_py.text.stream import Detokenizer, WholeTextDetokenizer

Message = Mapping[str, Any]

_SPACE: Final = "▁"
_BYTES: Final = 256
_ROUNDING: Final = 1e-6
_SHORT: Final = 1 << 16
"""Any text of this many characters is encoded quickly."""
_INSTANT: Final = 1 << 12
"""Other threads may wait while a text of this many characters is encoded: 6 ms at most."""

_CUT: Final = "".join(chr(0xFDD0 + randbelow(32)) for _ in range(16))
"""Cuts the spelling of a control token in two, so that it is encoded as text. No client can guess
it; code points that Unicode leaves to programs, which no template changes."""


class TokenBytes:
    """The bytes of the ids of a Hugging Face tokenizer, or of mlx-lm's wrapper around one.

    Decoding a single id does not give them: part of a character becomes a replacement sign, and
    some decoders drop a leading space. The spelling of the entry has both.
    """

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped
        self._added = frozenset(wrapped.added_tokens_decoder)
        self._alphabet = _byte_alphabet(wrapped)

    def of(self, token: int) -> bytes:
        """The bytes of one id; empty for an id that the tokenizer does not have."""
        spelling: str | None = self._wrapped.convert_ids_to_tokens(token)
        if spelling is None:
            return b""
        if token in self._added:
            return spelling.encode()
        if self._alphabet is not None:
            return bytes(self._alphabet[sign] for sign in spelling)
        if len(spelling) == len("<0x00>") and spelling.startswith("<0x"):
            return bytes.fromhex(spelling[3:-1])
        return spelling.replace(_SPACE, " ").encode()


class PieceLengths:
    """A lower bound on the tokens of a text: encoding megabytes takes seconds and cannot be
    interrupted, counting their bytes takes milliseconds.

    Assumes that every byte of a text belongs to a token that spells it, as in byte-level
    vocabularies and in those that fall back to bytes; `pieces` are the bytes of all entries.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        longest = [0] * _BYTES
        for piece in pieces:
            for byte in set(piece):
                longest[byte] = max(longest[byte], len(piece))
        self._shares = np.array([1 / length if length else 0.0 for length in longest])

    def least_tokens(self, text: str) -> int:
        """The bound for a text. Each byte counts as 1 / the length of the longest entry that has
        such a byte, so the bytes of one token add up to 1 at most."""
        octets = np.frombuffer(text.encode(errors="replace"), np.uint8)
        counts = np.bincount(octets, minlength=_BYTES)
        return floor(float(counts @ self._shares) + _ROUNDING)


class Tokenizer:
    """The tokenizer of a loaded model; any thread may use it.

    `wrapped` is what `mlx_lm.utils.load_tokenizer` returned. The `template_args` are variables for
    the chat template; those of a request replace them.
    """

    def __init__(self, wrapped: Any, template_args: Mapping[str, Any] | None = None) -> None:
        self.wrapped = wrapped
        self.template_args = dict(template_args or {})
        # Whether special tokens are recognised is a state of the tokenizer, not of the call.
        self._encoding = Lock()
        self.end_tokens: frozenset[int] = frozenset(wrapped.eos_token_ids)

    @property
    def template(self) -> str:
        source = self.wrapped.chat_template
        return source if isinstance(source, str) else ""

    @cached_property
    def answer_format(self) -> AnswerFormat:
        """The marks that the model puts around reasoning and tool calls."""
        return answer_format_of(self.wrapped, self.template)

    @cached_property
    def reasoning(self) -> Reasoning | None:
        """The reasoning that an answer in a chat may begin with; see `AnswerFormat.reasoning`."""
        if not self.answer_format.think_start or not self.has_chat_template:
            return None
        asked = self.render_chat([{"role": "user", "content": "?"}], open_answer=True)
        return self.answer_format.reasoning(asked)

    @cached_property
    def token_bytes(self) -> TokenBytes:
        return TokenBytes(self.wrapped)

    @cached_property
    def special_tokens(self) -> frozenset[int]:
        """The ids that spell no text, among them those that end an answer."""
        return self.end_tokens.union(self.control_tokens.values())

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """The ids of all control tokens, by their spellings."""
        added = self.wrapped.added_tokens_decoder.items()
        return {entry.content: token for token, entry in added if entry.special}

    @cached_property
    def grammar_tokens(self) -> dict[str, int]:
        """The ids of the tokens that a grammar has to name by their ids, by their spellings: those
        that llguidance takes for special, which are control tokens and added ones in brackets."""
        added = self.wrapped.added_tokens_decoder.items()
        return {
            entry.content: token
            for token, entry in added
            if entry.special or (entry.content.startswith("<") and entry.content.endswith(">"))
        }

    @cached_property
    def longest_piece(self) -> int:
        """Characters of the longest vocabulary entry: no token spells more of a text."""
        return max(map(len, self._vocabulary))

    @property
    def has_chat_template(self) -> bool:
        return bool(self.wrapped.has_chat_template)

    def encode(
        self, text: str, *, special_tokens: bool = True, most: int | None = None
    ) -> list[int]:
        """The ids of a prompt, with the model's opening token unless the text starts with it.

        Special tokens that are spelled out count as such. Without `special_tokens` it is only the
        text, as a continuation. A text that is far too long for `most` ids, whatever its ids are,
        is a `ContextOverflowError` before it is encoded.
        """
        if most is not None and (least := self._least_tokens(text, most)) > most:
            raise ContextOverflowError(
                f"The prompt has {len(text)} characters, at least {least} tokens, and "
                f"exceeds the available context size of {most}; shorten it.",
                tokens=least,
                limit=most,
            )
        opening = self.wrapped.bos_token
        add = special_tokens and (opening is None or not text.startswith(opening))
        first, *rest = text.split(_CUT)
        tokens = self._encode(first, add_special_tokens=add)
        return tokens + self._encode_parts(rest) if rest else tokens

    def count(self, text: str, *, most: int) -> int:
        """How many ids `encode` makes of a prompt; fewer, but more than `most`, of one that is far
        too long for these."""
        least = self._least_tokens(text, most)
        return least if least > most else len(self.encode(text))

    def _least_tokens(self, text: str, most: int) -> int:
        """A lower bound, which is 0 for a text that is quickly encoded."""
        is_long = len(text) > max(most, _SHORT)
        return self._piece_lengths.least_tokens(text) if is_long else 0

    def encode_plain(self, text: str) -> list[int]:
        """The ids of a text; special tokens spelled out in it are plain text."""
        return self._encode(text, add_special_tokens=False, split_special_tokens=True)

    @property
    def is_encoding(self) -> bool:
        """Whether a call would have to wait for that of another thread."""
        return self._encoding.locked()

    def _encode(self, text: str, **how: bool) -> list[int]:
        with self._encoding:
            if len(text) > _INSTANT and hasattr(self.wrapped, "_tokenizer"):
                # A batch of one: other threads run meanwhile.
                return list(self.wrapped._tokenizer([text], verbose=False, **how).input_ids[0])
            return list(self.wrapped.encode(text, verbose=False, **how))

    def _encode_parts(self, parts: list[str]) -> list[int]:
        """The ids of what may be thousands of short texts."""
        rust = getattr(self.wrapped, "backend_tokenizer", None)
        if rust is None:
            return [id_ for part in parts for id_ in self._encode(part, add_special_tokens=False)]
        with self._encoding:  # `transformers` would take several times as long
            rust.encode_special_tokens = False
            encoded = rust.encode_batch_fast(parts, add_special_tokens=False)
        return [id_ for part in encoded for id_ in part.ids]

    def as_text(self, given: Any) -> Any:
        """A text, messages or tools in which no control token can be recognised."""
        if isinstance(given, str):
            return self._control_tokens.sub(
                lambda found: f"{found[0][0]}{_CUT}{found[0][1:]}", given
            )
        if isinstance(given, Mapping):
            return {key: self.as_text(value) for key, value in given.items()}
        if isinstance(given, list | tuple):
            return [self.as_text(value) for value in given]
        return given

    @cached_property
    def _control_tokens(self) -> re.Pattern[str]:
        """The spellings of all control tokens; never matches if there are none."""
        return re.compile(any_of(self.control_tokens) or r"(?!)")

    @staticmethod
    def readable(rendered: str) -> str:
        """What `render_chat` returned, without the marks that only `encode` knows."""
        return rendered.replace(_CUT, "")

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.wrapped.decode(list(tokens)))

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer | WholeTextDetokenizer:
        rust = getattr(self.wrapped, "backend_tokenizer", None)
        return WholeTextDetokenizer(self.decode) if rust is None else Detokenizer(rust, prompt)

    def token_id(self, token: str) -> int | None:
        return self._vocabulary.get(token)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        open_answer: bool,
        tools: Sequence[Any] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> str:
        """A conversation as text for `encode`, by the model's template; `readable` shows it to
        people. Raises InvalidRequestError if the model has no template, or it refuses these
        messages.

        Control tokens that are spelled out in a message or a tool are text: only the template can
        end a turn. In the assistant's messages they are what the model wrote. `open_answer` ends it
        where the assistant's answer begins; `tools` are in OpenAI's form; `settings` are further
        variables of the template, such as `enable_thinking`; if that is false, a block of reasoning
        that the template opens is closed, as in llama-server.
        """
        if not self.has_chat_template:
            raise InvalidRequestError(
                "This model has no chat template; use `generate` with a plain prompt instead, or "
                "--use-default-chat-template."
            )
        variables = self.template_args | dict(settings or {})
        if variables.get("reasoning_effort") == "none":  # OpenAI's word
            variables.setdefault("enable_thinking", False)
        if "enable_thinking" in variables and "enable_thinking" not in self.template:
            variables.setdefault("thinking", variables["enable_thinking"])  # DeepSeek V3.1's name
        try:
            rendered = str(self.wrapped.apply_chat_template(
                [
                    dict(message) if message["role"] == "assistant" else self.as_text(message)
                    for message in messages
                ],
                tokenize=False,
                add_generation_prompt=open_answer,
                tools=self.as_text(tools) or None,
                **variables,
            ))  # fmt: skip
        except Exception as error:  # the template is the model's own code and may raise anything
            raise UnreadableRequestError(
                f"The model's chat template refuses this conversation: {error}"
            ) from error
        if open_answer and False in (variables.get("enable_thinking"), variables.get("thinking")):
            reasoning = self.answer_format.reasoning(rendered)
            if reasoning is not None and reasoning.is_open:  # whatever the template was told
                rendered += self.answer_format.begin_text("", reasoning)
        return rendered

    @cached_property
    def _piece_lengths(self) -> PieceLengths:
        return PieceLengths(map(self.token_bytes.of, self._vocabulary.values()))

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        """The ids of all entries; `get_vocab` makes a new dictionary each time."""
        return dict(self.wrapped.get_vocab())


def any_of(words: Iterable[str]) -> str:
    """The expression of some words, the longest first, as a tree: few of a thousand words are tried
    at each place of a text."""
    known, ways = set(words), list[str]()
    for sign, group in groupby(sorted(filter(None, known)), key=itemgetter(0)):
        ways.append(re.escape(sign) + any_of(word[1:] for word in group))
    if len(ways) == 1 and "" not in known:
        return ways[0]
    return f"(?:{'|'.join(ways)}){'?' if '' in known else ''}" if ways else ""


def _byte_alphabet(wrapped: Any) -> dict[str, int] | None:
    """GPT-2's signs for bytes, if each sign of an entry is a byte, as in many tokenizers since."""
    rust = getattr(wrapped, "backend_tokenizer", None)
    decoder = None if rust is None else rust.decoder
    if decoder is None or b'"ByteLevel"' not in decoder.__getstate__():
        return None
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # noqa: PLC0415  (slow)

    return {sign: byte for byte, sign in bytes_to_unicode().items()}


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
