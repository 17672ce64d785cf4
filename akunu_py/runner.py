"""Runner: computes the forward passes of sequences, one at a time.

A sequence takes a cache, computes what that lacks of its prompt, decodes, turns tokens into text,
and stops where the request says. Several may be in progress: each has its own cache, sampler and
drafter, and the scheduler decides whose forward pass comes next.
"""

from collections import abc
from collections.abc import Callable, Generator
from contextlib import suppress
from copy import copy
from functools import partial, wraps
from time import perf_counter
from typing import Concatenate, Final, ParamSpec, TypeVar, cast

import mlx.core as mx

from akunu_py.cache.prefix_pool import PrefixPool, PrefixSlot
from akunu_py.decoding.batch import Batch, Member
from akunu_py.decoding.loop import Limits
from akunu_py.decoding.speculation import SpeculationState
from akunu_py.decoding.target import ModelTarget
from akunu_py.events import Event
from akunu_py.machine.backend import Backend
from akunu_py.machine.threads import Owner
from akunu_py.model.target_model import TargetModel
from akunu_py.planning.costs import KnownCosts
from akunu_py.planning.row_class import RowClass
from akunu_py.prompt import encode_prompt, encode_references
from akunu_py.prompt_memory import ChunkSize, PromptMemory
from akunu_py.rounds import EngineCounters, Finish, Round
from akunu_py.sampling.forward_logprobs import SCORING_STEP, PromptScorer
from akunu_py.sampling.sampler import SamplerFactory
from akunu_py.sequence import Phase, Sequence
from akunu_py.text.stream import TextStream
from akunu_py.tokens import LogprobRequest, Origin, common_prefix_length

WORTH_WAITING: Final = 16
"""A sequence waits for another one if they share this many tokens or more: computing fewer again
takes less time than a chunk of the other's prompt."""

_CHECKPOINT_EVERY: Final = 2048
"""Prompt tokens between two checkpoints of a cache that needs them."""

