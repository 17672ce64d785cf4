"""Log-probabilities as plain records, without MLX: what a request asks for, and what it gets."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogprobRequest:
    """What to report about every forward pass.

    Attributes:
        logprobs: alternatives to report with each token's log-probability; None reports nothing.
        drawn: whether to report the distribution that tokens are sampled from.
    """

    logprobs: int | None = None
    drawn: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a token, and the most likely tokens at its position.

    The distribution is the model's own: before bias, penalties, constraints, filters and
    temperature, as with vLLM (`raw_logprobs`) and OpenAI; or, if asked for, the one after these, as
    with llama.cpp's `post_sampling_probs`.

    Attributes:
        token: an emitted id, or one of a prompt.
        logprob: the natural logarithm of its probability.
        alternatives: ids and log-probabilities of the most likely tokens, the most likely first;
            the token itself is among them only if it is that likely.
    """

    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The first id of a prompt, which nothing predicts, and an entry for each other id."""

    first: int
    following: tuple[TokenLogprob, ...]
