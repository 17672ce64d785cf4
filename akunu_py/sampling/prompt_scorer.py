"""PromptScorer: how likely the model held each token of a prompt, told by its prefill."""

from collections.abc import Sequence
from typing import Final

import mlx.core as mx

from akunu_py.sampling.forward_logprobs import ForwardLogprobs, LogprobRequest
from akunu_py.sampling.token_logprob import PromptLogprobs, TokenLogprob

SCORING_STEP: Final = 128
"""Prompt tokens a forward: logits of whole vocabularies take much memory."""


class PromptScorer:
    """Collects the log-probabilities of one prompt.

    Args:
        prompt: its ids, 1 at least.
        alternatives: how many of the likeliest tokens to report with each.
    """

    def __init__(self, prompt: Sequence[int], alternatives: int) -> None:
        self._prompt = prompt
        self._logprob_request = LogprobRequest(alternatives)
        self._found: list[TokenLogprob] = []

    @property
    def logprobs(self) -> PromptLogprobs:
        """What has been found so far."""
        return PromptLogprobs(self._prompt[0], tuple(self._found))

    def take(self, logits: mx.array) -> None:
        """Takes the logits after the next positions, `[rows, vocabulary]`, and waits for them.

        Those after the last token of the prompt predict nothing of it.
        """
        start = len(self._found) + 1
        following = self._prompt[start : start + logits.shape[0]]
        if not following:
            return
        rows = logits[: len(following)]
        forward_logprobs = ForwardLogprobs(rows, mx.array(list(following)), self._logprob_request)
        mx.eval(forward_logprobs.lazy)
        self._found.extend(forward_logprobs.logprobs(following))
