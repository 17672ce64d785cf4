"""BatchPlanner: plans the drafts of sequences that decode together, by the cost of their passes.

Each sequence plans its drafts as if it were alone. Here they are cut to the lengths that pay in a
batch, where a row of one sequence may cost more or less than it would cost that sequence alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.base import Draft
from akunu_py.drafting.chain import Chain
from akunu_py.planning.costs import LiveCosts
from akunu_py.planning.theory import MAX_BATCH_ROWS, TIE, expected_tokens, share_rows
from akunu_py.planning.trials import MIN_SAVING, PROBE_AFTER, PipelineGain
from akunu_py.tokens import Origin

CostsOf = Callable[[int], LiveCosts | None]
"""The costs of passes over a number of sequences, by rows; None if they are unknown."""


class Company(NamedTuple):
    """Sequences that share a forward pass: how many, the tokens in all their caches, and whether
    each costs as much as the longest."""

    sequences: int
    context: int
    pads: bool


class BatchPlanner:
    """Plans the drafts of a batch by the rates that its sequences learn; without costs, it leaves
    them unchanged."""

    def __init__(self, costs: CostsOf, rates: AcceptanceRates) -> None:
        self._costs = costs
        self._rates = rates
        self._pipeline_gain = PipelineGain()
        self._after_step = False  # whether nothing was drafted in the last forward
        self._refused = 0  # how often in a row guesses did not pay

    def guesses_pay(self, chains: Sequence[Chain], company: Company) -> bool:
        """Whether a round is faster if every network guesses a token, including the time of the
        guesses. Now and then they guess anyway, to learn how often they are right."""
        table = self._table(company)
        if table is None:
            return True
        sequences = company.sequences
        rows = 2 * sequences if company.pads else sequences + len(chains)
        if rows > len(table):
            return False
        gained, spent = sum(one.rate(0) for one in chains), sum(one.guess_s for one in chains)
        plain = sequences / table[sequences - 1]
        pays = (sequences + gained) / (table[rows - 1] + spent) > plain
        # For two rounds: no network guesses while a step is in flight.
        self._refused = 0 if pays or self._refused > PROBE_AFTER else self._refused + 1
        return pays or self._refused >= PROBE_AFTER

    def lengths(self, drafts: Sequence[Draft], kept: Sequence[int], company: Company) -> list[int]:
        """How many tokens of each draft the next forward pass verifies. `kept` has the length of
        each draft that must not be cut, and 0 for the others."""
        lengths, speedup = self._share(drafts, kept, company)
        if self._after_step:
            self._note(speedup)
        self._after_step = not any(lengths)
        return lengths

    def steps_ahead(
        self,
        forecasts: Sequence[Draft],
        kept: Sequence[int],
        company: Company,
        *,
        pipelined: bool,
    ) -> bool | None:
        """Whether a single step of each should be submitted before the forward pass in flight is
        read; otherwise, `forecasts`, made while a pass was in flight if `pipelined`, would be
        verified. None if the costs are unknown.
        """
        guessed = {Origin.HEAD, Origin.MODEL}
        if self._table(company) is None:
            return None
        if any(kept) or any(one.origin in guessed for one in forecasts):
            return False
        _, speedup = self._share(forecasts, kept, company)
        if pipelined:
            self._note(speedup)
            self._after_step = False  # it is noted
        return speedup <= 1.0 + MIN_SAVING and self._pipeline_gain.of_step(0.0) >= 0.0

    def _note(self, speedup: float) -> None:
        self._pipeline_gain.proposed()
        self._pipeline_gain.drafted(speedup)

    def _table(self, company: Company) -> list[float] | None:
        if company.sequences > MAX_BATCH_ROWS or (costs := self._costs(company.sequences)) is None:
            return None
        return costs.verify_table(company.context, MAX_BATCH_ROWS)

    def _share(
        self, drafts: Sequence[Draft], kept: Sequence[int], company: Company
    ) -> tuple[list[int], float]:
        """The lengths that give the most tokens per second, and their speedup over a single step of
        each: 1 without costs, 0 if more rows are kept than costs are known for."""
        sequences, lengths = company.sequences, [len(draft) for draft in drafts]
        table = self._table(company) if any(lengths) else None
        if table is None:
            return lengths, 1.0
        probs = [self._rates.accept_probs(draft) for draft in drafts]
        if company.pads:
            lengths, speed = _share_padded(probs, kept, table[sequences - 1 :: sequences])
        else:
            rows = sequences + sum(kept)
            emitted = sum(
                expected_tokens(own)[length] for own, length in zip(probs, kept, strict=True)
            )
            free = [() if length else own for own, length in zip(probs, kept, strict=True)]
            shared, speed = share_rows(free, table[rows - 1 :], emitted)
            lengths = [own + more for own, more in zip(kept, shared, strict=True)]
        return lengths, speed * table[sequences - 1] / sequences


def _share_padded(
    probs: Sequence[Sequence[float]], kept: Sequence[int], seconds: Sequence[float]
) -> tuple[list[int], float]:
    """`share_rows` for a forward pass that pads all drafts to the longest; `seconds` are its times
    with 0, 1, 2 ... tokens of each."""
    expected = [expected_tokens(own) for own in probs]
    most, best = max(kept), 0.0
    for length in range(most, min(len(seconds), max(map(len, expected)))):
        emitted = sum(own[min(length, len(own) - 1)] for own in expected)
        speed = emitted / seconds[length]
        if speed > best * (1.0 + TIE):
            most, best = length, speed
    return [min(most, len(own)) for own in probs], best
