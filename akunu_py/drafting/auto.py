"""AutoDrafter: the default drafter; copies through edits, or follows the best earlier occurrence.

It has four sources, and drafts from the one whose next token is most likely to be accepted:

- *copy*: the text that is being copied, with the edits learnt so far repeated (`Rewrite`);
- *resumed*: the copy, found again near the place where an edit broke it;
- *match*: what followed the longest earlier occurrence of the last tokens;
- *recall*: what followed them in other texts, if it has tiers of these.

With other texts, each token of a draft comes from the request or from the recall. Each is more
likely to be right if the other source agrees, and less likely if it disagrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from akunu_py.drafting.acceptance import (
    AFFINITY_ODDS,
    FIRST_REWRITE,
    LEFT,
    RIVAL_ODDS,
    SILENT,
    SUPPORT_ODDS,
    AcceptanceRates,
    bucket,
    copy_evidence,
    match_evidence,
    priors,
    resumed_evidence,
    rewrite_evidence,
    rival_class,
    support_class,
)
from akunu_py.drafting.alignment import SOLID_RUN, Alignment, Anchor, Rewrite
from akunu_py.drafting.base import NO_DRAFT, RECALL, Draft
from akunu_py.drafting.occurrences import (
    MAX_COMPARED,
    Consensus,
    Match,
    Occurrences,
    consensus_of,
)
from akunu_py.drafting.recall import MemoryTier, Recall, RecentTexts
from akunu_py.tokens import FIRST_BOUNDARY, common_prefix_length

MIN_REACH_PROB: Final = 0.1
"""A draft ends before a token whose chance to be reached and accepted is lower than this."""

STEADY_RUN: Final = 12
"""After a longer run, only the copy is used: it is more reliable than any other source."""

SURE: Final = 0.9
"""Nothing is recalled if the request's own token is likelier to be right than this."""


class _Candidate(NamedTuple):
    source: str
    evidence: int
    position: int
    length: int
    resumed: Anchor | None = None
    match: Match | None = None


