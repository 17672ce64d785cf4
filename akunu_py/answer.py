"""Answer: a request that is being answered, one forward at a time.

It takes a cache, computes what that lacks of the prompt, decodes, turns tokens into text, and stops
where the request says. Several answers of an engine may be under way: each has a cache, a sampler
and a drafter of its own, and whoever advances them decides who comes next.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from copy import copy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from akunu_py.cache.prefix_pool import PrefixPool, PrefixSlot
from akunu_py.decoding.batch import Batch
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Limits, Target, decode
from akunu_py.decoding.scheduler import Phase
from akunu_py.decoding.speculation import SpeculationState
from akunu_py.decoding.target import ModelTarget
from akunu_py.machine.backend import Backend, ResidentWeights
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Options
from akunu_py.prompt import Prompt, encode_references
from akunu_py.request import Event
from akunu_py.round import Finish, Round
from akunu_py.sampling.forward_logprobs import SCORING_STEP, PromptScorer
from akunu_py.sampling.logprobs import LogprobRequest
from akunu_py.sampling.sampler import Sampler
from akunu_py.stats import EngineCounters, Stats
from akunu_py.text.stream import TextStream

PrefillProgress = Callable[[int, int], None]
"""Called with the number of prompt tokens done, and the number of all."""

_CHECKPOINT_EVERY: Final = 2048
"""Prompt tokens between two checkpoints of a cache that needs them."""

_TURN_CHECKPOINTS: Final = 4
"""How many of the last special tokens of a prompt get a checkpoint before them: in ChatML, those of
the last two messages."""


@dataclass(frozen=True)
class Shared:
    """What the answers of an engine have in common.

    Attributes:
        batch: runs one forward for several that decode.
        prefixes: their caches.
        counters: what all of them did.
        resident_weights: entered while any of them is under way.
        prefill_step_size: prompt tokens per forward; None leaves it to the backend.
    """

    model: TargetModel
    backend: Backend
    batch: Batch
    prefixes: PrefixPool
    speculation: SpeculationState
    counters: EngineCounters
    prefill_step_size: int | None
    resident_weights: ResidentWeights = field(default_factory=ResidentWeights)


class Answer:
    """What one request has and computes.

    Args:
        shared: what it has in common with others.
        prompt: what it asks.
        options: what else.
        sampler: chooses its tokens.
        session: drafts for it; released at its end.
        text: turns its tokens into text.
        progress: called with the number of prompt tokens done, and the number of all.
        cancelled: asked between two forwards.

    Attributes:
        stats: its sums so far; any thread may read them.
        computed_tokens: how many tokens of the prompt it has computed; any thread may read it.
        phase: what the next `advance` does; None if the last one waited for others.
    """

    def __init__(
        self,
        shared: Shared,
        prompt: Prompt,
        options: Options,
        *,
        sampler: Sampler,
        session: DraftSession,
        text: TextStream,
        progress: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.stats = Stats(prompt_tokens=len(prompt.tokens))
        self.phase: Phase | None = Phase.PREFILLING
        self.computed_tokens = 0
        self._shared = shared
        self._prompt = prompt
        self._options = options
        self._sampler = sampler
        self._session = session
        self._text = text
        self._progress = progress
        self._cancelled = cancelled
        self._begun = 0.0
        self._scorer: PromptScorer | None = None
        if options.scores_prompt:
            self._scorer = PromptScorer(prompt.tokens, options.logprobs or 0)
        self._slot: PrefixSlot | None = None
        self._next_phase = Phase.PREFILLING
        self._steps = self._run()

    def advance(self, *, may_wait: bool = False) -> Event | None:
        """Computes a chunk of the prompt or a round; None if that says nothing yet.

        The last event, and only it, has a finish reason.

        Args:
            may_wait: whether to do nothing if there is not enough memory beside other answers, or
                one of them is computing a prompt that begins like this one.

        Raises:
            Exception: what went wrong; the answer has ended then.
        """
        try:
            if not self._is_cancelled() and not self._reserve(may_wait=may_wait):
                self.phase = None
                return None
            with self._shared.model.guard():
                event = next(self._steps, None)
        except BaseException:
            self.close()
            raise
        self.phase = self._next_phase
        if event is not None and event.finish_reason is not None:
            self.close()
        return event

    def events(self) -> Generator[Event, None, None]:
        """The whole answer, if nothing else is advanced meanwhile."""
        try:
            while self.phase is not Phase.DONE:
                event = self.advance()
                if event is not None:
                    yield event
        finally:
            self.close()

    @property
    def slot_id(self) -> int | None:
        """Which cache it uses; None before it has one, and at the end. Any thread may ask."""
        slot = self._slot
        return None if slot is None else slot.id

    def close(self) -> None:
        """Ends it and gives back what it used."""
        if self.phase is not Phase.DONE:
            self.phase = Phase.DONE
            self._steps.close()
            self._session.release()
            self._slot = None  # the pool may drop the cache while somebody still holds this

    @property
    def tokens_left(self) -> int:
        """How many tokens of its prompt are to be computed."""
        prompt, known = self._prompt.tokens, self.stats.cached_tokens
        if self._slot is None and not self._options.scores_prompt:
            known = self._shared.prefixes.known(prompt)
        return len(prompt) - known - self.computed_tokens

    def _is_cancelled(self) -> bool:
        return self._cancelled is not None and self._cancelled()

    def _reserve(self, *, may_wait: bool) -> bool:
        """Takes memory for the next forward; False if it has to wait for that, or better waits.

        Others ask before that forward runs, so what it needs is taken at once.
        """
        prefixes, slot = self._shared.prefixes, self._slot
        if slot is None:
            prompt = self._prompt.tokens
            if may_wait and not self._options.scores_prompt and prefixes.is_coming(prompt):
                return False
            return not may_wait or prefixes.has_room(self._first_room)
        # A round begins with the forward that is in flight, and may send the next two.
        padded = self._shared.model.padding.values()
        rows = self._session.num_draft_tokens, self._shared.speculation.block_rows, *padded
        longest = 2 * (2 + max(rows))
        wanted = min(slot.cache.length + longest, prefixes.limit)
        if wanted <= slot.cache.capacity:
            return True
        if may_wait and not prefixes.has_room(wanted, slot):
            return False
        prefixes.grow(slot, wanted)
        return True

    @property
    def _first_room(self) -> int:
        """The tokens that a cache for it has room for at first; it grows with the answer, however
        many tokens that may have."""
        return min(len(self._prompt.tokens) + 1, self._shared.prefixes.limit)

    def _event(self, outcome: Round) -> Event:
        """Turns a round into text, cuts it where the text stops, and only then counts it."""
        pieces, text = [], self._text
        for position, token in enumerate(outcome.tokens):
            pieces.append(text.feed(token, drafted=position < outcome.accepted))
            if text.stopped:
                outcome.cut(position + 1, Finish.STOP)
                break
        if outcome.finish is None and self._is_cancelled():
            outcome.finish = Finish.CANCELLED
        if outcome.finish is not None:
            pieces.append(text.finish())
            if text.stopped:
                outcome.finish = Finish.STOP
        self.stats.add(outcome)
        return Event(outcome, tuple(pieces), copy(self.stats), stop=text.stop)

    def _run(self) -> Generator[Event | None, None, None]:
        """Yields once for each forward: what it says, if anything."""
        shared, stats, options = self._shared, self.stats, self._options
        shared.counters.requests += 1
        rows = shared.speculation.rows_of(options)
        prompt, scorer = self._prompt.tokens, self._scorer
        decodes = options.max_tokens != 0
        computed = list(prompt)
        if self._is_cancelled():
            yield Event(Round(finish=Finish.CANCELLED), (), stats)
            return
        begun = self._begun = perf_counter()
        self._slot = slot = self._take_slot()
        try:
            with shared.resident_weights:
                # The first round computes the last token, because it predicts what follows.
                end = len(prompt) - 1 if decodes else len(prompt)
                is_whole = yield from self._prefill(prompt[stats.cached_tokens : end], slot)
                scored = scorer.logprobs if scorer and is_whole else None
                prefilled = perf_counter()
                stats.prefill_s = prefilled - begun
                if not (is_whole and decodes):
                    finish = Finish.LENGTH if is_whole else Finish.CANCELLED
                    yield Event(Round(finish=finish), (), stats, scored)
                    return
                shared.prefixes.share(slot, prompt)
                with closing(self._decode(slot)) as rounds:
                    next(rounds)  # submits the first forward, which may be one with others
                    self._next_phase = Phase.DECODING
                    # An empty round carries the prompt's log-probabilities.
                    yield None if scored is None else Event(Round(), (), stats, scored)
                    for outcome in rounds:
                        assert outcome is not None
                        shared.counters.rounds += 1
                        computed.extend(outcome.tokens)
                        if outcome.end_token is not None:
                            computed.append(outcome.end_token)
                        now = perf_counter()
                        stats.decode_since, stats.decode_s = prefilled, now - prefilled
                        stats.ttft_s = stats.ttft_s or now - begun
                        yield self._event(outcome)
        except GeneratorExit:  # between two forwards
            raise
        except BaseException:
            # A forward may have ended early: its layers then hold different numbers of tokens.
            shared.prefixes.drop(slot)
            raise
        finally:
            if decodes and options.exact and not shared.speculation.why_impossible:
                # What is kept must not depend on drafts either: whole blocks, or the prompt.
                whole = stats.generated_tokens // rows * rows if rows else 0
                del computed[len(prompt) - 1 + whole :]
            shared.prefixes.settle(slot, [] if options.scores_prompt else computed)

    def _take_slot(self) -> PrefixSlot:
        """The cache to answer from, which may hold a part of the prompt already.

        A prompt that is scored is computed from its first token on.
        """
        prefixes, prompt, options = self._shared.prefixes, self._prompt.tokens, self._options
        known = prompt[:1] if options.scores_prompt else prompt
        try:
            slot, self.stats.cached_tokens = prefixes.take(known, self._first_room, options.slot)
        except BaseException:  # no memory left, or a cache that was interrupted while it was copied
            prefixes.clear()
            raise
        return slot

    def _prefill(
        self, tokens: Sequence[int], slot: PrefixSlot
    ) -> Generator[Event | None, None, bool]:
        """Computes prompt tokens; False if the request was cancelled before they were all done."""
        shared, scorer = self._shared, self._scorer
        if self._options.reports_progress:
            yield self._prompt_event(self.stats.cached_tokens)
        can_cancel = self._cancelled is not None
        step = shared.prefill_step_size or shared.backend.prefill_step(can_cancel)
        ends = self._checkpoint_lengths() if slot.cache.needs_checkpoints else []
        before, overlaps = 0, not (can_cancel or scorer or ends)
        for done in shared.model.prefill_chunks(
            tokens,
            slot.cache,
            step=min(step, SCORING_STEP) if scorer else step,
            overlaps=overlaps,
            observe=scorer.take if scorer else None,
            ends=ends,
        ):
            shared.counters.prefill_chunks += 1
            shared.counters.prefill_tokens += done - before
            self.computed_tokens = before = done
            if slot.cache.length in ends:
                shared.prefixes.keep(slot)
            if not overlaps:
                shared.prefixes.share(slot, self._prompt.tokens)
            if self._progress:
                self._progress(done, len(tokens))
            if done < len(tokens):
                reports = self._options.reports_progress
                yield self._prompt_event(self.stats.cached_tokens + done) if reports else None
                if self._is_cancelled():
                    return False
        if self._options.reports_progress:
            yield self._prompt_event(self.stats.prompt_tokens)
        return True

    def _prompt_event(self, done: int) -> Event:
        self.stats.prefill_s = perf_counter() - self._begun
        return Event(Round(), (), copy(self.stats), prompt_done=done)

    def _checkpoint_lengths(self) -> list[int]:
        """Where to keep checkpoints of a prompt: every so many tokens, where its last turns begin,
        and at its end.

        A turn begins with a special token. The next prompt of a conversation may differ from there
        on: many templates leave out what an earlier answer thought.
        """
        prompt = self._prompt.tokens
        special = self._shared.model.tokenizer.special_tokens
        turns = [at for at, token in enumerate(prompt) if token in special][-_TURN_CHECKPOINTS:]
        return sorted(
            {*range(_CHECKPOINT_EVERY, len(prompt), _CHECKPOINT_EVERY), *turns, len(prompt) - 1}
        )

    def _decode(self, slot: PrefixSlot) -> Generator[Round | None, None, None]:
        """The rounds that answer a prompt whose last token is not in the cache yet.

        Before them it yields None, when the first forward has been submitted.
        """
        shared, session, options = self._shared, self._session, self._options
        prompt, limit = self._prompt.tokens, shared.prefixes.limit
        begun = perf_counter()
        if session.num_draft_tokens:
            references = encode_references(
                shared.model.tokenizer, options.references, limit, options.sample_calls
            )
            session.begin(prompt, references)
        self.stats.draft_s += perf_counter() - begun
        target = ModelTarget(
            shared.model,
            slot.cache,
            self._sampler,
            session.num_draft_tokens,
            limit=limit,
            grow=lambda tokens: shared.prefixes.grow(slot, tokens),
            logprobs=LogprobRequest(options.logprobs, session.num_top_ids, options.drawn_logprobs),
            forwards=lambda: shared.counters.forwards,
            block_rows=shared.speculation.rows_of(options),
        )
        longest = limit if options.max_tokens is None else options.max_tokens
        limits = Limits(longest, self._prompt.end_tokens)
        wants_drafts = options.num_draft_tokens is not None
        # The forwards of an exact answer may have no rows of others.
        decoding: AbstractContextManager[Target[Any]] = (
            nullcontext(target)
            if options.exact
            else shared.batch.member(target, keeps_drafts=wants_drafts)
        )
        with decoding as member:
            rounds = decode(member, session, prompt[-1], limits)
            yield None
            yield from rounds
