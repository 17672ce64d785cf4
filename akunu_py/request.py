"""What comes out of the engine: events while an answer grows, a completion when it is whole."""

from dataclasses import dataclass, field

from akunu_py.round import Finish, Round
from akunu_py.sampling.logprobs import PromptLogprobs, TokenLogprob
from akunu_py.stats import Stats
from akunu_py.text.stream import Piece


@dataclass(frozen=True, slots=True)
class Event:
    """One round of an answer, as text.

    Attributes:
        round: its tokens, what was drafted, and the finish reason if the text ends with it.
        pieces: the text that can be shown now, one piece per token.
        stats: the request's sums up to this round.
        prompt_logprobs: the prompt's, if the request asked for them; once, before any token.
        stop: the stop string that the text ended with, if any.
        prompt_done: how many tokens of the prompt are computed or were cached, if the event only
            reports that.
    """

    round: Round
    pieces: tuple[Piece, ...]
    stats: Stats
    prompt_logprobs: PromptLogprobs | None = None
    stop: str | None = None
    prompt_done: int | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The emitted ids, end tokens left out."""
        return self.round.tokens

    @property
    def finish_reason(self) -> Finish | None:
        """Why the text ended; None while it continues."""
        return self.round.finish

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """One per token, if the request asked for them."""
        return self.round.logprobs

    @property
    def end_logprob(self) -> TokenLogprob | None:
        """The one of the end token that the text ended with, if the request asked for it."""
        return self.round.end_logprob

    @property
    def text(self) -> str:
        """The text of all pieces."""
        return "".join([piece.text for piece in self.pieces])


@dataclass
class Completion:
    """What a request generated: the sum of its events so far.

    Attributes:
        model: the name of the model.
        pieces: the text, in the pieces in which it was released.
        token_ids: the generated ids, without end tokens.
        finish_reason: why the text ended; CANCELLED until the last event says otherwise.
        stats: the request's statistics.
        logprobs: one per token, if the request asked for them.
        end_logprob: the one of the end token, if there is one and the request asked for it.
        prompt_logprobs: the prompt's, if the request asked for them.
        stop: the stop string that the text ended with, if any.
    """

    model: str
    pieces: list[Piece] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: Finish = Finish.CANCELLED
    stats: Stats = field(default_factory=Stats)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end_logprob: TokenLogprob | None = None
    prompt_logprobs: PromptLogprobs | None = None
    stop: str | None = None

    @property
    def text(self) -> str:
        """The text, up to a stop string."""
        return "".join([piece.text for piece in self.pieces])

    def add(self, event: Event) -> None:
        """Adds the next event."""
        self.pieces.extend(event.pieces)
        self.token_ids.extend(event.tokens)
        self.finish_reason = event.finish_reason or self.finish_reason
        self.stats = event.stats
        self.logprobs.extend(event.logprobs)
        self.end_logprob = event.end_logprob
        self.stop = event.stop
        self.prompt_logprobs = self.prompt_logprobs or event.prompt_logprobs
