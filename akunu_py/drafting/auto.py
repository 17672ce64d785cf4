"""AutoDrafter: the default; copies through edits, else follows the best earlier occurrence.

Its sources, each drafting only as far as it is likely to stand:

- *copy*: the stretch being copied, with the edits learnt from it made again (`rewrite`);
- *resumed*: that stretch found again near the place where an edit broke it off;
- *match*: what followed the longest earlier occurrence of the last tokens, graded by its length
  and by how many occurrences agree.

For each token of theirs, how often the same or another followed the one before counts as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from akunu_py.drafting.alignment import Alignment, Anchor
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.drafting.expectation import (
    Expectations,
    bond_of,
    copy_grade,
    file_of,
    in_place_grade,
    match_grade,
    resumed_grade,
    rewrite_grade,
)
from akunu_py.drafting.occurrences import Consensus, Match, Occurrences, consensus
from akunu_py.drafting.references import FIRST_BOUNDARY
from akunu_py.drafting.rewrites import Rewrite
from akunu_py.errors import InvalidRequestError

PRICE: Final = 0.12
FAINT: Final = 0.08
FIRM_RUN: Final = 5
STEADY_RUN: Final = 12
LONGEST_IN_PLACE: Final = 2
LIKELY: Final = 0.5
WHOLE_ANSWER: Final = 9


class _Lead(NamedTuple):
    """Where a draft could be copied from, and what speaks for it."""

    source: str
    grade: int
    position: int
    length: int
    resumed: Anchor | None = None
    match: Match | None = None


class AutoDrafter:
    """Drafts long where a copy is under way and nothing where it would guess.

    What it learns of its own acceptance outlives the request; the tokens do not.

    It drafts as long as a token has a chance at all, for a planner that knows the machine's costs
    and cuts by `Draft.expected`. For others it says in `Draft.advised` how much of that is worth
    a try at the usual price.

    Args:
        price: what verifying one drafted token is then taken to cost, in forwards. A draft is
            worth going on with while its next token is expected to bring more for its price than
            the draft so far does: unsure tokens are worth a try where text comes slowly, and not
            at the end of a long copy, which the next round can take up again.

    Raises:
        InvalidRequestError: if `price` is negative.
    """

    def __init__(self, price: float = PRICE) -> None:
        if not price >= 0:
            raise InvalidRequestError(
                f"The price of a drafted token must be 0 or more, not {price}."
            )
        self._price = price
        self._expectations = Expectations()
        self.begin(())

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._expectations.begin()
        self._occurrences = Occurrences()
        for document in references:
            self._occurrences.append_all(document)
            self._occurrences.close_document()
        self._occurrences.append_all(prompt)
        self._alignment = Alignment(self._occurrences)
        self._answer_start = len(self._occurrences.tokens)
        self._drafted: tuple[int, ...] = ()
        self._files: list[tuple[int, int]] = []
        self._untried: tuple[int, int, int] | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        if self._untried is not None and len(tokens):
            file, bond, guess = self._untried
            self._expectations.learn(file, bond, guess == tokens[0])
            self._untried = None
        for token in tokens:
            self._alignment.advance(token)
            self._occurrences.append(token)

    def propose(self, limit: int) -> Draft:
        lead = self._best_lead()
        if lead is None:
            self._untried = None
            return NO_DRAFT
        alignment = self._alignment
        if lead.position != alignment.source:
            alignment.follow(lead.position, lead.length, resumed=lead.resumed)
        return self._draft(lead, limit)

    def feedback(self, draft: Draft, accepted: int) -> None:
        if not draft or draft.tokens != self._drafted[: len(draft)]:
            return
        self._untried = None
        for position, (file, bond) in enumerate(self._files[: min(accepted + 1, len(draft))]):
            self._expectations.learn(file, bond, position < accepted)

    def _best_lead(self) -> _Lead | None:
        alignment = self._alignment
        if alignment.source >= 0 and alignment.run >= STEADY_RUN:
            grade = copy_grade(alignment.run, agrees=True)
            return _Lead("copy", grade, alignment.source, alignment.run)
        match = self._occurrences.best(earliest=not alignment.has_copied)
        leads = self._copy_leads(match)
        if match is not None:
            grade = match_grade(self._weight(match), match.consensus)
            leads.append(_Lead("match", grade, match.position, match.length, match=match))
        if len(leads) < 2:
            return leads[0] if leads else None
        return max(leads, key=self._promise)

    def _promise(self, lead: _Lead) -> float:
        """How likely its first token is to stand."""
        tokens = self._occurrences.tokens
        bond = bond_of(*self._occurrences.followed(tokens[-1], tokens[lead.position]))
        return self._expectations.of(file_of(lead.grade, 0), bond)

    def _weight(self, match: Match) -> int:
        """The length that a match is graded by.

        One that goes back to where the answer begins could be no longer, and counts as a long one.
        """
        answered = len(self._occurrences.tokens) - self._answer_start
        return max(WHOLE_ANSWER, match.length) if 0 < answered <= match.length else match.length

    def _copy_leads(self, match: Match | None) -> list[_Lead]:
        """The copy under way, or else the places where a broken one may go on."""
        alignment = self._alignment
        tokens = self._occurrences.tokens
        likeliest = None if match is None else tokens[match.position]
        leads = []
        if (position := alignment.source) >= 0 and alignment.run >= FIRM_RUN:
            grade = copy_grade(alignment.run, agrees=tokens[position] == likeliest)
            leads.append(_Lead("copy", grade, position, alignment.run))
        elif (place := alignment.in_place()) is not None:
            replaced = len(tokens) - place.anchor.output
            if replaced <= LONGEST_IN_PLACE:
                grade = in_place_grade(replaced, agrees=tokens[place.position] == likeliest)
                leads.append(_Lead("resumed", grade, place.position, 0, place.anchor))
            if (found := alignment.resumption()) is not None:
                agrees = tokens[found.position] == likeliest
                grade = resumed_grade(found.length, found.nearness, agrees)
                lead = _Lead("resumed", grade, found.position, found.length, found.anchor)
                leads.append(lead)
        return leads

    def _draft(self, lead: _Lead, limit: int) -> Draft:
        """Follows the lead as far as it has a chance and the limit allows."""
        drafted: list[int] = []
        expected: list[float] = []
        files: list[tuple[int, int]] = []
        followed, expectation = self._occurrences.followed, self._expectations.of
        before = self._occurrences.tokens[-1]
        chance, gain, cost = 1.0, 1.0, 1.0
        advised: int | None = None
        self._untried = None
        match = lead.match
        steps = self._copied(lead, drafted) if match is None else self._agreed(match, drafted)
        for token, file in steps:
            bond = bond_of(*followed(before, token))
            before = token
            if self._untried is None:
                self._untried = (file, bond, token)
            acceptance = expectation(file, bond)
            chance *= acceptance
            if len(drafted) >= limit or chance < FAINT:
                break
            if advised is None and chance * cost < self._price * gain:
                advised = len(drafted)
            gain += chance
            cost += self._price
            drafted.append(token)
            expected.append(acceptance)
            files.append((file, bond))
        self._drafted, self._files = tuple(drafted), files
        if not drafted:
            return NO_DRAFT
        return Draft(self._drafted, lead.source, lead.length, None, tuple(expected), advised)

    def _copied(self, lead: _Lead, drafted: list[int]) -> Iterator[tuple[int, int]]:
        """The tokens that copying brings, rewritten on the way, each with the file it is under."""
        rewrites = self._alignment.rewrites
        rewrite, rewritten = self._alignment.rewrite, self._alignment.rewritten
        position = lead.position
        if rewrite is not None and not rewritten:
            rewrite = self._likely_rewrite(position)
        while True:
            if rewrite is not None:
                for token in rewrite.new[rewritten:]:
                    yield token, file_of(rewrite_grade(rewrite.repeats, begun=rewritten > 0), 0)
                    rewritten += 1
                position += len(rewrite.old)
            else:
                if (source := self._token_at(position, drafted)) is None:
                    return
                yield source, file_of(lead.grade, len(drafted))
                position += 1
            rewrite, rewritten = self._likely_rewrite(position) if rewrites else None, 0

    def _agreed(self, match: Match, drafted: list[int]) -> Iterator[tuple[int, int]]:
        """What most occurrences say that agreed so far, each token with the file it is under."""
        at = self._token_at
        token = at(match.position, drafted)
        agreed, weight = match.consensus, self._weight(match)
        live = [match.position, *[p for p in match.visited if p != match.position]]
        while token is not None:
            yield token, file_of(match_grade(weight, agreed), len(drafted))
            if len(live) == 1:
                live[0] += 1
                token = at(live[0], drafted)
                agreed = Consensus.ONLY
                continue
            live = [p + 1 for p in live if at(p, drafted) == token]
            followers = [at(p, drafted) for p in live]
            token = max(followers, key=followers.count)
            agreed = consensus(followers.count(token), len(followers))

    def _token_at(self, position: int, drafted: list[int]) -> int | None:
        """The token there; past the end of the request, what was drafted so far.

        None at the end of a reference.
        """
        tokens = self._occurrences.tokens
        if position < len(tokens):
            return token if (token := tokens[position]) < FIRST_BOUNDARY else None
        position -= len(tokens)
        return drafted[position] if position < len(drafted) else None

    def _likely_rewrite(self, position: int) -> Rewrite | None:
        rewrite = self._alignment.rewrites.at(self._occurrences.tokens, position)
        if rewrite is None:
            return None
        file = file_of(rewrite_grade(rewrite.repeats, begun=False), 0)
        return rewrite if self._expectations.of(file, 0) >= LIKELY else None
