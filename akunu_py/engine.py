"""The engine: requests in, events out.

It owns a model and the caches of earlier requests, reuses what these already hold, decodes, turns
tokens into text, and stops where the request says. It runs one request at a time, on the thread
that loaded it: MLX arrays belong to the thread that made them.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from akunu_py import calibration
from akunu_py.backend import Backend, spare_cache_bytes, weights_kept_resident
from akunu_py.cache.prefix_pool import PrefixPool, PrefixSlot, SlotStatus
from akunu_py.cache.prompt_store import PromptStore
from akunu_py.calibration import NoCurveError, find_cost_curve
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Limits, decode
from akunu_py.decoding.speculation import Calibrate, DrafterFactory, SpeculationState
from akunu_py.decoding.target import ModelTarget
from akunu_py.errors import BackendError, ContextOverflowError, InvalidRequestError
from akunu_py.memory.projects import ProjectMemory
from akunu_py.model import PrefillProgress, TargetModel
from akunu_py.options import Options
from akunu_py.prompt import Prompt, PromptInput, encode_prompt, encode_references
from akunu_py.request import Completion, Event
from akunu_py.sampling.forward_logprobs import SCORING_STEP, PromptScorer
from akunu_py.sampling.logprobs import LogprobRequest
from akunu_py.sampling.sampler import Sampler, SamplerFactory
from akunu_py.stats import EngineCounters, Finish, Round, Stats
from akunu_py.text.stream import TextStream

_NO_MEMORY: Final = ProjectMemory()

_CHECKPOINT_EVERY: Final = 2048
"""Prompt tokens between two checkpoints of a cache that needs them."""

_TURN_CHECKPOINTS: Final = 4
"""How many of the last special tokens of a prompt get a checkpoint before them: in ChatML, those of
the last two messages."""


@dataclass
class _Request:
    """A running request: what it asked for, and its results so far."""

    prompt: Prompt
    options: Options
    sampler: Sampler
    session: DraftSession
    text: TextStream
    progress: PrefillProgress | None
    cancelled: Callable[[], bool] | None
    stats: Stats = field(default_factory=Stats)
    scorer: PromptScorer | None = None

    def event(self, outcome: Round) -> Event:
        """Turns a round into text, cuts it where the text stops, and only then counts it."""
        pieces = []
        for position, token in enumerate(outcome.tokens):
            pieces.append(self.text.feed(token, drafted=position < outcome.accepted))
            if self.text.stopped:
                outcome.cut(position + 1, Finish.STOP)
                break
        if outcome.finish is None and self.cancelled and self.cancelled():
            outcome.finish = Finish.CANCELLED
        if outcome.finish is not None:
            pieces.append(self.text.finish())
            if self.text.stopped:
                outcome.finish = Finish.STOP
        self.stats.add(outcome)
        return Event(outcome, tuple(pieces), copy(self.stats), stop=self.text.stop)


class Engine:
    """Answers requests with one model.

    Args:
        model: the target.
        backend: the machine it was loaded for.
        max_context: tokens that a prompt and its answer may have together; None leaves that to
            the model. Caches grow up to this size as requests need it.
        calibrate: called once, by the first request that leaves the number of draft tokens to the
            planner; the default measures nothing, but reads what was measured earlier.
        draft_model: drafts for requests whose drafter is `model` or `auto`.
        prefill_step_size: prompt tokens per forward; a cancelled request stops after the current
            one. None takes few if a request can be cancelled, else as many as are fastest.
        prompt_cache_bytes: bytes that the caches of requests may take together; None takes a share
            of the free memory. One request is always served, whatever it takes.
        prompt_store: keeps what they hold on disk, whenever `save_prompts` is called.
        memory: what `auto` drafts from besides the requests.

    Attributes:
        speculation: drafters, planners and costs, kept between requests.
        counters: what the engine has done since it was loaded; any thread may read it.

    Raises:
        ContextOverflowError: if `max_context` exceeds the model's.
        InvalidRequestError: if the draft model does not suit the model, or a step has no tokens.
    """

    def __init__(
        self,
        model: TargetModel,
        backend: Backend,
        *,
        max_context: int | None = None,
        calibrate: Calibrate = find_cost_curve,
        draft_model: TargetModel | None = None,
        prefill_step_size: int | None = None,
        prompt_cache_bytes: int | None = None,
        prompt_store: PromptStore | None = None,
        memory: ProjectMemory = _NO_MEMORY,
    ) -> None:
        if prefill_step_size is not None and prefill_step_size < 1:
            raise InvalidRequestError(
                f"A step of a prefill must have 1 token or more, not {prefill_step_size}."
            )
        if max_context is not None and not 1 <= max_context <= model.context_length:
            raise ContextOverflowError(
                f"The context must be from 1 to {model.context_length} tokens for {model.name}, "
                f"not {max_context}."
            )
        self.model = model
        self.backend = backend
        self.tokenizer = model.tokenizer
        self.counters = EngineCounters()
        self._prefill_step_size = prefill_step_size
        self._prefixes = PrefixPool(
            model.make_cache,
            limit=max_context or model.context_length,
            memory=spare_cache_bytes() if prompt_cache_bytes is None else prompt_cache_bytes,
            store=prompt_store,
        )
        self._memory_notice = memory.notice
        self.speculation = SpeculationState(model, backend, calibrate, draft_model, memory.segments)
        self._samplers = SamplerFactory(self.tokenizer, model.vocabulary_size)
        self._active: Generator[Event, None, None] | None = None

    @property
    def notices(self) -> list[str]:
        """Lines that the user should see once: what this machine or this model cannot do."""
        quantization, unquantized = self.model.kv_quantization, None
        if quantization and quantization.start >= self.context_limit:
            unquantized = (
                f"--kv-bits changes nothing: the context ends at {self.context_limit:,} tokens, "
                f"and --quantized-kv-start is {quantization.start:,}."
            )
        lines = (
            self.backend.warning,
            self.speculation.why_impossible,
            unquantized,
            self._memory_notice,
        )
        return [line for line in lines if line]

    @property
    def context_limit(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._prefixes.limit

    @property
    def slots(self) -> tuple[SlotStatus, ...]:
        """What the caches hold; any thread may read it."""
        return self._prefixes.statuses

    def add_drafter(self, name: str, make: DrafterFactory) -> None:
        """Lets requests name a drafter of your own.

        Args:
            name: what `Options.drafter` calls it.
            make: called for each request that names it, with the request's sampler.
        """
        self.speculation.add_drafter(name, make)

    def generate(
        self,
        prompt: PromptInput,
        options: Options | None = None,
        *,
        suffix: str | None = None,
    ) -> Completion:
        """Answers a prompt whole; see `stream` for the arguments and the errors."""
        completion = Completion(self.model.name)
        for event in self.stream(prompt, options, suffix=suffix):
            completion.add(event)
        return completion

    def stream(
        self,
        prompt: PromptInput,
        options: Options | None = None,
        *,
        suffix: str | None = None,
        sampler: Sampler | None = None,
        progress: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Generator[Event, None, None]:
        """Answers a prompt round by round; only the last event has a finish reason.

        A new request ends the one before it.

        Args:
            prompt: text, ids exactly as the model should see them, or a gap and the text around it.
            options: what else the request asks for; the default is greedy and speculative.
            suffix: the text after the gap that follows `prompt`, if the model can fill gaps.
            sampler: replaces the sampler of the options; benchmarks force known answers with it.
            progress: called with the number of prompt tokens done, and the number of all.
            cancelled: called between rounds, and between the chunks of a prefill.

        Raises:
            InvalidRequestError: if the prompt is empty or the options cannot be served.
            ContextOverflowError: if the prompt does not fit.
        """
        begun, options = perf_counter(), options or Options()
        asked = encode_prompt(self.model, prompt, suffix, options, self.context_limit)
        sampler = sampler or self._samplers.make(options, asked.tokens, asked.end_tokens)
        session = self.speculation.session(options, sampler, asked)
        text = TextStream(self.tokenizer.detokenizer(asked.tokens), options.stop)
        request = _Request(asked, options, sampler, session, text, progress, cancelled)
        request.stats.prompt_tokens = len(asked.tokens)
        request.stats.setup_s = perf_counter() - begun
        if options.scores_prompt:
            request.scorer = PromptScorer(asked.tokens, options.logprobs or 0)
        if self._active is not None:
            self._active.close()
        self._active = self._run(request)
        return self._active

    def reset(self) -> None:
        """Empties the caches; what is on disk stays there."""
        self._prefixes.clear()

    def measure_costs(self, interrupted: Callable[[], bool]) -> None:
        """Measures for a few seconds what forwards cost, if planners have to guess it.

        Meant for when no request waits; `interrupted` is asked often and ends it.
        """
        if not self.speculation.wants_costs:
            return

        def check(*_: float) -> None:
            if interrupted():
                raise InterruptedError

        with suppress(InterruptedError, NoCurveError, BackendError):
            curve = calibration.measure_and_store(self.model, self.backend, progress=check)
            self.speculation.trust(curve)

    def save_prompts(self, *, closing: bool = False) -> bool:
        """Writes a file of what the caches hold and the disk does not; False if there is no more.

        With `closing`, it writes everything.
        """
        return self._prefixes.save(closing=closing)

    def _run(self, request: _Request) -> Generator[Event, None, None]:
        self.counters.requests += 1
        rows = self.speculation.rows_of(request.options)
        prompt, options, stats = request.prompt.tokens, request.options, request.stats
        decodes = options.max_tokens != 0
        computed = list(prompt)
        begun = perf_counter()
        slot = self._take_slot(request)
        try:
            with weights_kept_resident():
                # The first round computes the last token, because it predicts what follows.
                end = len(prompt) - 1 if decodes else len(prompt)
                missing = prompt[stats.cached_tokens : end]
                is_whole = self._prefill(missing, slot, request)
                scored = request.scorer.logprobs if request.scorer and is_whole else None
                prefilled = perf_counter()
                stats.prefill_s = prefilled - begun
                if not (is_whole and decodes):
                    finish = Finish.LENGTH if is_whole else Finish.CANCELLED
                    yield Event(Round(finish=finish), (), stats, scored)
                    return
                if scored is not None:  # an empty round carries the prompt's log-probabilities
                    yield Event(Round(), (), stats, scored)
                for outcome in self._decode(request, slot):
                    self.counters.rounds += 1
                    computed.extend(outcome.tokens)
                    if outcome.end_token is not None:
                        computed.append(outcome.end_token)
                    now = perf_counter()
                    stats.decode_s = now - prefilled
                    stats.ttft_s = stats.ttft_s or now - begun
                    event = request.event(outcome)
                    yield event
                    if event.finish_reason is not None:
                        return
        except GeneratorExit:  # between two rounds
            raise
        except BaseException:
            # A forward may have ended early: its layers then hold different numbers of tokens.
            self._prefixes.drop(slot)
            raise
        finally:
            if rows and decodes:  # what is kept must not depend on drafts either
                del computed[len(prompt) - 1 + stats.generated_tokens // rows * rows :]
            self._prefixes.settle(slot, [] if options.scores_prompt else computed)

    def _take_slot(self, request: _Request) -> PrefixSlot:
        """The cache to answer from, which may hold a part of the prompt already.

        A prompt that is scored is computed from its first token on. The cache grows with the
        answer, however many tokens it may have.
        """
        prompt, options = request.prompt.tokens, request.options
        room = min(len(prompt) + 1, self.context_limit)
        known = prompt[:1] if options.scores_prompt else prompt
        try:
            slot, request.stats.cached_tokens = self._prefixes.take(known, room, options.slot)
        except BaseException:  # no memory left, or a cache that was interrupted while it grew
            self._prefixes.clear()
            raise
        return slot

    def _prefill(self, tokens: Sequence[int], slot: PrefixSlot, request: _Request) -> bool:
        """Computes prompt tokens; False if the request was cancelled before they were all done."""
        before, scorer = self.counters.prefill_tokens, request.scorer
        step = self._prefill_step_size or self.backend.prefill_step(request.cancelled is not None)
        ends = self._checkpoint_lengths(request) if slot.cache.needs_checkpoints else []

        def count(done: int, total: int) -> None:
            self.counters.prefill_chunks += 1
            self.counters.prefill_tokens = before + done
            if slot.cache.length in ends:
                self._prefixes.keep(slot)
            if request.progress:
                request.progress(done, total)

        return self.model.prefill(
            tokens,
            slot.cache,
            step=min(step, SCORING_STEP) if scorer else step,
            progress=count,
            cancelled=request.cancelled,
            observe=scorer.take if scorer else None,
            ends=ends,
        )

    def _checkpoint_lengths(self, request: _Request) -> list[int]:
        """Where to keep checkpoints of a prompt: every so many tokens, where its last turns begin,
        and at its end.

        A turn begins with a special token. The next prompt of a conversation may differ from there
        on: many templates leave out what an earlier answer thought.
        """
        prompt = request.prompt.tokens
        special = self.tokenizer.special_tokens
        turns = [at for at, token in enumerate(prompt) if token in special][-_TURN_CHECKPOINTS:]
        return sorted(
            {*range(_CHECKPOINT_EVERY, len(prompt), _CHECKPOINT_EVERY), *turns, len(prompt) - 1}
        )

    def _decode(self, request: _Request, slot: PrefixSlot) -> Iterator[Round]:
        """The rounds that answer a prompt whose last token is not in the cache yet."""
        prompt, options, session = request.prompt.tokens, request.options, request.session
        begun, tie_breaker = perf_counter(), None
        if session.num_draft_tokens:
            references = encode_references(self.tokenizer, options.references, self.context_limit)
            session.begin(prompt, references)
            tie_breaker = self.speculation.tie_breaker(
                options, slot.cache, request.sampler, prompt[-1]
            )
        request.stats.draft_s += perf_counter() - begun
        target = ModelTarget(
            self.model,
            slot.cache,
            request.sampler,
            session.num_draft_tokens,
            limit=self.context_limit,
            grow=lambda tokens: self._prefixes.grow(slot, tokens),
            logprobs=LogprobRequest(options.logprobs, session.num_top_ids),
            tie_breaker=tie_breaker,
            block_rows=self.speculation.rows_of(options),
        )
        longest = self.context_limit if options.max_tokens is None else options.max_tokens
        limits = Limits(longest, request.prompt.end_tokens)
        return decode(target, session, prompt[-1], limits)
