"""The engine: requests in, events out.

It owns a model and the caches of earlier requests, and makes the answers, which compute. All of
them run on the thread that loaded it: MLX arrays belong to the thread that made them.
"""

from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import zip_longest
from time import monotonic, perf_counter
from typing import Final

from akunu_py.answer import Answer, PrefillProgress, Shared
from akunu_py.cache.prefix_pool import PrefixPool, SlotStatus
from akunu_py.cache.prompt_store import PromptStore
from akunu_py.calibration import measure as calibration
from akunu_py.calibration.measure import find_cost_curve
from akunu_py.decoding.batch import Batch
from akunu_py.decoding.scheduler import DEFAULT_PARALLEL, Phase, Scheduler, Sequence
from akunu_py.decoding.speculation import Calibrate, DrafterFactory, SpeculationState
from akunu_py.errors import ContextOverflowError, InvalidRequestError
from akunu_py.machine.backend import Backend, spare_cache_bytes
from akunu_py.memory.projects import Memory
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Options
from akunu_py.prompt import PromptInput, encode_prompt
from akunu_py.request import Completion, Event
from akunu_py.sampling.sampler import Sampler, SamplerFactory
from akunu_py.stats import EngineCounters
from akunu_py.text.stream import TextStream

_MEASURE_AGAIN_S: Final = 300.0
"""Seconds before costs are measured again that were not to be trusted."""

USUAL_TOKENS: Final = 2048
"""The tokens of a prompt and its answer for which there should be memory."""


