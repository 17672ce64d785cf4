"""Batch: sequences that decode together, with one forward for all of them.

Each sequence has the loop of `loop.py`, which yields the forwards that it wants. A round of several
reads what is in flight, hands each loop its rows, and submits one forward over all that they want
next. If the sequences gain by it on average, single steps of all follow before the forward is read:
a draft of one is worth less than that, several are worth more. A sequence without company decodes
as it does without a batch.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from time import perf_counter
from typing import Final

import mlx.core as mx

from akunu_py.cache.batched import has_little_padding
from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.batch_trial import why_not_batched
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Decoding, Limits
from akunu_py.decoding.target import (
    FORWARDS_PER_CLEANUP,
    Inputs,
    ModelTarget,
    PendingForward,
    SharedForward,
)
from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.model.target_model import TargetModel
from akunu_py.planning.live_costs import LiveCosts
from akunu_py.planning.theory import (
    MAX_BATCH_ROWS,
    expected_tokens,
    share_padded_rows,
    share_rows,
)
from akunu_py.planning.trials import PROBE_AFTER
from akunu_py.round import Round

CostsOf = Callable[[int], LiveCosts | None]
"""What forwards over so many sequences cost, by their rows; None if nothing is known."""

_OBSERVE_EVERY: Final = 8
"""Correcting the costs takes a percent or two of a small model's forward."""

_JOIN_FROM: Final = 4
_JOIN_AFTER: Final = 4
"""From so many sequences on, and after so many single steps of all, their caches are joined: that
copies all of them once, and saves operations in each later step."""


class Member(Decoding[PendingForward]):
    """A sequence that may share forwards with others.

    Args:
        shares: whether it may; the forwards of an exact answer may have no rows of others.
        keeps_drafts: whether none of its drafts is shortened.

    Attributes:
        takes_turns: whether its last round shared no forward, though others had one.
    """

    target: ModelTarget
    takes_turns = False

    def __init__(
        self,
        target: ModelTarget,
        session: DraftSession,
        known: int,
        limits: Limits,
        *,
        shares: bool = True,
        keeps_drafts: bool = False,
    ) -> None:
        super().__init__(target, session, known, limits)
        self.shares = shares
        self._keeps_drafts = keeps_drafts

    @property
    def draft(self) -> Draft:
        return NO_DRAFT if self.forward is None else self.forward.draft

    @property
    def keeps_draft(self) -> bool:
        """The length of a sampled draft must not depend on its tokens, as estimates may."""
        return self._keeps_drafts or self.draft.probabilities is not None

    def begin(self) -> Inputs:
        """What goes into the forward that it wants, or into the step after the one in flight."""
        if self.flights:
            return self.target.begin_step_after(self.flights[0])
        assert self.forward is not None
        return self.target.begin(self.forward.known, self.forward.draft)


