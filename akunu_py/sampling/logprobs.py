"""Log-probabilities as plain records, without MLX: what a request asks for, and what it gets."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogprobRequest:
    """What to report about every forward pass: alternatives to each token (None: nothing), and
    whether of the distribution that tokens are `drawn` from.
    """

    logprobs: int | None = None
    drawn: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural log-probability of a token, and ids and those of the most likely ones at its
    position, the most likely first; the token itself is among them only if it is that likely.

    The distribution is the model's own: before bias, penalties, constraints, filters and
    temperature, as with vLLM (`raw_logprobs`) and OpenAI; or, if asked for, the one after these, as
    with llama.cpp's `post_sampling_probs`.
    """

    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The first id of a prompt, which nothing predicts, and an entry for each other id."""

    first: int
    following: tuple[TokenLogprob, ...]