class Engine:
    """Answers requests with one model.

    Args:
        model: the target.
        backend: the machine it was loaded for.
        max_context: tokens that a prompt and its answer may have together; None leaves that to
            the model. Caches grow up to this size as requests need it.
        calibrate: called once, by the first request that leaves the number of draft tokens to the
            planner; the default measures nothing, but reads what was measured earlier.
        draft_model: drafts for requests whose drafter is `model`.
        prefill_step_size: prompt tokens per forward; a cancelled request stops after the current
            one. None takes few if a request can be cancelled, else as many as are fastest.
        prompt_cache_bytes: bytes that the caches of requests may take together; None takes a share
            of the free memory. One request is always served, whatever it takes.
        prompt_store: keeps what they hold on disk, whenever `save_prompts` is called.
        memory: what `auto` drafts from besides the requests.

    Attributes:
        speculation: drafters, planners and costs, kept between requests.
        batch: the requests that decode now.
        memory: what `auto` drafts from besides the requests.
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
        memory: Memory | None = None,
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
        self._prefixes = PrefixPool(
            model.make_cache,
            model.cache_bytes,
            limit=max_context or model.context_length,
            memory=spare_cache_bytes() if prompt_cache_bytes is None else prompt_cache_bytes,
            store=prompt_store,
        )
        self.memory = memory or Memory()
        self.speculation = SpeculationState(model, backend, calibrate, draft_model, self.memory)
        self.batch = Batch(model, self.speculation.batch_costs)
        self._samplers = SamplerFactory(self.tokenizer, model.vocabulary_size)
        self._shared = Shared(
            model,
            backend,
            self.batch,
            self._prefixes,
            self.speculation,
            self.counters,
            prefill_step_size,
        )
        self._active: Answer | None = None
        self._measure_costs_at = 0.0

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
            *self.memory.notices,
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

        A new stream ends the one before it; what `begin` returned goes on.

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
        answer = self.begin(
            prompt, options, suffix=suffix, sampler=sampler, progress=progress, cancelled=cancelled
        )
        if self._active is not None:
            self._active.close()  # also if nobody has begun to read it
        self._active = answer
        return answer.events()

    def begin(
        self,
        prompt: PromptInput,
        options: Options | None = None,
        *,
        suffix: str | None = None,
        sampler: Sampler | None = None,
        progress: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Answer:
        """An answer that the caller advances, forward by forward; others may be under way.

        See `stream` for the arguments and the errors. Advance it to its end, or close it.
        """
        begun, options = perf_counter(), options or Options()
        asked = encode_prompt(self.model, prompt, suffix, options, self.context_limit)
        sampler = sampler or self._samplers.make(options, asked.tokens, asked.end_tokens)
        session = self.speculation.session(options, sampler, asked)
        text = TextStream(self.tokenizer.detokenizer(asked.tokens), options.stop)
        answer = Answer(
            self._shared,
            asked,
            options,
            sampler=sampler,
            session=session,
            text=text,
            progress=progress,
            cancelled=cancelled,
        )
        answer.stats.setup_s = perf_counter() - begun
        return answer

    def generate_batch(
        self,
        prompts: Iterable[PromptInput],
        options: Options | None = None,
        *,
        samplers: Iterable[Sampler] = (),
        parallel: int = DEFAULT_PARALLEL,
    ) -> list[Completion]:
        """Answers several prompts together, each as `generate` would; see `stream` for the errors.

        They share forwards unless they are exact, or `batch.why_impossible` says why not.

        Args:
            prompts: what they ask.
            options: what else each of them asks for.
            samplers: replace those of the options, one for each prompt.
            parallel: how many are answered at a time.

        Raises:
            InvalidRequestError: also if `parallel` is not positive.
        """
        if parallel < 1:
            raise InvalidRequestError(f"At least 1 prompt must be answered at a time: {parallel=}.")
        asked = list(zip_longest(prompts, samplers))
        scheduler = Scheduler(parallel)
        waiting = [Sequence(arrival=number) for number in range(len(asked))]
        completions = [Completion(self.model.name) for _ in asked]
        answers: list[Answer] = []

        def advance(
            sequence: Sequence, answer: Answer, completion: Completion, may_wait: bool
        ) -> Phase | None:
            event = answer.advance(may_wait=may_wait)
            sequence.left = answer.tokens_left
            if event is not None:
                completion.add(event)
            return answer.phase

        try:
            while waiting or scheduler.running:
                while (sequence := scheduler.candidate(waiting)) is not None:
                    waiting.remove(sequence)
                    number = sequence.arrival
                    prompt, sampler = asked[number]
                    answers.append(self.begin(prompt, options, sampler=sampler))
                    sequence.left = answers[-1].tokens_left
                    sequence.step = partial(advance, sequence, answers[-1], completions[number])
                    scheduler.admit(sequence)
                scheduler.advance()
        finally:
            for answer in answers:
                answer.close()
        return completions

    def reset(self) -> None:
        """Empties the caches that no answer uses; ends a stream. What is on disk stays there."""
        if self._active is not None:
            self._active.close()
        self._prefixes.clear()
        self.memory.forget_requests()

    def fitting(self, parallel: int) -> int:
        """How many requests to answer at a time: fewer than `parallel`, but 1 or more, if the
        memory for caches has no room for so many of `USUAL_TOKENS`."""
        return max(1, int(min(parallel, self._prefixes.seats(USUAL_TOKENS))))

    def measure_costs(self, interrupted: Callable[[], bool]) -> None:
        """Measures for a few seconds what forwards cost, if planners have to guess it.

        Meant for when no request waits; `interrupted` is asked often and ends it.
        """
        if not self.speculation.wants_costs or monotonic() < self._measure_costs_at:
            return

        def check(*_: float) -> None:
            if interrupted():
                raise InterruptedError

        try:
            with self.model.guard():
                curve = calibration.measure_and_store(self.model, self.backend, progress=check)
            self.speculation.trust(curve)
        except InterruptedError:
            return
        except Exception:  # whatever it is, requests are answered without these costs
            pass
        self._measure_costs_at = monotonic() + _MEASURE_AGAIN_S

    def save_prompts(self, *, closing: bool = False) -> bool:
        """Writes a file of what the caches hold and the disk does not; False if there is no more.

        With `closing`, it writes everything.
        """
        return self._prefixes.save(closing=closing)
