"""What `bench seeds` measures: the cases, and how often. Plain Python, for the options' sake."""

from dataclasses import dataclass
from typing import Final

from akunu_py.bench.seeds.char_recipe import Recipe
from akunu_py.errors import InvalidRequestError

PROMPT_CHARACTERS: Final = 24
DRAFTS: Final = ("bigram", "trigram")
_LONGER: Final = 2


@dataclass(frozen=True)
class Case:
    """A setting that is measured.

    Attributes:
        name: what it is called in tables.
        drafts: K, how many tokens a round drafts.
        noise: how much of the uniform distribution is mixed into what drafts are drawn from.
        longer: whether answers are of the longer kind.
    """

    name: str
    drafts: int
    noise: float = 0.0
    longer: bool = False


CASES: Final = (
    Case("K=2", 2),
    Case("K=4", 4),
    Case("K=6", 6),
    Case("K=4, noise 0.5", 4, noise=0.5),
    Case("K=4, longer", 4, longer=True),
)


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        seeds: how often prompts are drawn anew.
        requests: prompts a seed.
        max_tokens: of an answer; one of the longer kind has twice as many.

    Raises:
        InvalidRequestError: if any of them is less than 1, or answers outgrow the model's context.
    """

    seeds: int = 3
    requests: int = 8
    max_tokens: int = 48

    def __post_init__(self) -> None:
        for name, value in (
            ("seeds", self.seeds),
            ("requests", self.requests),
            ("tokens", self.max_tokens),
        ):
            if value < 1:
                raise InvalidRequestError(f"The number of {name} must be 1 or more, not {value}.")
        context = Recipe().block
        most = (context - PROMPT_CHARACTERS) // _LONGER
        if self.max_tokens > most:
            raise InvalidRequestError(
                f"Answers may have {most} tokens, not {self.max_tokens}: the context of {context} "
                "holds a prompt and twice as many."
            )

    @property
    def longer_tokens(self) -> int:
        """Tokens of an answer of the longer kind."""
        return _LONGER * self.max_tokens

    @property
    def pairs(self) -> int:
        """How many pairs a whole run measures."""
        return self.seeds * self.requests * len(CASES) * len(DRAFTS)

    def tokens(self, case: Case) -> int:
        """How long answers of a case are."""
        return self.longer_tokens if case.longer else self.max_tokens


QUICK: Final = Size(seeds=1, requests=2, max_tokens=16)
