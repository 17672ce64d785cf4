"""What comes out of the engine: events while an answer grows, a completion when it is whole."""

from dataclasses import dataclass

from akunu_py.sampling.logprobs import PromptLogprobs, TokenLogprob
from akunu_py.stats import Finish, Stats
from akunu_py.text.stream import Piece


@dataclass(frozen=True, slots=True)
class Event:
    """What one round brought.

    Attributes:
        tokens: the ids it emitted, end tokens left out.
        pieces: the text it released, a piece a token.
        stats: the request's running sums.
        finish_reason: why the text ended; None while it goes on.
        logprobs: one a token, if they were asked for.
        end_logprob: that of the end token that the text ended with, likewise.
        prompt_logprobs: those of the prompt, if they were asked for; once, before any token.
    """

    tokens: tuple[int, ...]
    pieces: tuple[Piece, ...]
    stats: Stats
    finish_reason: Finish | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    end_logprob: TokenLogprob | None = None
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def text(self) -> str:
        """The text of all pieces."""
        return "".join([piece.text for piece in self.pieces])


@dataclass(frozen=True)
class Completion:
    """A whole answer.

    Attributes:
        model: the name of the model that gave it.
        text: what it says, up to a stop.
        token_ids: its ids, end tokens left out.
        finish_reason: why it ended.
        stats: what it took.
        logprobs: one a token, if they were asked for.
        prompt_logprobs: those of the prompt, if they were asked for.
    """

    model: str
    text: str
    token_ids: list[int]
    finish_reason: Finish
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: PromptLogprobs | None = None
