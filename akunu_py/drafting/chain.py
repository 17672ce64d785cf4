"""Chain: drafts token by token with a network, the model's own head or a second, smaller model.

Each guess takes time, so the planner decides whether to ask, and how far to go. If the network
guesses the copied token, the copy is likelier to be right, and the draft continues with it; it also
continues with the copy that the drafter would make after the guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import product
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.tokens import Origin

if TYPE_CHECKING:
    from akunu_py.cache.kv_cache import HeadPairs

_CLASSES: Final = 10
"""A rate is learnt for each tenth of how likely a network finds its guess."""
_POSITIONS: Final = 3
"""There are rates for the first guess, for the second, and for all later ones."""
_DOUBTED: Final = 0.4
"""The initial belief: a guess that the copy agrees with is only this fraction as likely to be
wrong."""
_RISE: Final = 0.1
_FALL: Final = 0.3
"""How fast the usual time of a guess follows."""
MOST_RISE: Final = 3.0
"""A pause counts as at most this many usual times."""


CopyAfter = Callable[[Sequence[int], int], Draft]
"""The copy to draft if some tokens were emitted, of at most some length."""


class Guess(NamedTuple):
    """A guess at the next token, and how likely the network finds it."""

    token: int
    prob: float


class Guesser(Protocol):
    """A network that guesses one token after another; its drafts have `name` as their source."""

    name: Origin

    def begin(self, prompt: Sequence[int], head_cache: HeadPairs | None = None) -> None:
        """Starts a request; the cache is that of the model's own head, if it has one."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens that were emitted."""

    @property
    def is_able(self) -> bool:
        """Whether it can guess after the tokens so far, at once or once it has read them."""
        return True

    @property
    def reading_s(self) -> float:
        """How long it takes to read what it has not read yet, in seconds, as far as that is known
        and counts."""
        return 0.0

    def first(self, limit: int) -> Guess | None:
        """A guess at the next token, the first of at most `limit`; None if it has none now."""

    def after(self, token: int) -> Guess | None:
        """A guess at the token after the last guess, which was `token`."""

    def stop(self) -> None:
        """Forgets what was guessed."""


