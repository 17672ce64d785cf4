"""TokenLogprob: how likely the model held an emitted token, and what it held likely instead."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's place in the model's own distribution at its position.

    The distribution is that of the logits as they leave the model: before bias, penalties,
    constraints, filters and temperature. So do llama.cpp (unless asked for `post_sampling_probs`),
    vLLM (`raw_logprobs`) and OpenAI, whose values a bias does not move either.

    Attributes:
        token: the id that was emitted.
        logprob: the natural logarithm of its probability.
        alternatives: ids and log-probabilities of the likeliest tokens, the likeliest first; the
            emitted one is among them only where it is that likely.
    """

    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()
