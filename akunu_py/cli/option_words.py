"""Options as words: how a conversation's settings are spelled, and how they are told."""

from dataclasses import replace
from typing import Final

from akunu_py.cli.report import count
from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options, Sampling

SWITCH: Final = ("on", "off")
AS_MANY_AS_PAY: Final = "auto"
PROCESSORS: Final = ("greedy", "sample", "top-k", "top-p", "min-p", "seed")
PROCESSOR_USAGE: Final = "greedy, or any of sample 0.8, top-k 40, top-p 0.9, min-p 0.05, seed 1"


def describe_options(options: Options) -> str:
    """How answers are made, in one line."""
    sampling = options.sampling
    limit, drafts = options.max_tokens, options.num_draft_tokens
    length = "as many as pay" if drafts is None else f"up to {drafts}"
    penalises = sampling.repetition_penalty != 1
    facts = [
        "greedy" if sampling.greedy else f"sample {sampling.temperature:g}",
        f"top-k {sampling.top_k}" if sampling.top_k else "",
        f"top-p {sampling.top_p:g}" if sampling.top_p < 1 else "",
        f"min-p {sampling.min_p:g}" if sampling.min_p else "",
        "" if sampling.seed is None else f"seed {sampling.seed}",
        f"repetition penalty {sampling.repetition_penalty:g}" if penalises else "",
        f"presence penalty {sampling.presence_penalty:g}" if sampling.presence_penalty else "",
        f"frequency penalty {sampling.frequency_penalty:g}" if sampling.frequency_penalty else "",
        f"{len(sampling.logit_bias)} biased" if sampling.logit_bias else "",
        f"drafter {options.drafter}, {length}" if options.drafts else "no drafts",
        "exact" if options.exact else "",
        "no token limit" if limit is None else f"up to {count(limit, 'token')}",
    ]
    return " · ".join(fact for fact in facts if fact)


def read_sampling(words: str, now: Sampling) -> Sampling:
    """Reads `greedy`, or any of `sample T`, `top-k K`, `top-p P`, `min-p P` and `seed N`.

    Args:
        words: name the filters that shall hold from now on; `sample` alone means a temperature
            of 1.
        now: keeps its temperature, if it has one, and its seed.

    Raises:
        InvalidRequestError: if the words make no sense.
    """
    if words == "greedy":
        return replace(now, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
    given: dict[str, str] = {}
    left = words.split()
    while left:
        name = left.pop(0)
        if name not in PROCESSORS or name == "greedy":
            raise InvalidRequestError(f"There is no processor {name} here; try {PROCESSOR_USAGE}.")
        bare = name == "sample" and (not left or left[0] in PROCESSORS)
        given[name] = "1" if bare else left.pop(0) if left else ""
    temperature = "1" if now.greedy else str(now.temperature)
    return replace(
        now,
        temperature=read_number(given.get("sample", temperature), PROCESSOR_USAGE),
        top_p=read_number(given.get("top-p", "1"), PROCESSOR_USAGE),
        top_k=read_whole_number(given.get("top-k", "0"), PROCESSOR_USAGE),
        min_p=read_number(given.get("min-p", "0"), PROCESSOR_USAGE),
        seed=read_whole_number(given["seed"], PROCESSOR_USAGE) if "seed" in given else now.seed,
    )


def read_whole_number(word: str, usage: str) -> int:
    """Reads an integer.

    Raises:
        InvalidRequestError: if it is none; the text shows the usage.
    """
    try:
        return int(word)
    except ValueError:
        raise InvalidRequestError(f"{word!r} is not a whole number: {usage}.") from None


def read_number(word: str, usage: str) -> float:
    """Reads a number; see `read_whole_number`."""
    try:
        return float(word)
    except ValueError:
        raise InvalidRequestError(f"{word!r} is not a number: {usage}.") from None


def read_switch(word: str, usage: str) -> bool:
    """Reads `on` or `off`; see `read_whole_number`."""
    if word not in SWITCH:
        raise InvalidRequestError(f"{word!r} is neither on nor off: {usage}.")
    return word == SWITCH[0]
