"""What comes out of the engine: events while an answer grows, a completion when it is whole."""

from dataclasses import dataclass

from akunu_py.sampling.logprobs import PromptLogprobs, TokenLogprob
from akunu_py.stats import Finish, Round, Stats
from akunu_py.text.stream import Piece


@dataclass(frozen=True, slots=True)
class Event:
    """One round of an answer, as text.

    Attributes:
        round: its tokens, what was drafted, and the finish reason if the text ends with it.
        pieces: the text that can be shown now, a piece a token.
        stats: the request's running sums.
        prompt_logprobs: those of the prompt, if the request asked for them; once, before any token.
    """

    round: Round
    pieces: tuple[Piece, ...]
    stats: Stats
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The emitted ids, end tokens left out."""
        return self.round.tokens

    @property
    def finish_reason(self) -> Finish | None:
        """Why the text ended; None while it goes on."""
        return self.round.finish

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """One a token, if the request asked for them."""
        return self.round.logprobs

    @property
    def end_logprob(self) -> TokenLogprob | None:
        """That of the end token that the text ended with, if the request asked for it."""
        return self.round.end_logprob

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
