"""What goes into the engine and what comes out: options in; events and completions out."""

from dataclasses import dataclass, field
from typing import Final

from akunu_py.errors import InvalidRequestError
from akunu_py.sampling import Sampling
from akunu_py.stats import Finish, Stats
from akunu_py.text.stream import Piece
from akunu_py.token_buffer import DEFAULT_DRAFT_TOKENS

DEFAULT_MAX_TOKENS: Final = 256


@dataclass(frozen=True)
class Options:
    """What a request asks for, besides its prompt.

    Attributes:
        max_tokens: how many tokens to generate at most; None goes on to the context's end, and 0
            only computes the prompt's cache.
        sampling: how tokens are chosen; greedy by default.
        stop: strings to stop at; none of them appears in the text.
        drafter: who drafts; `auto` is the recommended one, `none` decodes plainly.
        num_draft_tokens: the most drafts that one forward verifies; 0 decodes plainly.

    Raises:
        InvalidRequestError: if `max_tokens` is negative.
    """

    max_tokens: int | None = DEFAULT_MAX_TOKENS
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    drafter: str = "auto"
    num_draft_tokens: int = DEFAULT_DRAFT_TOKENS

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InvalidRequestError(
                f"The number of tokens to generate must be 0 or more, not {self.max_tokens}."
            )


@dataclass(frozen=True, slots=True)
class Event:
    """What one round brought.

    Attributes:
        tokens: the ids it emitted, end tokens left out.
        pieces: the text it released, a piece a token.
        stats: the request's running sums.
        finish_reason: why the text ended; None while it goes on.
    """

    tokens: tuple[int, ...]
    pieces: tuple[Piece, ...]
    stats: Stats
    finish_reason: Finish | None = None

    @property
    def text(self) -> str:
        """The text of all pieces."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True)
class Completion:
    """A whole answer.

    Attributes:
        model: the name of the model that gave it.
        text: what it says, up to a stop.
        token_ids: its ids, end tokens left out.
        finish_reason: why it ended.
        stats: what it took.
    """

    model: str
    text: str
    token_ids: list[int]
    finish_reason: Finish
    stats: Stats
