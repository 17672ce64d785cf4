"""Log-probabilities as OpenAI's two endpoints tell them.

Tokens are spelled with backslashes where they are only a part of a character.
"""

import codecs
from collections.abc import Sequence
from typing import Any, Final

from akunu_py.sampling.logprobs import PromptLogprobs, TokenLogprob
from akunu_py.text.token_bytes import TokenBytes

_LEAST: Final = -9999.0
"""What OpenAI tells of a token that is as good as impossible; JSON knows no infinity."""


class CompletionLogprobs:
    """Those of `/v1/completions`: parallel lists, with where each token begins in the text.

    Args:
        spelling: of the tokens.
    """

    def __init__(self, spelling: TokenBytes) -> None:
        self._spelling = spelling
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take_prompt(self, prompt: PromptLogprobs, text: str) -> dict[str, Any]:
        """The lists for a prompt that is repeated as `text`; its first token has none."""
        first = self._spelling.of(prompt.first)
        if text.encode(errors="replace").startswith(first):  # not if the tokenizer put it there
            self._offset = len(self._decoder.decode(first))
        following = self.take(prompt.following)
        opening = {
            "tokens": _spell(self._spelling, prompt.first),
            "token_logprobs": None,
            "top_logprobs": None,
            "text_offset": 0,
        }
        return {name: [opening[name], *values] for name, values in following.items()}

    def take(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The lists for the next tokens; the alternatives always include the token itself."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._spelling.of(entry.token)))
        return {
            "tokens": [_spell(self._spelling, entry.token) for entry in entries],
            "token_logprobs": [_bounded(entry.logprob) for entry in entries],
            "top_logprobs": [
                {
                    _spell(self._spelling, token): _bounded(logprob)
                    for token, logprob in ((entry.token, entry.logprob), *entry.alternatives)
                }
                for entry in entries
            ],
            "text_offset": offsets,
        }


def chat_logprobs(spelling: TokenBytes, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Those of `/v1/chat/completions`: one object a token."""
    return {
        "content": [
            _object(spelling, entry.token, entry.logprob)
            | {"top_logprobs": [_object(spelling, *other) for other in entry.alternatives]}
            for entry in entries
        ],
        "refusal": None,
    }


def _object(spelling: TokenBytes, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": _spell(spelling, token),
        "bytes": list(spelling.of(token)),
        "logprob": _bounded(logprob),
    }


def _spell(spelling: TokenBytes, token: int) -> str:
    return spelling.of(token).decode(errors="backslashreplace")


def _bounded(logprob: float) -> float:
    return max(logprob, _LEAST)
