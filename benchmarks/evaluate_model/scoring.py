"""Scores a text with one forward of a model: its probability, and where greedy decoding agrees.

A greedy answer equals the expected one if and only if every expected token is the most likely one
after the tokens before it, so one forward decides it and no answer has to be generated.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import use_dense_weights

MIN_COPIED = 4


@dataclass(frozen=True)
class Score:
    """Whether each token of an answer was the most likely one, and the nats of the whole answer."""

    hits: npt.NDArray[np.bool_]
    nats: float

    @property
    def exact(self) -> bool:
        return bool(self.hits.all())


class Answer(NamedTuple):
    """A greedy answer, whether it ended by itself, and the log-probability of all its tokens."""

    text: str
    ended: bool
    log_probability: float = 0.0


class Scorer:
    """A model in dense float32, however it is stored; text is tokenized as for a prompt."""

    def __init__(self, folder: Path) -> None:
        find_backend()
        from mlx_lm import load  # noqa: PLC0415  (after the BLAS, and not for --help)

        self._model, self._tokenizer = load(str(folder))[:2]
        use_dense_weights(self._model)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def chat_prompt(self, turns: list[tuple[str, str]]) -> list[int]:
        """The tokens of a conversation up to the start of the assistant's answer."""
        messages = [{"role": role, "content": content} for role, content in turns]
        text: str = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return self.encode(text)

    def score(self, prompt: list[int], answer: list[int]) -> Score:
        """The score of `answer` after `prompt`; both must have at least one token."""
        import mlx.core as mx  # noqa: PLC0415

        logits = self._model(mx.array([prompt + answer[:-1]]))[0, len(prompt) - 1 :]
        logits = logits.astype(mx.float32)
        expected = mx.array(answer)
        chosen = mx.take_along_axis(logits, expected[:, None], axis=-1)[:, 0]
        nats = (mx.logsumexp(logits, axis=-1) - chosen).sum()
        hits = mx.argmax(logits, axis=-1) == expected
        return Score(np.array(hits), float(np.array(nats)))

    def answer(self, prompt: list[int], most: int) -> Answer:
        """The greedy answer, of at most `most` tokens."""
        import mlx.core as mx  # noqa: PLC0415
        from mlx_lm.generate import generate_step  # noqa: PLC0415

        ends = self._tokenizer.eos_token_ids
        tokens: list[int] = []
        total = 0.0
        for token, logprobs in generate_step(mx.array(prompt), self._model, max_tokens=most):
            total += float(np.array(logprobs[token]))
            if token in ends:
                return Answer(self._tokenizer.decode(tokens), ended=True, log_probability=total)
            tokens.append(token)
        return Answer(self._tokenizer.decode(tokens), ended=False, log_probability=total)


def copied_positions(before: list[int], answer: list[int]) -> list[int]:
    """Positions of `answer` in runs of at least `MIN_COPIED` tokens that occur in `before`."""
    blocks = difflib.SequenceMatcher(None, before, answer, autojunk=False).get_matching_blocks()
    return [
        block.b + offset
        for block in blocks
        if block.size >= MIN_COPIED
        for offset in range(block.size)
    ]
