"""How a planner learns about what it does not choose: declined drafts, lengths tried to learn their
cost, pipelines ended for a draft, and trial guesses; and at what pace the text goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.base import NO_DRAFT, Draft

PROBE_SHARE: Final = 0.005
"""The fraction of all time that probes may lose."""

PROBE_AFTER: Final = 128
"""One of this many drafts is verified although it would be declined, or at twice its length if no
such round was observed. Otherwise, costs estimated too high would never be corrected."""

HOPE: Final = 2.0
WORTH_TRYING: Final = 0.05
"""A length is tried if it would be faster than the best by this fraction with a cost that is `HOPE`
standard deviations lower than expected."""

MIN_SAVING: Final = 0.05
"""The fraction of a step that a draft must save on average before the pipeline is given up for it.
A pipeline also hides the time of proposals, which the costs of passes do not include."""

_TRIAL_LEAST, _TRIAL_MOST = 2, 8
"""The least and the most trial guesses in a text; between these, as many as fit in the time of a
step."""
_LEFT_OUT_MOST: Final = 3

RATE: Final = 0.1
"""How fast running means follow: over about the last ten values."""


@dataclass
class GuessGain:
    """The expected yield of rounds that begin with a guess: tokens, and their time in single steps,
    including the guesses. Texts differ, so guesses are tried when a request begins, and again after
    they were `declined` for long; `made` counts the guesses from there, and `learnt` those whose
    yield is known. After each trial that did not pay, the next requests go without one: `unpaid`
    requests, one more each time, of which `left_out` have begun."""

    tokens: float
    steps: float
    made: int = 0
    declined: int = 0
    learnt: int = 0
    unpaid: int = 0
    left_out: int = 0

    def begin(self) -> None:
        if self.made:
            pays = self.tokens > self.steps
            self.unpaid = 0 if pays else min(self.unpaid + 1, _LEFT_OUT_MOST)
            self.left_out = 0
        else:
            self.left_out += 1
        self.made = self.declined = self.learnt = 0

    def is_tried(self, step_s: float, guess_s: float) -> bool:
        """Whether to make a guess that is not expected to pay; counts those that are not made."""
        if self.declined == PROBE_AFTER:
            self.begin()
        affordable = int(step_s / guess_s) if guess_s else _TRIAL_MOST
        most = max(_TRIAL_LEAST, min(_TRIAL_MOST, affordable)) * (self.left_out >= self.unpaid)
        self.declined += self.made >= most
        return self.made < most

    def learn(self, tokens: float, steps: float) -> None:
        self.learnt += 1
        rate = max(RATE, 1.0 / (1 + self.learnt))
        self.tokens += rate * (tokens - self.tokens)
        self.steps += rate * (steps - self.steps)


class Pace:
    """How long a token takes on average in recent rounds, by their planned costs."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        self._tokens += RATE * (tokens - self._tokens)
        self._seconds += RATE * (seconds - self._seconds)

    def token_s(self, step_s: float) -> float:
        """At most the time of a single step, which takes `step_s`."""
        return min(step_s, self._seconds / self._tokens) if self._tokens else step_s


class DeclinedDraft:
    """Compares a declined draft with the tokens emitted instead, up to the first miss, so that a
    planner that verifies nothing notices when a text becomes predictable. Sampled drafts are left
    out: two draws from one distribution seldom agree, but verification would accept the draft."""

    def __init__(self, rates: AcceptanceRates) -> None:
        self._rates = rates
        self.begin()

    def begin(self) -> None:
        self._draft, self._accepted = NO_DRAFT, 0

    def decline(self, draft: Draft) -> None:
        if not self._draft and draft.probabilities is None:
            self._draft = draft

    def follow(self, tokens: Sequence[int]) -> None:
        draft = self._draft
        for token, drafted in zip(tokens, draft.tokens[self._accepted :], strict=False):
            self._accepted += token == drafted
            if token != drafted or self._accepted == len(draft):
                self._rates.learn_draft(draft, self._accepted)
                self.begin()
                return


class Probes:
    """Chooses lengths that are not expected to be the fastest, to learn their costs.

    Where the doubt is large enough that another length might be faster, it is tried, as long as all
    probes together lost less than `PROBE_SHARE` of the time. Where there is no doubt, a longer
    draft is verified now and then. Acceptance needs no probes: see `DeclinedDraft`. `worth_s` is
    the time that the tokens of a probe are worth.
    """

    def __init__(self) -> None:
        self._planned = 0
        self._saved_s = 0.0
        self._is_due = False  # whether a pipeline was ended for a probe, which comes next
        self.worth_s: float | None = None

    def begin(self) -> None:
        self._is_due = False

    def choose(
        self,
        length: int,
        longer: int,
        speeds: Sequence[float],
        doubts: Sequence[float],
        expected: Sequence[float],
        *,
        stop_s: float | None,
    ) -> int:
        """The length to verify: the one expected to be the fastest, or one to try.

        For all lengths from 0 on, `speeds` has the expected tokens per second, and `doubts` the
        standard deviations of their logarithms relative to the best; the tokens that each emits on
        average are given too. `longer` is tried even without doubt. `stop_s` is the cost of ending
        the pipeline, or None if no step is in flight.
        """
        is_due, self._is_due = self._is_due and stop_s is None, False
        if is_due or self._saved_s >= 0.0:
            enough = (1.0 + WORTH_TRYING) * speeds[length]
            for tried, (speed, doubt) in enumerate(zip(speeds, doubts, strict=True)):
                if speed * math.exp(HOPE * doubt) > enough:
                    if stop_s is None:
                        self.worth_s = expected[tried] / speeds[length]
                    else:
                        self._saved_s -= stop_s
                        self._is_due = True
                    return tried
        self._planned += 1
        if not is_due and self._planned < PROBE_AFTER:
            return length
        self._planned = 0
        self._is_due = stop_s is not None
        if length:
            return longer
        return max(range(1, len(speeds)), key=speeds.__getitem__)

    def earn(self, seconds: float) -> None:
        lost = 0.0 if self.worth_s is None else seconds - self.worth_s
        self.worth_s = None
        self._saved_s = min(self._saved_s + PROBE_SHARE * seconds - lost, 0.0)


class PipelineGain:
    """The gain of submitting a single step before the last one is read: the time that the device
    would wait, minus what drafts after that step would save."""

    def __init__(self) -> None:
        self._saving = self._frequency = 0.0

    def proposed(self) -> None:
        self._saving *= 1.0 - RATE
        self._frequency *= 1.0 - RATE

    def drafted(self, speedup: float) -> None:
        """Notes the speedup over plain decoding that the proposal's draft would have."""
        if speedup > 1.0:
            self._saving += RATE * (1.0 - 1.0 / speedup)
            self._frequency += RATE

    def of_step(self, refill: float) -> float:
        """See `Planner.pipeline_gain`; a step outside the pipeline takes `refill` steps longer."""
        return (1.0 - self._frequency) * max(0.0, refill) + MIN_SAVING - self._saving
