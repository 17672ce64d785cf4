"""TokenLogprob: how likely the model held a token, and what it held likely instead."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's place in the model's own distribution at its position.

    The distribution is that of the logits as they leave the model: before bias, penalties,
    constraints, filters and temperature. So do llama.cpp (unless asked for `post_sampling_probs`),
    vLLM (`raw_logprobs`) and OpenAI, whose values a bias does not move either.

    Attributes:
        token: the id that was emitted, or stands in a prompt.
        logprob: the natural logarithm of its probability.
        alternatives: ids and log-probabilities of the likeliest tokens, the likeliest first; the
            token itself is among them only where it is that likely.
    """

    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The places of a prompt's tokens.

    Attributes:
        first: the id that it begins with, which nothing predicts.
        following: one entry for every other token.
    """

    first: int
    following: tuple[TokenLogprob, ...]
