"""What comes out of the engine: events while an answer grows, a completion when it is whole."""

from dataclasses import dataclass, field

from akunu_py.sampling.token_logprob import PromptLogprobs, TokenLogprob
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


@dataclass
class Completion:
    """What a request generated: the sum of its events so far.

    Attributes:
        model: the name of the model.
        pieces: the text, in the pieces in which it was released.
        token_ids: the generated ids, without end tokens.
        finish_reason: why the text ended; CANCELLED until the last event says otherwise.
        stats: the request's statistics.
        logprobs: one for each token, if they were asked for.
        end_logprob: that of the end token, likewise.
        prompt_logprobs: those of the prompt, if they were asked for.
    """

    model: str
    pieces: list[Piece] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: Finish = Finish.CANCELLED
    stats: Stats = field(default_factory=Stats)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end_logprob: TokenLogprob | None = None
    prompt_logprobs: PromptLogprobs | None = None

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
        self.prompt_logprobs = self.prompt_logprobs or event.prompt_logprobs