_TURN_CHECKPOINTS: Final = 4
"""There is a checkpoint before each of this many last special tokens of a prompt: in ChatML, those
of the last two messages."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _refusing_others(
    method: "Callable[Concatenate[Runner, _P], _T]",
) -> "Callable[Concatenate[Runner, _P], _T]":
    """Refuses calls to the engine from what a method calls, such as a drafter."""

    @wraps(method)
    def refusing(self: "Runner", *args: _P.args, **named: _P.kwargs) -> _T:
        with self.owner.working():
            return method(self, *args, **named)

    return cast("Callable[Concatenate[Runner, _P], _T]", refusing)


class Runner:
    """Computes with one model; see `scheduler.SequenceRunner` for its contract. Only the thread
    that is its `owner` may use it. `prefill_step_size` is in prompt tokens per forward pass; None
    leaves it to the backend. `costs` decide the rows of exact answers.
    """

    def __init__(
        self,
        model: TargetModel,
        backend: Backend,
        *,
        batch: Batch,
        prefixes: PrefixPool,
        speculation: SpeculationState,
        costs: KnownCosts,
        prefill_step_size: int | None,
    ) -> None:
        self.counters = EngineCounters()
        self.owner = Owner()
        self._model = model
        self._batch = batch
        self._prefixes = prefixes
        self._speculation = speculation
        self._costs = costs
        self.samplers = SamplerFactory(model.tokenizer, model.vocabulary_size)
        self._memory = PromptMemory(model, backend, prefixes, prefill_step_size)

    @_refusing_others
    def encode(self, sequence: Sequence) -> None:
        begun = perf_counter()
        try:
            encoded = encode_prompt(
                self._model, sequence.asked, sequence.options, self._prefixes.limit
            )
        except BaseException as error:
            self._fail(sequence, error)
        else:
            sequence.prompt = list(encoded.tokens)
            sequence.end_tokens, sequence.fills_gap = encoded.end_tokens, encoded.fills_gap
            sequence.tokens = list(sequence.prompt)
            sequence.phase = Phase.WAITING
            sequence.stats.prompt_tokens = len(sequence.prompt)
            sequence.stats.setup_s = perf_counter() - begun

    def is_being_computed(self, sequence: Sequence, running: tuple[Sequence, ...]) -> bool:
        """Whether an equally urgent sequence will soon have more of the prompt than any has now.

        One that has computed the whole shared part does not count: it may be past it.
        """
        prompt, coming = sequence.prompt, 0
        for one in running if not sequence.options.scores_prompt else ():
            is_ahead = one.phase is Phase.PREFILLING and one.rank <= sequence.rank
            if is_ahead and one.slot is not None and not one.options.scores_prompt:
                shared = common_prefix_length(one.prompt, prompt)
                if shared > len(one.slot.tokens) and one.slot.cache.can_rollback:
                    coming = max(coming, min(shared, len(prompt) - 1))
        return coming >= WORTH_WAITING and coming > self._prefixes.known(prompt)

    def has_room(self, sequence: Sequence) -> bool:
        # The pool adds some room for the answer.
        tokens = self._first_room(sequence)
        self._memory.limit_caches(tokens)
        return self._prefixes.has_room(tokens)

    @_refusing_others
    def prepare(self, sequence: Sequence) -> None:
        """Gives an encoded sequence its sampler and its drafting session."""
        begun, options, prompt = perf_counter(), sequence.options, sequence.prompt
        sequence.stats.queue_s = begun - sequence.arrived - sequence.stats.setup_s
        try:
            sequence.sampler = sequence.sampler or self.samplers.make(
                options, prompt, sequence.end_tokens
            )
            sequence.session = self._speculation.session(
                options, sequence.sampler, prompt, sequence.end_tokens, sequence.fills_gap
            )
        except BaseException as error:
            self._fail(sequence, error)
        sequence.stats.setup_s += perf_counter() - begun

    @_refusing_others
    def start(self, sequence: Sequence) -> None:
        if sequence.session is None:
            self.prepare(sequence)
        if sequence.phase is Phase.DONE:
            return
        try:
            self.counters.requests += 1
            if not sequence.cancelled:
                sequence.slot = self._take_slot(sequence)
            sequence.phase = Phase.PREFILLING
            sequence.forwards = self._forwards(sequence)
        except BaseException as error:
            self._fail(sequence, error)

    def reserve(self, sequence: Sequence, *, anyway: bool) -> bool:
        prefixes, slot, session = self._prefixes, sequence.slot, sequence.session
        if slot is None or session is None or sequence.phase is not Phase.DECODING:
            return True
        # A round begins with the pass in flight, and may submit the next two.
        least = 1 if sequence.decoding is None else sequence.decoding.target.least_rows
        rows = session.num_draft_tokens, least, *self._model.padding.values()
        longest = 2 * (2 + max(rows))
        wanted = min(slot.cache.length + longest, prefixes.limit)
        if wanted <= slot.cache.capacity:
            return True
        if not anyway and not prefixes.has_room(wanted, slot):
            return False
        try:
            prefixes.grow(slot, wanted)
        except BaseException as error:
            self._end(sequence, error)
        return True

    @_refusing_others
    def advance(self, sequences: abc.Sequence[Sequence]) -> None:
        members = [(one, one.decoding) for one in sequences if one.decoding is not None]
        for sequence in sequences:
            if sequence.decoding is None and sequence.forwards is not None:
                self._hand_over(sequence, partial(next, sequence.forwards, None))
        if not members:
            return
        outcomes: abc.Sequence[Round | BaseException | None]
        try:
            with self._model.guard():
                outcomes = self._batch.advance([member for _, member in members])
        except BaseException as error:
            outcomes = [error] * len(members)
        for (sequence, _), outcome in zip(members, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self._fail(sequence, outcome.with_traceback(None))  # it refers to all these caches
            elif outcome is not None:
                self._hand_over(sequence, partial(self._event, sequence, outcome))

    def _hand_over(self, sequence: Sequence, next_event: Callable[[], Event | None]) -> None:
        reader = sequence.reader
        if reader is None:
            return
        try:
            with self._model.guard():
                event = next_event()
            if event is not None and event.finish_reason is not None:
                self.close(sequence)
        except BaseException as error:
            self._fail(sequence, error)
            return
        if event is not None:
            reader.put(event)
            if event.finish_reason is not None:
                reader.end()

    @_refusing_others
    def close(self, sequence: Sequence) -> None:
        """Ends a sequence and returns its resources; its cache keeps what it computed. An error of
        its drafter about the last tokens is raised after that.
        """
        forwards, decoding = sequence.forwards, sequence.decoding
        session, slot = sequence.session, sequence.slot
        # The pool may drop the cache while something still refers to the sequence.
        sequence.forwards = sequence.decoding = sequence.session = sequence.slot = None
        sequence.phase = Phase.DONE
        try:
            if forwards is not None:
                forwards.close()
            if decoding is not None:
                decoding.close()
        finally:
            if session is not None:  # first, so that the pool may drop the cache of a draft model
                session.release()
            if slot is not None:
                slot.cache.separate()
                kept = self._tokens_to_keep(sequence, has_states=slot.cache.has_states)
                self._prefixes.settle(slot, kept)

    def _fail(self, sequence: Sequence, error: BaseException) -> None:
        """Ends a sequence whose forward pass may have ended early, so that the layers of its cache
        may hold different numbers of tokens."""
        if sequence.slot is not None:
            self._prefixes.drop(sequence.slot)
        self._end(sequence, error)

    def _end(self, sequence: Sequence, error: BaseException) -> None:
        with suppress(BaseException):  # the first error is the one to report
            self.close(sequence)
        if isinstance(error, StopIteration):  # it would silently end the reader's iteration
            error = RuntimeError(f"a drafter raised {error!r}")
        if sequence.reader is not None:
            sequence.reader.end(error)

    def _tokens_to_keep(self, sequence: Sequence, *, has_states: bool) -> list[int]:
        """The part of a sequence's prompt and answer that later requests may reuse."""
        options = sequence.options
        if options.scores_prompt:
            return []
        rows = self._costs.rows_of(options)
        if rows is None or options.max_tokens == 0:
            return sequence.tokens
        if not options.exact and has_states:  # one token less may cost them all of the answer
            return sequence.tokens
        # It must not depend on drafts either: all but the last token, or whole blocks.
        size = rows if isinstance(rows, int) else 1
        whole = sequence.stats.generated_tokens // size * size
        return sequence.tokens[: len(sequence.prompt) - 1 + whole]

    def _first_room(self, sequence: Sequence) -> int:
        """The tokens that its cache has room for at first; the cache grows with the answer."""
        return min(len(sequence.prompt) + 1, self._prefixes.limit)

    def _take_slot(self, sequence: Sequence) -> PrefixSlot:
        """The cache to answer from; a scored prompt is computed from its first token on."""
        prefixes, prompt, options = self._prefixes, sequence.prompt, sequence.options
        self._memory.check(sequence)
        known, room = prompt[:1] if options.scores_prompt else prompt, self._first_room(sequence)
        try:
            slot, sequence.stats.cached_tokens = prefixes.take(known, room)
        except BaseException:  # out of memory, or an interrupt while a cache was copied
            prefixes.clear()
            raise
        return slot

    def _forwards(self, sequence: Sequence) -> Generator[Event | None, None, None]:
        """Yields once for each forward pass: its event, if any."""
        slot, stats, options = sequence.slot, sequence.stats, sequence.options
        if slot is None or sequence.cancelled:
            yield Event(Round(finish=Finish.CANCELLED), (), stats)
            return
        prompt, begun = sequence.prompt, perf_counter()
        sequence.began = begun
        if slot.cache.head is not None:
            session = sequence.session
            slot.cache.head.is_wanted = session is not None and session.chain is not None
        scorer = PromptScorer(prompt, options.logprobs or 0) if options.scores_prompt else None
        is_whole = yield from self._prefill(sequence, slot, scorer, begun)
        scored = scorer.logprobs if scorer and is_whole else None
        sequence.prefilled = perf_counter()
        stats.prefill_s = sequence.prefilled - begun
        if not is_whole or options.max_tokens == 0:
            finish = Finish.LENGTH if is_whole else Finish.CANCELLED
            yield Event(Round(finish=finish), (), stats, scored)
            return
        self._prefixes.share(slot, prompt)
        detokenizer = self._model.tokenizer.detokenizer(prompt)
        sequence.text = TextStream(detokenizer, options.stop, options.reasoning)
        sequence.decoding = self._member(sequence, slot)
        sequence.phase = Phase.DECODING
        # An empty round carries the prompt's log-probabilities.
        yield None if scored is None else Event(Round(), (), stats, scored)

    def _event(self, sequence: Sequence, outcome: Round) -> Event:
        stats, text = sequence.stats, sequence.text
        assert text, "it decodes"
        self.counters.rounds += 1
        sequence.tokens.extend(outcome.tokens)
        if outcome.end_token is not None:
            sequence.tokens.append(outcome.end_token)
        now = perf_counter()
        stats.decode_since, stats.decode_s = sequence.prefilled, now - sequence.prefilled
        stats.ttft_s = stats.ttft_s or now - sequence.began
        return _event(sequence, text, outcome, self._costs.step_s(outcome.context))

    def _prefill(
        self, sequence: Sequence, slot: PrefixSlot, scorer: PromptScorer | None, begun: float
    ) -> Generator[Event | None, None, bool]:
        """False if the request was cancelled before the end. The last token is left to the first
        round, because it predicts what follows."""
        stats, options = sequence.stats, sequence.options
        cached = stats.cached_tokens
        tokens = sequence.prompt[cached : None if options.max_tokens == 0 else -1]

        def told(done: int) -> Event | None:
            if not options.reports_progress:
                return None
            stats.prefill_s = perf_counter() - begun
            return Event(Round(), (), copy(stats), prompt_done=done)

        if options.reports_progress:
            yield told(cached)
        most = self._memory.step(sequence)
        if scorer:
            most = min(most, SCORING_STEP)
        chunk, varies = ChunkSize(most), self._memory.varies(sequence)
        ends = self._checkpoint_lengths(sequence.prompt) if slot.cache.needs_checkpoints else []
        overlaps = not (sequence.may_be_cancelled or scorer or ends)

        def resume() -> float:
            """Waits for the passes that others have in flight, and returns the time."""
            if varies and self._prefixes.in_company:
                mx.synchronize()
            return perf_counter()

        resumed = resume()
        for done in self._model.prefill_chunks(
            tokens,
            slot.cache,
            step=lambda: chunk.tokens if self._prefixes.in_company else most,
            overlaps=overlaps,
            observe=scorer.take if scorer else None,
            ends=ends,
        ):
            computed = done - sequence.computed_tokens
            if varies and computed == chunk.tokens and self._prefixes.in_company:
                chunk.learn(perf_counter() - resumed)
            self.counters.prefill_chunks += 1
            self.counters.prefill_tokens += computed
            sequence.computed_tokens = done
            if slot.cache.length in ends:
                self._prefixes.keep(slot)
            if not overlaps:
                self._prefixes.share(slot, sequence.prompt)
            if done < len(tokens):
                yield told(cached + done)
                if sequence.cancelled:
                    return False
            resumed = resume()
        if options.reports_progress:
            yield told(stats.prompt_tokens)
        return True

    def _checkpoint_lengths(self, prompt: list[int]) -> list[int]:
        """The checkpoints of a prompt: at regular distances, where its last turns begin, and at its
        end. A turn begins with a special token. The next prompt of a conversation may differ from
        there on, because many templates leave out the reasoning of earlier answers."""
        special = self._model.tokenizer.special_tokens
        turns = [at for at, token in enumerate(prompt) if token in special][-_TURN_CHECKPOINTS:]
        return sorted(
            {*range(_CHECKPOINT_EVERY, len(prompt), _CHECKPOINT_EVERY), *turns, len(prompt) - 1}
        )

    def _member(self, sequence: Sequence, slot: PrefixSlot) -> Member:
        """Decodes an answer to a prompt whose last token is not in the cache yet."""
        session, sampler, options = sequence.session, sequence.sampler, sequence.options
        assert session, "it has started"
        assert sampler, "it has started"
        prompt, limit = sequence.prompt, self._prefixes.limit
        begun = perf_counter()
        if session.num_draft_tokens:
            references = encode_references(
                self._model.tokenizer, options.references, limit, options.sample_calls
            )
            session.begin(prompt, references, slot.cache.head)
        sequence.stats.draft_s += perf_counter() - begun
        rows = self._costs.rows_of(options)
        target = ModelTarget(
            self._model,
            slot.cache,
            sampler,
            session.num_draft_tokens,
            limit=limit - 1,  # the last token of an answer is in no cache
            grow=lambda tokens: self._prefixes.grow(slot, tokens),
            logprobs=LogprobRequest(options.logprobs, options.drawn_logprobs),
            rows=rows,
        )
        longest = limit if options.max_tokens is None else options.max_tokens
        shared = rows.shared if isinstance(rows, RowClass) else 0
        return Member(
            target,
            session,
            prompt[-1],
            Limits(longest, sequence.end_tokens),
            most_rows=shared if options.exact else None,
            keeps_drafts=options.num_draft_tokens is not None,
        )


def _event(sequence: Sequence, text: TextStream, outcome: Round, step_s: float) -> Event:
    """Turns a round into text, cuts it where the text stops, and only then counts it. A step
    without a draft takes `step_s`, or 0 if that is unknown."""
    pieces = []
    for position, token in enumerate(outcome.tokens):
        drafted = outcome.draft.origin if position < outcome.accepted else Origin.NONE
        pieces.append(text.feed(token, drafted))
        if text.stop:
            outcome.cut(position + 1, Finish.STOP)
            break
    if outcome.finish is None and sequence.cancelled:
        outcome.finish = Finish.CANCELLED
    if outcome.finish is not None:
        pieces.append(text.finish())
        if text.stop:
            outcome.finish = Finish.STOP
    sequence.stats.add(outcome)
    sequence.stats.plain_s += step_s * len(outcome.tokens)
    if sequence.in_company:  # its time is not that of its own passes
        sequence.stats.plain_s = 0.0
    sequence.stats.reasoning_tokens = text.reasoning_tokens
    return Event(outcome, tuple(pieces), copy(sequence.stats), stop=text.stop)
