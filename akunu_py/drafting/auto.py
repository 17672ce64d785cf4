"""AutoDrafter: the default drafter; copies through edits, or follows the best earlier occurrence.

It has four sources, and drafts from the one whose next token is most likely to be accepted:

- *copy*: the text that is being copied, with the edits learnt from it repeated (`Rewrite`);
- *resumed*: the copy found again near the place where an edit broke it;
- *match*: what followed the longest earlier occurrence of the last tokens;
- *recall*: what followed them in other texts, if it has tiers of these.

With other texts, each token of a draft is the request's or the recalled one. Each is more likely to
be right where the other source says the same, and less where it says something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from akunu_py.drafting.alignment import SOLID_RUN, Alignment, Anchor, Rewrite
from akunu_py.drafting.base import FIRST_BOUNDARY, NO_DRAFT, Draft, Keeper, Recall, Tier
from akunu_py.drafting.expectation import (
    LEFT,
    SILENT,
    Expectations,
    bucket,
    copy_evidence,
    match_evidence,
    resumed_evidence,
    rewrite_evidence,
    rival_of,
    support_of,
)
from akunu_py.drafting.occurrences import (
    CONSENSUS,
    MAX_COMPARED,
    Consensus,
    Match,
    Occurrences,
)
from akunu_py.errors import InvalidRequestError
from akunu_py.tokens import common_prefix_length

TOKEN_COST: Final = 0.12
"""What verifying one drafted token usually costs, in forwards: a compromise between the chips that
were measured."""

MIN_REACH_PROB: Final = 0.1
"""A draft ends before a token that is reached and accepted with a lower probability than this."""

STEADY_RUN: Final = 12
"""After a longer run only the copy is drafted from: it is more reliable than any other source."""

SURE: Final = 0.9
"""Nothing is recalled where the request itself is likelier to be right than this."""


class CopyCandidate(NamedTuple):
    """Where a draft could be copied from, and the evidence of its first token."""

    source: str
    evidence: int
    position: int
    length: int
    resumed: Anchor | None = None
    match: Match | None = None


class AutoDrafter:
    """Drafts many tokens during a copy, and none without evidence.

    What it learns of its own acceptance outlives the request. Of the tokens, only those that the
    next request begins with do, unless it has a keeper.

    It drafts until acceptance is less likely than `MIN_REACH_PROB`, for a planner that knows the
    machine's costs and cuts the draft by `Draft.accept_probs`. For a planner that does not know
    them, `Draft.suggested_length` is how many of the tokens are worth their usual cost.

    Args:
        token_cost: the cost of verifying one drafted token, in forwards. The suggested length
            continues while the next token's expected gain per cost is above the draft's average so
            far: an unlikely token is worth a try at the start of a draft, but not at the end of a
            long copy, which the next round can continue.
        expectations: what was learnt, to share with drafters of other requests.
        tiers: other texts to draft from where these are more likely to be right than the request.

    Attributes:
        tiers: the same; to be changed only between requests.
        keeper: keeps the texts of requests that have ended, or None.

    Raises:
        InvalidRequestError: if `token_cost` is negative.
    """

    def __init__(
        self,
        token_cost: float = TOKEN_COST,
        tiers: Sequence[Tier] = (),
        expectations: Expectations | None = None,
    ) -> None:
        if not token_cost >= 0:
            raise InvalidRequestError(
                f"The cost of a drafted token must be 0 or more, not {token_cost}."
            )
        self._token_cost = token_cost
        self.tiers = tiers
        self.keeper: Keeper | None = None
        self._expectations = expectations or Expectations()
        self._occurrences = Occurrences()
        self.begin(())

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        before = self._occurrences
        old = before.tokens.copy() if self.keeper is not None else []
        self._occurrences = before.for_request(prompt, references)
        if self.keeper is not None and self._occurrences is before:
            self.keeper.take_back(before)
            # What this request does not go on with, behind the tokens that it is found by.
            shared = common_prefix_length(old, before.tokens)
            self.keeper.keep(Occurrences(old[max(0, shared - MAX_COMPARED) :]))
        self._alignment = Alignment(self._occurrences)
        self._answer_start = len(self._occurrences.tokens)
        self._drafted: tuple[int, ...] = ()
        self._buckets: list[tuple[int, int]] = []
        self._untried: tuple[int, int, int] | None = None

    def end(self) -> None:
        """Has the text of a request kept that has ended."""
        if self.keeper is not None:
            self.keeper.keep(self._occurrences)

    def extend(self, tokens: Sequence[int]) -> None:
        if self._untried is not None and len(tokens):
            # A first token that was proposed but not verified is compared with what came.
            token_bucket, bigram_affinity, guess = self._untried
            self._expectations.learn(token_bucket, bigram_affinity, guess == tokens[0])
            self._untried = None
        advance, append = self._alignment.advance, self._occurrences.append
        for token in tokens:
            advance(token)
            append(token)

    def propose(self, limit: int) -> Draft:
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
            source, length = "recall", recall.length
        else:
            self._untried = None
            return NO_DRAFT
        return self._draft(source, length, self._steps(candidate, recall), limit)

    def propose_after(self, tokens: Sequence[int], limit: int) -> Draft:
        """What it would propose if `tokens` were emitted next; nothing of it is kept."""
        kept = self._alignment, self._drafted, self._buckets, self._untried
        size = len(self._occurrences.tokens)
        self._alignment, self._untried = self._alignment.copy(), None
        try:
            self.extend(tokens)
            return self.propose(limit)
        finally:
            self._occurrences.truncate(size)
            self._alignment, self._drafted, self._buckets, self._untried = kept

    def feedback(self, draft: Draft, accepted: int) -> None:
        verified = len(draft.tokens)
        if verified == 0 or draft.tokens != self._drafted[:verified]:
            return
        self._untried = None
        learn = self._expectations.learn
        for token_bucket, bigram_affinity in self._buckets[:accepted]:
            learn(token_bucket, bigram_affinity, True)
        if accepted < verified:
            learn(*self._buckets[accepted], False)

    def _best_candidate(self) -> CopyCandidate | None:
        alignment = self._alignment
        copy: CopyCandidate | None = None
        if alignment.source >= 0 and alignment.run >= SOLID_RUN:
            evidence = copy_evidence(alignment.run)
            copy = CopyCandidate("copy", evidence, alignment.source, alignment.run)
            if alignment.run >= STEADY_RUN:
                return copy
        elif (found := alignment.resumption()) is not None:
            evidence = resumed_evidence(found.length, found.distance)
            copy = CopyCandidate("resumed", evidence, found.position, found.length, found.anchor)
        match = self._occurrences.best(earliest=not alignment.has_copied)
        if match is None:
            return copy
        evidence = self._match_evidence(match)[match.consensus]
        followed = CopyCandidate("match", evidence, match.position, match.length, None, match)
        if copy is None or self._accept_prob(copy) < self._accept_prob(followed):
            return followed
        return copy

    def _recalled(self) -> Recall | None:
        """What the tiers recall that is most likely to be right."""
        found, best = None, 0.0
        for tier in self.tiers:
            recall = tier.recall(self._occurrences.tokens)
            if recall is not None:
                prob = self._expectations.of(bucket(recall.evidence, 0), LEFT)
                if prob > best:
                    found, best = recall, prob
        return found

    def _begins(self, candidate: CopyCandidate | None, recall: Recall) -> bool:
        """Whether a draft begins with the token of a candidate, and not with another recalled."""
        if candidate is None:
            return False
        tokens = self._occurrences.tokens
        own = tokens[candidate.position], bucket(candidate.evidence, 0)
        step = self._likelier(own, recall, tokens[-1], 0)
        return step is not None and step[0] == own[0]

    def _likelier(
        self, own: tuple[int, int] | None, recall: Recall, before: int, ahead: int
    ) -> tuple[int, int, int] | None:
        """The request's next token, or the recalled one if that is more likely.

        Args:
            own: the request's token and its bucket, if there is one.
            recall: what follows in other texts.
            before: the token before it.
            ahead: how many tokens of the draft are before it.

        Returns:
            The token, its bucket and its context; None if there is neither.
        """
        rival, best, found = LEFT if ahead else SILENT, 0.0, None
        if own is not None:
            token, where = own
            context = self._occurrences.bigram_affinity(before, token)
            rival = rival_of(self._expectations.of(where, context))
            context += support_of(recall.length, recall.shares.get(token, 0.0))
            best, found = self._expectations.of(where, context), (token, where, context)
        if recall.token is None or (own is not None and recall.token == own[0]):
            return found
        where = bucket(recall.evidence, ahead)
        if self._expectations.of(where, rival) <= best:
            return found
        return recall.token, where, rival

    def _accept_prob(self, candidate: CopyCandidate) -> float:
        """How likely its first token is to be accepted."""
        tokens = self._occurrences.tokens
        bigram_affinity = self._occurrences.bigram_affinity(tokens[-1], tokens[candidate.position])
        return self._expectations.of(bucket(candidate.evidence, 0), bigram_affinity)

    def _match_evidence(self, match: Match) -> tuple[int, int, int, int]:
        """By `Consensus`, the evidence of a match.

        A match of the whole answer so far is strong, but not before the answer has a token: then
        it has only seen the chat template, and would repeat the question.
        """
        answered = len(self._occurrences.tokens) - self._answer_start
        return match_evidence(match.length, whole_answer=0 < answered <= match.length)

    def _draft(
        self, source: str, length: int, steps: Iterator[tuple[int, int, int]], limit: int
    ) -> Draft:
        """Takes steps up to the limit, or until acceptance is too unlikely."""
        tokens, size = self._occurrences.tokens, len(self._occurrences.tokens)
        before = tokens[-1]
        expectation = self._expectations.of
        token_cost = self._token_cost
        expected: list[float] = []
        buckets: list[tuple[int, int]] = []
        reach_prob, gain, cost = 1.0, 1.0, 1.0
        suggested_length: int | None = None
        # The draft is appended to the tokens while it is made, so that a copy may continue into it.
        try:
            for token, token_bucket, context in steps:
                acceptance = expectation(token_bucket, context)
                buckets.append((token_bucket, context))
                before = token
                reach_prob *= acceptance
                if reach_prob < MIN_REACH_PROB or len(expected) >= limit:
                    break
                if suggested_length is None and reach_prob * cost < token_cost * gain:
                    suggested_length = len(expected)
                gain += reach_prob
                cost += token_cost
                expected.append(acceptance)
                tokens.append(token)
            self._drafted, self._buckets = tuple(tokens[size:]), buckets
        finally:
            del tokens[size:]
        first = self._drafted[0] if expected else before
        self._untried = (*buckets[0], first) if buckets else None
        if not expected:
            return NO_DRAFT
        return Draft(self._drafted, source, length, None, tuple(expected), suggested_length)

    def _steps(
        self, candidate: CopyCandidate | None, recall: Recall | None
    ) -> Iterator[tuple[int, int, int]]:
        """The tokens that likely follow, each with its bucket and its context.

        The request's candidate is followed until a recalled token is more likely, and what is
        recalled as far as it goes on with the tokens of the draft.
        """
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
        affinity = self._occurrences.bigram_affinity
        while own is not None:
            token, where = own
            yield token, where, affinity(before, token)
            before, own = token, next(copied, None)

    def _copied(self, candidate: CopyCandidate) -> Iterator[tuple[int, int]]:
        """The copied tokens, with rewrites made, each with its bucket."""
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
        """The most frequent next tokens of the occurrences that agreed so far, with buckets."""
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
            agreed = CONSENSUS[len(live)][agreeing]
        only_one = evidence[Consensus.ONLY]
        while token < FIRST_BOUNDARY:
            yield token, bucket(only_one, ahead)
            ahead += 1
            token = tokens[live[0] + ahead]

    def _rewrite_at(self, position: int, end: int) -> Rewrite | None:
        """The rewrite expected at a position before `end`, where the draft begins."""
        rewrite = self._alignment.rewrites.at(self._occurrences.tokens, position)
        return rewrite if rewrite is not None and position + len(rewrite.old) <= end else None