class Chain:
    """The guesses of a network for one request. `guess_s` is how long a guess usually takes, with
    the copy after it, in seconds; 0 before the first. `guesses_s` is how long the guesses for the
    last draft took, and `spent_s` how long all guesses took since it was set to 0. The first guess
    of a request reads the prompt, so `guesses_s` counts it as a usual one, and `guess_s` does not
    learn from it.
    """

    def __init__(self, guesser: Guesser, rates: AcceptanceRates, guess_s: float = 0.0) -> None:
        self._guesser = guesser
        self.copy_after: CopyAfter = lambda *_: NO_DRAFT
        self.name = guesser.name
        self._rates = rates
        self._made: list[tuple[int, Hashable]] = []
        self.guess_s = guess_s
        self.guesses_s = self.spent_s = 0.0
        self._has_read = False
        self._emitted = 0

    def begin(self, prompt: Sequence[int], head_cache: HeadPairs | None = None) -> None:
        """Starts a request; see `Guesser.begin`."""
        self._guesser.begin(prompt, head_cache)
        self._has_read = False
        self._emitted = 0

    @property
    def is_able(self) -> bool:
        """Whether its network can guess at all after the tokens so far."""
        return self._guesser.is_able

    def is_worth_reading(self, saving_s: float) -> bool:
        """Whether reading the prompt takes no longer than guesses would have saved so far, at
        `saving_s` per token. Nobody knows how long an answer will be; by this rule, which is that
        of the ski rental problem, an answer loses at most the time of reading."""
        return self._has_read or self._guesser.reading_s <= saving_s * self._emitted

    def rate(self, position: int) -> float:
        """How likely a guess is to be right at a position of a draft, ignoring the network's own
        confidence."""
        at = min(position, _POSITIONS - 1)
        return self._rates.of((self.name, at), self._odds(at))

    def _odds(self, position: int) -> float:
        """The odds of a guess by the rate at the position before it. Only the difference from that
        rate is learnt: a guess that does not seem to pay is not made, so a rate of its own would
        never rise again."""
        if position == 0:
            return 1.0
        before = self.rate(position - 1)
        return before / (1.0 - before)

    def learn(self, tokens: Sequence[int]) -> None:
        """Appends emitted tokens, and compares the guesses with them."""
        for position, ((guess, kind), token) in enumerate(zip(self._made, tokens, strict=False)):
            at = min(position, _POSITIONS - 1)
            self._rates.learn(kind, guess == token)
            self._rates.learn((self.name, at), guess == token, self._odds(at))
            if guess != token:
                break
        self._made = []
        self._emitted += len(tokens)
        self._guesser.extend(tokens)

    def drafts(
        self, copy: Draft, limit: int, goes_on: Callable[[Draft, Draft, float], bool]
    ) -> list[Draft]:
        """The drafts to choose from: guesses that go on with a copy where there is one, and the
        given copy if they differ. `goes_on` takes the guesses, the draft that they make with the
        copy after them, and how likely another guess is right; it says whether to make it.
        """
        tokens, probs = list[int](), list[float]()
        rest = copy = self._with_probs(copy)
        self._made, self.guesses_s = [], 0.0
        begun = perf_counter()
        guess = self._guesser.first(limit)
        is_copied, agreed = bool(copy), 0
        while guess is not None:
            at = len(tokens)
            agrees = bool(rest) and rest.tokens[0] == guess.token
            is_copied = is_copied and agrees
            kind = _kind(self.name, agrees, at, guess.prob)
            prob = self._rates.of(kind)
            self._made.append((guess.token, kind))
            tokens.append(guess.token)
            probs.append(max(prob, rest.accept_probs[0]) if agrees else prob)
            at, agreed = at + 1, agreed + is_copied
            if agrees and len(rest) > 1:
                rest = replace(rest, tokens=rest.tokens[1:], accept_probs=rest.accept_probs[1:])
            else:
                rest = self._with_probs(self.copy_after(tokens, limit - at))
            guessed = Draft(tuple(tokens), self.name, accept_probs=tuple(probs))
            with_copy = replace(
                copy if is_copied else guessed,
                tokens=(*tokens, *rest.tokens),
                accept_probs=(*probs, *rest.accept_probs),
            )
            self._spend(perf_counter() - begun)
            if at >= limit:
                break
            if not goes_on(guessed, with_copy, self.rate(at)):
                if at < _POSITIONS:
                    self._rates.forget((self.name, at))
                break
            begun = perf_counter()
            guess = self._guesser.after(guess.token)
        if not tokens:
            self.spent_s += perf_counter() - begun
            return [copy]
        self._guesser.stop()
        if is_copied or not copy:
            return [with_copy]
        copy = replace(copy, accept_probs=(*probs[:agreed], *copy.accept_probs[agreed:]))
        return [with_copy, copy]

    def _with_probs(self, draft: Draft) -> Draft:
        return replace(draft, accept_probs=tuple(self._rates.accept_probs(draft)))

    def _spend(self, seconds: float) -> None:
        """Counts the time of a guess and of the copy after it."""
        self.spent_s += seconds
        if not self._has_read:
            self._has_read = True
            self.guesses_s += self.guess_s
            return
        self.guesses_s += seconds
        usual = self.guess_s or seconds
        rate = _FALL if seconds < usual else _RISE
        self.guess_s = usual + rate * (min(seconds, MOST_RISE * usual) - usual)


def chain_priors() -> dict[Hashable, float]:
    """The initial rates: a network's own probabilities, and higher ones if the copy agrees."""
    priors: dict[Hashable, float] = {}
    for name, position in product((Origin.HEAD, Origin.MODEL), range(1, _POSITIONS)):
        priors[name, position] = 0.5  # as likely as the guess before it
    classes = product(
        (Origin.HEAD, Origin.MODEL), (False, True), range(_POSITIONS), range(_CLASSES)
    )
    for name, agrees, position, tenth in classes:
        prob = (tenth + 0.5) / _CLASSES
        kind = _kind(name, agrees, position, prob)
        priors[kind] = 1.0 - _DOUBTED * (1.0 - prob) if agrees else prob
    return priors


def _kind(name: Origin, agrees: bool, position: int, prob: float) -> Hashable:
    tenth = min(int(_CLASSES * prob), _CLASSES - 1)
    return name, agrees, min(position, _POSITIONS - 1), tenth