class Batch:
    """The forwards of the sequences that decode with one model.

    It has run `forwards` over more than one sequence, of `rows` in all. `joins` says whether it
    joins caches; `benchmarks.batched --without-joins` turns it off.

    Args:
        may_join: whether there is memory for caches that share buffers; it is made free then.
    """

    def __init__(
        self,
        model: TargetModel,
        costs: CostsOf = lambda _: None,
        may_join: Callable[[Sequence[KVCache]], bool] = lambda _: True,
    ) -> None:
        self._model = model
        self._costs = costs
        self._may_join = may_join
        self._acceptance = AcceptanceRates()
        self._together: tuple[frozenset[int], int] = frozenset(), 0  # sequences, and their steps
        self._observed = (0, 0)  # sequences and rows of the forward last learnt from
        self._unobserved = 0
        self._refused = 0  # so many times in a row, guesses did not pay
        self.forwards = 0
        self.rows = 0
        self.joins = True

    @cached_property
    def why_impossible(self) -> str | None:
        """Why requests do not share forwards, for the user; the model is tried when it is first
        asked, which takes a few short forwards."""
        return why_not_batched(self._model)

    def advance(self, members: Sequence[Member]) -> list[Round | Exception]:
        """A round of each, or why it has none: the members that share forwards have one together.

        The next forwards are submitted before it returns.
        """
        _break_up(members)
        groups = self._groups([one for one in members if one.shares])
        outcomes = dict[Member, Round | Exception]()
        for group in groups:
            pays = self._guesses_pay(group)
            for one in group:
                one.session.may_guess = pays
            self._submit([one for one in group if one.wants_forward])
            if sum(one.gain_now for one in group) >= 0.0:
                self._submit(group, ahead=True)
            outcomes |= {one: self._read(one) for one in group}
        for group in groups:
            self._submit([one for one in group if one.wants_forward])
        alone = [one for one in members if one not in outcomes]
        for one in outcomes if alone or len(groups) > 1 else ():
            for flight in one.flights:  # what follows is computed in between
                flight.overlap()
        for one in members:
            one.takes_turns = one in alone and len(members) > 1
        for one in alone:
            one.session.may_guess = True
            outcomes[one] = _advance(one)
        return [outcomes[one] for one in members]

    def _groups(self, members: Sequence[Member]) -> list[list[Member]]:
        """Those that share forwards, two or more. Where all are padded to the longest, they are of
        about the same length, and there is memory for their padding."""
        if len(members) < 2 or self.why_impossible:
            return []
        if not self._model.pads_batches:
            return [list(members)]
        groups = list[list[Member]]()
        for one in sorted(members, key=lambda one: one.target.cache.capacity):
            caches = [other.target.cache for other in (*(groups[-1] if groups else ()), one)]
            if (
                len(caches) > 1
                and has_little_padding([held.capacity for held in caches])
                and self._may_join(caches)
            ):
                groups[-1].append(one)
            else:
                groups.append([one])
        return [group for group in groups if len(group) > 1]

    def _read(self, member: Member) -> Round | Exception:
        try:
            outcome = member.read()
        except Exception as error:
            return error
        if outcome.draft:
            self._acceptance.learn_draft(outcome.draft, outcome.accepted)
        return outcome

    def _pads(self, members: Sequence[Member]) -> bool:
        """Whether every sequence costs what the longest does: recurrences take one after another
        of `[sequences, longest]` tokens."""
        return self._model.pads_batches or members[0].target.cache.has_states

    def _guesses_pay(self, members: Sequence[Member]) -> bool:
        """Whether a round of all is faster with a guess of each network, which takes its time. Now
        and then they guess anyway, to learn how often guesses are right."""
        chains = [chain for one in members if (chain := one.session.chain) is not None]
        costs = self._costs(len(members)) if chains else None
        if costs is None or not chains:
            return bool(chains)
        table = costs.verify_table(sum(one.target.length for one in members), MAX_BATCH_ROWS)
        alone = len(members)
        rows = 2 * alone if self._pads(members) else alone + len(chains)
        if rows > len(table):
            return False
        gained, spent = sum(one.rate(0) for one in chains), sum(one.step_s for one in chains)
        pays = (alone + gained) / (table[rows - 1] + spent) > alone / table[alone - 1]
        self._refused = 0 if pays or self._refused >= PROBE_AFTER else self._refused + 1
        return self._refused == 0

    def _shorten_drafts(self, members: Sequence[Member]) -> None:
        """Cuts the drafts of a forward to what they are worth in it."""
        shared = [one for one in members if one.draft and not one.keeps_draft]
        costs = self._costs(len(members)) if shared else None
        if costs is None:
            return
        accept_probs = {one: self._acceptance.accept_probs(one.draft) for one in members}
        kept = [one for one in members if one not in shared]
        emitted = len(shared) + sum(expected_tokens(accept_probs[one])[-1] for one in kept)
        table = costs.verify_table(sum(one.target.length for one in members), MAX_BATCH_ROWS)
        if self._pads(members):
            longest = max((len(one.draft) for one in kept), default=0)
            every = table[len(members) - 1 :: len(members)]
            most = share_padded_rows(list(accept_probs.values()), every, len(members))
            lengths = [max(longest, most)] * len(shared)
        else:
            rows = len(members) + sum(len(one.draft) for one in kept)
            lengths = share_rows([accept_probs[one] for one in shared], table[rows - 1 :], emitted)
        for one, length in zip(shared, lengths, strict=True):
            if one.forward is not None and length < len(one.draft):
                one.forward.draft = one.draft.cut(length)

    def _submit(self, members: Sequence[Member], *, ahead: bool = False) -> None:
        """Submits one forward over what all of them want, or over a step `ahead` of each."""
        if len(members) == 1:
            members[0].submit()
            return
        begun = perf_counter()
        if not ahead:
            self._shorten_drafts(members)
        inputs, parts = list[Inputs](), list[Member]()
        for one in sorted(members, key=lambda one: one.target.cache.seat):
            try:
                inputs.append(one.begin())
                parts.append(one)
            except Exception as error:  # its cache cannot grow
                one.error = error
        if not parts:
            return
        counts = [one.tokens.size for one in inputs]
        if sum(counts) == len(parts) or self._model.pads_batches:
            self._join([one.target.cache for one in parts])
        shared = SharedForward(
            sequences=len(parts),
            rows=len(parts) * max(counts) if self._pads(parts) else sum(counts),
            context=sum(one.start for one in inputs),
            timed=self._observe,
            is_overlapped=ahead,
            begun=begun,
        )
        try:
            shared.results = self._build(parts, inputs, counts, shared)
            mx.async_eval(shared.results)  # type: ignore[no-untyped-call]
        except Exception as error:
            for one in parts:
                one.error = one.error or error
            return
        shared.seconds = (perf_counter() - begun) / len(parts)

    def _join(self, caches: Sequence[KVCache]) -> None:
        """Joins the caches of sequences that have had single steps together for a while; at once if
        the model would need copies of them in one array."""
        before, steps = self._together
        at_once = self._model.pads_batches and len(caches) > 1
        ids = frozenset(map(id, caches))
        self._together = ids, steps + 1 if ids == before else 1
        if (
            self.joins
            and (at_once or (len(caches) >= _JOIN_FROM and steps >= _JOIN_AFTER and ids == before))
            and any(one.group is None or one.group is not caches[0].group for one in caches)
            and all(one.can_join for one in caches)
            and has_little_padding([one.capacity for one in caches])
            and self._may_join(caches)
        ):
            self._together = ids, 0
            with suppress(Exception):  # no memory for it: they stay as they were
                caches[0].join(caches[1:])

    def _build(
        self,
        parts: Sequence[Member],
        inputs: Sequence[Inputs],
        counts: Sequence[int],
        shared: SharedForward,
    ) -> list[mx.array]:
        """Builds one forward for all; returns what to evaluate."""
        tokens = mx.concatenate([one.tokens for one in inputs])
        logits = self._model.forward_batch(tokens, [one.target.cache for one in parts], counts)
        results = []
        ends = list(accumulate(counts[:-1]))
        hidden: list[mx.array | None] = [None] * len(parts)
        if self._model.head is not None:
            hidden = list(mx.split(self._model.take_hidden(), ends))
        split = mx.split(logits, ends)
        for one, own_inputs, rows, states in zip(parts, inputs, split, hidden, strict=True):
            for flight in one.flights:
                flight.overlap()
            try:
                pending, own = one.target.finish(own_inputs, rows, states)
            except Exception as error:  # a grammar may be too complex to follow
                one.error = error
                continue
            pending.shared = shared
            one.flights.append(pending)
            results.extend(own)
        self.forwards += 1
        self.rows += sum(counts)
        if self.forwards % FORWARDS_PER_CLEANUP == 0:
            mx.clear_cache()
        return results

    def _observe(self, forward: SharedForward, seconds: float) -> None:
        """Learns from the time of a forward; of many like the last one, from some."""
        shape = forward.sequences, forward.rows
        self._unobserved += 1
        if shape == self._observed and self._unobserved < _OBSERVE_EVERY:
            return
        self._observed, self._unobserved = shape, 0
        if (costs := self._costs(forward.sequences)) is not None:
            costs.observe(forward.rows, seconds, forward.context)


def _advance(member: Member) -> Round | Exception:
    try:
        return member.advance()
    except Exception as error:
        return error


def _break_up(members: Sequence[Member]) -> None:
    """Separates caches that share buffers which half of their caches have left, or more."""
    for one in members:
        group = one.target.cache.group
        if group is not None and 2 * group.left >= group.size:
            one.target.cache.separate()
