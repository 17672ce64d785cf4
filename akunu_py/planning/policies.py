"""The decisions of `DraftPlanner` other than the length: when to propose, to probe, to pipeline.

Each class makes one decision from a few numbers of its own, and knows nothing of the others.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

PROPOSE_BACKOFF: Final = (16, *(32,) * 2, *(48,) * 4)
"""After more empty proposals in a row than each of these, skip one more step between proposals:
1 step from the 17th on, 3 from the 33rd on, 7 from the 49th on."""

PROPOSAL_SHARE: Final = 0.02
"""The part of all time that proposals may take that lead to no draft."""

PROBE_SHARE: Final = 0.005
"""The part of all time that may be lost by probes of doubtful lengths."""

HOPE: Final = 2.0
WORTH_TRYING: Final = 0.05
"""A length is tried if it is faster than the best by this part, should its cost be lower than
expected by `HOPE` standard deviations."""

FIRST_PROBE: Final = 128
LAST_PROBE: Final = 4096
"""How many drafts in a row are declined before one is verified anyway: at first, and at most."""

MIN_SAVING: Final = 0.05
"""The part of a step that a draft must save on average before the pipeline is given up for it. A
pipeline also hides the time of proposals, which costs of forwards do not contain."""

_RATE: Final = 0.1
"""How fast the running means of `PipelineGain` follow: by about the last ten proposals."""


class ProposalBackoff:
    """Proposes less often while proposals lead to no draft.

    A proposal takes some 25 microseconds on new text (`benchmarks/drafter_cost.py`), about 1 % of a
    small model's step. If no step is in flight, the device waits anyway, so it always proposes.
    A drafter whose proposals take more than `PROPOSAL_SHARE` of a step is asked less often, however
    the step is run: the longer they take, and the more of them in a row led to nothing.
    """

    def __init__(self) -> None:
        self.empty_proposals = 0
        self._skips = 0

    def begin(self) -> None:
        """Starts a request: it proposes more often again, but remembers that drafts were rare."""
        self.empty_proposals = min(self.empty_proposals, PROPOSE_BACKOFF[0])
        self._skips = 0

    def should_propose(self, cost: float, *, pipelined: bool) -> bool:
        """Whether to propose now; counts the proposal as empty until `drafted` is called.

        Args:
            cost: what a proposal takes that leads to no draft, in steps.
            pipelined: whether a step is in flight.
        """
        many_steps = int(cost / PROPOSAL_SHARE)
        if not pipelined and not many_steps:
            return True
        if self._skips:
            self._skips -= 1
            return False
        self.empty_proposals += 1
        self._skips = bisect_left(PROPOSE_BACKOFF, self.empty_proposals)
        self._skips = max(self._skips, min(many_steps, self.empty_proposals))
        return True

    def drafted(self) -> None:
        """Notes that a proposal led to a draft."""
        self.empty_proposals = self._skips = 0


class Probes:
    """Verifies drafts of lengths that are not expected to be the fastest, to learn their costs.

    Without probes, costs that are believed too high would keep the planner from ever observing such
    a round. Where the doubt is large enough that another length might be faster, it is tried, as
    long as all probes together lost less than `PROBE_SHARE` of the time. Where there is no doubt, a
    declined draft is verified now and then; if drafts never pay, more and more rarely. Acceptance
    needs no probes: see `DeclinedDraft`.

    Attributes:
        worth_s: if the next round is a probe of a doubtful length, the time its tokens are worth.
    """

    def __init__(self) -> None:
        self._declined = 0
        self._patience = FIRST_PROBE
        self._pending = False
        self._saved_s = 0.0
        self._is_stopped = False  # whether a pipeline was ended for a doubtful length
        self.worth_s: float | None = None

    def begin(self) -> None:
        """Starts a request: a probe that is still due is dropped."""
        self._pending = self._is_stopped = False

    def drafted(self) -> None:
        """Notes that a draft pays: once drafts do not, probes begin early again."""
        self._patience = FIRST_PROBE

    def take_pending(self, *, pipelined: bool) -> bool:
        """Whether a probe was due; if a step is in flight, this drops the probe."""
        pending, self._pending = self._pending, False
        return pending and not pipelined

    def due(self, *, pipelined: bool) -> bool:
        """Counts a declined draft; returns whether to verify it anyway.

        If a step is in flight, the draft is proposed again once it is done, and `take_pending` lets
        it through.
        """
        self._declined += 1
        if self._declined < self._patience:
            return False
        self._declined = 0
        self._patience = min(2 * self._patience, LAST_PROBE)
        self._pending = pipelined
        return True

    def choose(self, speeds: Sequence[float], doubts: Sequence[float], best: float) -> int | None:
        """Which of some lengths to try, if any.

        Args:
            speeds: their expected tokens per second.
            doubts: the standard deviations of the logarithms of these, relative to the best.
            best: tokens per second of the plan that is expected to be the fastest.
        """
        paid, self._is_stopped = self._is_stopped, False
        if self._saved_s < 0.0 and not paid:
            return None
        enough = (1.0 + WORTH_TRYING) * best
        return next(
            (
                index
                for index, (speed, doubt) in enumerate(zip(speeds, doubts, strict=True))
                if speed * math.exp(HOPE * doubt) > enough
            ),
            None,
        )

    def begun(self, worth_s: float) -> None:
        """Notes that the next round is a probe, whose tokens are worth this time."""
        self.worth_s = worth_s

    def stopped(self, seconds: float) -> None:
        """Books what it costs to end a pipeline for a probe, which the next choice may then be."""
        self._saved_s -= seconds
        self._is_stopped = True

    def earn(self, seconds: float) -> None:
        """Books the time of a round."""
        lost = 0.0 if self.worth_s is None else seconds - self.worth_s
        self.worth_s = None
        self._saved_s = min(self._saved_s + PROBE_SHARE * seconds - lost, 0.0)


class PipelineGain:
    """What a single step gains by not being pipelined: a draft may follow it immediately.

    Both numbers are running means over the proposals after single steps.
    """

    def __init__(self) -> None:
        self._saving = self._frequency = 0.0

    def proposed(self) -> None:
        """Counts a proposal after a single step, without a draft until `drafted` is called."""
        self._saving *= 1.0 - _RATE
        self._frequency *= 1.0 - _RATE

    def drafted(self, speedup: float) -> None:
        """Notes how many times as fast as plain decoding the proposal's draft would be.

        In a pipeline, the token of one more step comes first, at the speed of plain decoding.
        """
        if speedup > 1.0:
            self._saving += _RATE * (1.0 - 1.0 / speedup)
            self._frequency += _RATE

    def of_step(self, refill: float) -> float:
        """How much time is gained if the next single step is submitted before this one ends, in
        steps; negative if it is better to wait.

        Args:
            refill: how much longer a step takes if it is not pipelined, in steps. It is lost only
                if no draft follows.
        """
        return (1.0 - self._frequency) * refill + MIN_SAVING - self._saving