class AutoDrafter:
    """Drafts many tokens during a copy, and none without evidence.

    It drafts until acceptance is less likely than `MIN_REACH_PROB`, and says how likely each token
    is; a planner that knows the machine's costs cuts the draft. What it learns about acceptance
    outlives the request. Tokens do so only if the next request begins with them, or if a `keeper`
    keeps the texts of requests that have ended. The `tiers` of other texts may change between
    requests.
    """

    def __init__(
        self, tiers: Sequence[MemoryTier] = (), rates: AcceptanceRates | None = None
    ) -> None:
        self.tiers = tiers
        self.keeper: RecentTexts | None = None
        self._rates = rates or AcceptanceRates(priors())
        self._occurrences = Occurrences()
        self.begin(())

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        before = self._occurrences
        old = before.tokens.copy() if self.keeper is not None else []
        self._occurrences = before.for_request(prompt, references)
        if self.keeper is not None and self._occurrences is before:
            self.keeper.take_back(before)
            # The part that this request does not continue, after the tokens by which it is found.
            shared = common_prefix_length(old, before.tokens)
            self.keeper.keep(Occurrences(old[max(0, shared - MAX_COMPARED) :]))
        self._alignment = Alignment(self._occurrences)
        self._answer_start = len(self._occurrences.tokens)
        # The tokens of the last draft, and for each its bucket and odds. The same for the last
        # draft after guesses, whose number comes first.
        self._drafted: tuple[int, ...] = ()
        self._evidence: list[tuple[int, float]] = []
        self._foreseen: tuple[int, tuple[int, ...], list[tuple[int, float]]] = 0, (), []
        self._untried: tuple[int, float, int] | None = None

    def end(self) -> None:
        if self.keeper is not None:
            self.keeper.keep(self._occurrences)

    def extend(self, tokens: Sequence[int]) -> None:
        if self._untried is not None and len(tokens):
            # A first token that was proposed but not verified is compared with the actual one.
            where, odds, guess = self._untried
            self._rates.learn(where, guess == tokens[0], odds)
            self._untried = None
        advance, append = self._alignment.advance, self._occurrences.append
        for token in tokens:
            advance(token)
            append(token)

    def propose(self, limit: int) -> Draft:
        self._foreseen = 0, (), []
        candidate, recall = self._best_candidate(), None
        if self.tiers and (candidate is None or self._accept_prob(candidate) <= SURE):
            recall = self._recalled()
        if recall is not None and not self._begins(candidate, recall):
            candidate = None
        if candidate is not None:
            alignment = self._alignment
            if candidate.position != alignment.source:
                alignment.follow(candidate.position, candidate.length, resumed=candidate.resumed)
            source, length = candidate.source, candidate.length
        elif recall is not None:
            source, length = RECALL, recall.length
        else:
            self._untried = None
            return NO_DRAFT
        return self._draft(source, length, self._steps(candidate, recall), limit)

    def after(self, tokens: Sequence[int], limit: int) -> Draft:
        """The draft that it would propose if these tokens were emitted; it learns nothing from
        them."""
        occurrences, size = self._occurrences, len(self._occurrences.tokens)
        kept = self._alignment, self._drafted, self._evidence, self._untried
        self._alignment, self._untried = self._alignment.copy(), None
        try:
            self.extend(tokens)
            draft = self.propose(limit)
            self._foreseen = len(tokens), (*tokens, *draft.tokens), self._evidence
            return draft
        finally:
            occurrences.truncate(size)
            self._alignment, self._drafted, self._evidence, self._untried = kept

    def feedback(self, draft: Draft, accepted: int) -> None:
        verified = len(draft.tokens)
        own = 0, self._drafted, self._evidence
        for before, drafted, evidence in (own, self._foreseen):
            if verified > before and draft.tokens == drafted[:verified]:
                if not before:
                    self._untried = None
                for position in range(before, min(accepted + 1, verified)):
                    where, odds = evidence[position - before]
                    self._rates.learn(where, position < accepted, odds)
                return

    def _best_candidate(self) -> _Candidate | None:
        alignment = self._alignment
        copy: _Candidate | None = None
        if alignment.source >= 0 and alignment.run >= SOLID_RUN:
            evidence = copy_evidence(alignment.run)
            copy = _Candidate("copy", evidence, alignment.source, alignment.run)
            if alignment.run >= STEADY_RUN:
                return copy
        elif (found := alignment.resumption()) is not None:
            evidence = resumed_evidence(found.length, found.distance)
            copy = _Candidate("resumed", evidence, found.position, found.length, found.anchor)
        match = self._occurrences.best(earliest=not alignment.has_copied)
        if match is None:
            return copy
        evidence = self._match_evidence(match)[match.consensus]
        followed = _Candidate("match", evidence, match.position, match.length, None, match)
        if copy is None or self._accept_prob(copy) < self._accept_prob(followed):
            return followed
        return copy

    def _recalled(self) -> Recall | None:
        found, best = None, 0.0
        for tier in self.tiers:
            recall = tier.recall(self._occurrences.tokens)
            if recall is not None:
                prob = self._rates.of(bucket(recall.evidence, 0), RIVAL_ODDS[LEFT])
                if prob > best:
                    found, best = recall, prob
        return found

    def _begins(self, candidate: _Candidate | None, recall: Recall) -> bool:
        """Whether a draft begins with a candidate's token, not with a different recalled one."""
        if candidate is None:
            return False
        tokens = self._occurrences.tokens
        own = tokens[candidate.position], bucket(candidate.evidence, 0)
        step = self._likelier(own, recall, tokens[-1], 0)
        return step is not None and step[0] == own[0]

    def _likelier(
        self, own: tuple[int, int] | None, recall: Recall, before: int, ahead: int
    ) -> tuple[int, int, float] | None:
        """The likelier one of the request's next token (`own`, with its bucket) and the recalled
        one, with bucket and odds; None if there is neither. `ahead` tokens of the draft are before
        it, the last of them `before`."""
        rival, best, found = RIVAL_ODDS[LEFT if ahead else SILENT], 0.0, None
        if own is not None:
            token, where = own
            odds = self._odds(before, token, where)
            rival = RIVAL_ODDS[rival_class(self._rates.of(where, odds))]
            if where < FIRST_REWRITE:
                share = recall.shares.get(token, 0.0)
                odds *= SUPPORT_ODDS[support_class(recall.length, share)]
            best, found = self._rates.of(where, odds), (token, where, odds)
        if recall.token is None or (own is not None and recall.token == own[0]):
            return found
        where = bucket(recall.evidence, ahead)
        if self._rates.of(where, rival) <= best:
            return found
        return recall.token, where, rival

    def _odds(self, before: int, token: int, where: int) -> float:
        if where >= FIRST_REWRITE:
            return 1.0
        return AFFINITY_ODDS[self._occurrences.bigram_affinity(before, token)]

    def _accept_prob(self, candidate: _Candidate) -> float:
        tokens, where = self._occurrences.tokens, bucket(candidate.evidence, 0)
        return self._rates.of(where, self._odds(tokens[-1], tokens[candidate.position], where))

    def _match_evidence(self, match: Match) -> tuple[int, int, int, int]:
        # A match of the whole answer so far is strong, but only once the answer has a token: before
        # that, it has seen only the chat template, and would repeat the question.
        answered = len(self._occurrences.tokens) - self._answer_start
        return match_evidence(match.length, whole_answer=0 < answered <= match.length)

    def _draft(
        self, source: str, length: int, steps: Iterator[tuple[int, int, float]], limit: int
    ) -> Draft:
        tokens, size = self._occurrences.tokens, len(self._occurrences.tokens)
        accept_prob = self._rates.of
        expected: list[float] = []
        evidence: list[tuple[int, float]] = []
        first, reach_prob = -1, 1.0
        # The draft is appended to the tokens while it is made, so that a copy can continue into it.
        try:
            for token, where, odds in steps:
                acceptance = accept_prob(where, odds)
                evidence.append((where, odds))
                if len(evidence) == 1:
                    first = token
                reach_prob *= acceptance
                if reach_prob < MIN_REACH_PROB or len(expected) >= limit:
                    break
                expected.append(acceptance)
                tokens.append(token)
            self._drafted, self._evidence = tuple(tokens[size:]), evidence
        finally:
            del tokens[size:]
        self._untried = (*evidence[0], first) if evidence else None
        if not expected:
            return NO_DRAFT
        return Draft(self._drafted, source, length, None, tuple(expected))

    def _steps(
        self, candidate: _Candidate | None, recall: Recall | None
    ) -> Iterator[tuple[int, int, float]]:
        """The tokens that likely follow, each with its bucket and odds: those of the request's
        candidate until a recalled token is more likely, and recalled ones as long as the recall
        agrees with the draft."""
        before, ahead = self._occurrences.tokens[-1], 0
        copied: Iterator[tuple[int, int]] = iter(())
        if candidate is not None:
            match = candidate.match
            copied = self._copied(candidate) if match is None else self._agreed(match)
        own = next(copied, None)
        while recall is not None:
            step = self._likelier(own, recall, before, ahead)
            if step is None:
                return
            yield step
            before, ahead = step[0], ahead + 1
            own = next(copied, None) if own is not None and before == own[0] else None
            recall = recall.after(before)
        while own is not None:
            token, where = own
            yield token, where, self._odds(before, token, where)
            before, own = token, next(copied, None)

    def _copied(self, candidate: _Candidate) -> Iterator[tuple[int, int]]:
        tokens, size = self._occurrences.tokens, len(self._occurrences.tokens)
        plain = not self._alignment.rewrites
        rewrite, rewritten = self._alignment.rewrite, self._alignment.rewritten
        position = candidate.position
        if rewrite is not None and rewritten == 0:
            rewrite = self._rewrite_at(position, size)
        while True:
            if rewrite is not None:
                for token in rewrite.new[rewritten:]:
                    yield token, bucket(rewrite_evidence(begun=rewritten > 0), 0)
                    rewritten += 1
                position += len(rewrite.old)
                rewritten = 0
            else:
                if position >= len(tokens) or (token := tokens[position]) >= FIRST_BOUNDARY:
                    return
                yield token, bucket(candidate.evidence, len(tokens) - size)
                position += 1
            rewrite = None if plain else self._rewrite_at(position, size)

    def _agreed(self, match: Match) -> Iterator[tuple[int, int]]:
        """The most frequent next tokens of the occurrences that have agreed so far, with
        buckets."""
        tokens = self._occurrences.tokens
        evidence = self._match_evidence(match)
        position, live = match.position, match.visited
        if live[0] != position:
            live = [position, *[p for p in live if p != position]]
        token, agreed = tokens[position], match.consensus
        ahead = 0
        while len(live) > 1 and token < FIRST_BOUNDARY:
            yield token, bucket(evidence[agreed], ahead)
            if agreed is not Consensus.ALL:
                live = [p for p in live if tokens[p + ahead] == token]
            ahead += 1
            followers = [tokens[p + ahead] for p in live]
            token = followers[0]
            agreeing = followers.count(token)
            if agreeing < len(live):
                if max(followers) >= FIRST_BOUNDARY:
                    followers = [min(follower, FIRST_BOUNDARY) for follower in followers]
                token = max(followers, key=followers.count)
                agreeing = followers.count(token)
            agreed = consensus_of(agreeing, len(live))
        only_one = evidence[Consensus.ONLY]
        while token < FIRST_BOUNDARY:
            yield token, bucket(only_one, ahead)
            ahead += 1
            token = tokens[live[0] + ahead]

    def _rewrite_at(self, position: int, end: int) -> Rewrite | None:
        rewrite = self._alignment.rewrites.at(self._occurrences.tokens, position)
        return rewrite if rewrite is not None and position + len(rewrite.old) <= end else None
