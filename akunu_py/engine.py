"""The engine: requests in, events out.

It owns a model, the caches of earlier requests, and the runner that computes the forward passes of
new ones. Everything runs on the thread that loaded it: MLX arrays belong to the thread that made
them. Methods that change the engine raise an `InvalidRequestError` on other threads, in forked
children, and in functions that the engine itself calls.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Final, Unpack

from akunu_py.cache.prefix_pool import PrefixPool, SlotStatus
from akunu_py.cache.prompt_store import PromptStore
from akunu_py.calibration import measure as calibration
from akunu_py.calibration.measure import BUDGET_S, Calibrate, Unfinished, find_cost_curve
from akunu_py.decoding.batch import Batch
from akunu_py.decoding.speculation import DrafterFactory, SpeculationState
from akunu_py.errors import AkunuError, ContextOverflowError, InvalidRequestError
from akunu_py.events import Answering, Completion, Event, EventStream
from akunu_py.machine.backend import Backend
from akunu_py.machine.device_memory import spare_cache_bytes
from akunu_py.memory.projects import Memory
from akunu_py.model.library import USUAL_TOKENS
from akunu_py.model.target_model import TargetModel
from akunu_py.named_options import NamedOptions
from akunu_py.option_field import with_named
from akunu_py.options import DEFAULT_PARALLEL, Options
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.costs import KnownCosts
from akunu_py.prompt import Asked, messages_of
from akunu_py.rounds import EngineCounters
from akunu_py.runner import Runner
from akunu_py.scheduler import Scheduler
from akunu_py.sequence import Phase, Sequence
from akunu_py.text.tokenizer import Message

_MEASURE_AGAIN_S: Final = 300.0
"""After this many seconds, costs that could not be trusted are measured again."""


class Engine:
    """Answers requests with one model, loaded for `backend`. `max_context` limits a prompt and its
    answer together (None: the model's own limit); caches grow as requests need it.

    `calibrate` finds the costs, once, when the planner first needs them; the default only reads
    stored ones. `prefill_step_size` are prompt tokens per pass, after which a request can be
    cancelled; None chooses. `prompt_cache_bytes` limits all caches together (None: a share of the
    free memory), though a single request is always served. `save_prompts` writes them to
    `prompt_store`; `auto` drafts from `memory` too; `draft_model` serves the drafter `model`.

    Raises ContextOverflowError if `max_context` exceeds the model's, and InvalidRequestError if the
    draft model does not fit or a step has no tokens.
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
                f"`prefill_step_size` must be 1 or more, not {prefill_step_size}."
            )
        if max_context is not None and not 1 <= max_context <= model.context_length:
            raise ContextOverflowError(
                f"The context must be from 1 to {model.context_length} tokens for {model.name}, "
                f"not {max_context}."
            )
        self.model = model
        self.backend = backend
        self.tokenizer = model.tokenizer
        self.memory = memory or Memory()
        self.costs = KnownCosts(
            partial(calibrate, model, backend), drafts=model.why_no_drafts is None
        )
        self.speculation = SpeculationState(model, self.costs, draft_model, self.memory)
        self._prefixes = PrefixPool(
            model.make_cache,
            model.cache_bytes,
            limit=max_context or model.context_length,
            memory=spare_cache_bytes() if prompt_cache_bytes is None else prompt_cache_bytes,
            store=prompt_store,
            drafts=self.speculation.draft_model,
        )
        self.batch = Batch(
            model, self.costs.together, self._prefixes.may_join, self.speculation.rates
        )
        self.runner = Runner(
            model,
            backend,
            batch=self.batch,
            prefixes=self._prefixes,
            speculation=self.speculation,
            costs=self.costs,
            prefill_step_size=prefill_step_size,
        )
        self._active: Sequence | None = None
        self._costs_found = Unfinished()
        self._measure_costs_at = 0.0

    @property
    def counters(self) -> EngineCounters:
        """Counts of the engine's work since it was loaded; any thread may read them."""
        return self.runner.counters

    @property
    def notices(self) -> list[str]:
        """Lines for the user to see once: what this machine or this model cannot do."""
        quantization, unquantized = self.model.kv_quantization, None
        if quantization and quantization.start >= self.context_limit:
            unquantized = (
                f"--kv-bits changes nothing: the context ends at {self.context_limit:,} tokens, "
                f"and --quantized-kv-start is {quantization.start:,}."
            )
        unused = None
        if self.model.head is not None and self.speculation.draft_model is not None:
            unused = "The draft model guesses in place of the model's own head."
        lines = (
            self.backend.warning,
            self.model.why_no_drafts,
            self.model.why_no_head,
            unused,
            unquantized,
            *self.memory.notices,
        )
        return [line for line in lines if line]

    @property
    def context_limit(self) -> int:
        """The most tokens of a prompt and its answer together."""
        return self._prefixes.limit

    @property
    def slots(self) -> tuple[SlotStatus, ...]:
        """What the caches hold; any thread may read it."""
        return self._prefixes.statuses

    @property
    def costs_missing(self) -> str | None:
        """Why the costs of forward passes are not measured, for the user; None if they are. Any
        thread may read it."""
        if self.costs.measured is not None:
            return None
        if not self.costs.wants_curve:
            return "Not measured: no request has needed the costs yet."
        if self._measure_costs_at:
            return (
                "Not measured: other work kept the machine busy. The next try is "
                f"{_MEASURE_AGAIN_S / 60:.0f} minutes later."
            )
        return (
            f"Measured for {self._costs_found.spent_s:.1f} of {BUDGET_S} seconds; continues when "
            "no request has come for half a second."
        )

    def add_drafter(self, name: str, make: DrafterFactory) -> None:
        """Lets requests name a drafter of your own, in `Options.drafter`; `make` is called for each
        such request, with its sampler.
        """
        self.runner.owner.check()
        self.speculation.add_drafter(name, make)

    def generate(
        self, asked: Asked | Sequence, options: Options | None = None, **named: Unpack[NamedOptions]
    ) -> Completion:
        """Returns the whole answer to a prompt; see `stream` for the arguments and errors.

        >>> engine.generate("def mean(values):", max_tokens=3).finish_reason
        <Finish.LENGTH: 'length'>
        """
        answer = self.stream(asked, options, **named)
        for _ in answer:
            pass
        return answer.completion

    def chat(
        self,
        messages: str | Iterable[Message],
        options: Options | None = None,
        **named: Unpack[NamedOptions],
    ) -> Completion:
        """Answers a conversation, or a single question, with the model's chat template; see
        `stream` for the other arguments and the errors.

        >>> print(engine.chat("Rename `x` to `n` in: def f(x): return x").text)
        ```python
        def f(n): return n
        ```
        """
        asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        named.setdefault("reasoning", self.tokenizer.reasoning)
        return self.generate(messages_of(asked), options, **named)

    def stream(
        self, asked: Asked | Sequence, options: Options | None = None, **named: Unpack[NamedOptions]
    ) -> Answering:
        """Answers a prompt round by round; only the last event has a finish reason. A new request
        ends it; who goes on reading it gets an `InvalidRequestError`.

        The prompt is text; the messages of a conversation; ids exactly as the model should see
        them; a gap with the text around it; or a `Sequence` made from these, with its own options.
        Single options by name override those in `options`, which are greedy and speculative by
        default.

        >>> sum(len(event.tokens) for event in engine.stream("def mean(values):", max_tokens=3))
        3

        Raises InvalidRequestError if the prompt is empty or the options cannot be served, and
        ContextOverflowError if the prompt does not fit.
        """
        self.runner.owner.check()
        sequence = Sequence.of(asked, _merged(options, named))
        reader = sequence.reader = EventStream()
        for begin in (self.runner.encode, self.runner.prepare, self._start):
            begin(sequence)
            list(reader.ready())  # raises the error that ended it, if any
        events, completion = self._events(sequence, reader), Completion(self.model.name)
        return Answering(events, completion, self.runner.owner.check)

    def _start(self, sequence: Sequence) -> None:
        if self._active is not None:
            self.runner.close(self._active)  # even if nobody has begun to read it
        self._active = sequence
        self.runner.start(sequence)

    def _events(self, sequence: Sequence, reader: EventStream) -> Generator[Event, None, None]:
        try:
            while sequence.phase is not Phase.DONE:
                self.runner.reserve(sequence, anyway=True)
                self.runner.advance((sequence,))
                yield from reader.ready()
            if self._active is not sequence:
                raise InvalidRequestError(
                    "Another request ended this answer; read an answer to its end first, or use "
                    "`generate_batch` or an `EngineWorker` for several at a time."
                )
        finally:
            self.runner.owner.check()  # if this raises, the next stream closes what stays open
            self.runner.close(sequence)
            if self._active is sequence:
                self._active = None

    def generate_batch(
        self,
        asked: Iterable[Asked | Sequence],
        options: Options | list[Options] | tuple[Options, ...] | None = None,
        *,
        parallel: int = DEFAULT_PARALLEL,
        **named: Unpack[NamedOptions],
    ) -> list[Completion]:
        """Answers several prompts together, `parallel` at a time, each as `generate` would; see
        `stream` for the errors. A prompt is text, token ids, or the messages of a chat. Options
        are those of every request, or a list with those of each; named ones hold for every request,
        and a seed is that of each prompt.

        They share forward passes (exact ones as far as their class allows), unless
        `batch.why_impossible` gives a reason not to. Raises InvalidRequestError also if `parallel`
        is not positive, or there are not as many options as prompts.
        """
        self.runner.owner.check()
        if not isinstance(parallel, int) or parallel < 1:
            raise InvalidRequestError(f"`parallel` must be 1 or more, not {parallel!r}.")
        if isinstance(asked, str | Mapping) or not isinstance(asked, Iterable):
            raise InvalidRequestError("Give the prompts of a batch in a list.")
        asked = list(asked)
        each = options if isinstance(options, list | tuple) else [options] * len(asked)
        if len(each) != len(asked):
            raise InvalidRequestError(
                f"Give one `Options` for all {len(asked)} prompts or one for each, not {len(each)}."
            )
        scheduler = Scheduler(parallel)
        sequences, answers = list[Sequence](), list[tuple[EventStream, Completion]]()
        for one, own in zip(asked, each, strict=True):
            sequences.append(Sequence.of(one, _merged(own, named)))
            answers.append((EventStream(), Completion(self.model.name)))
            sequences[-1].reader = answers[-1][0]
            scheduler.add(sequences[-1])
        try:
            for sequence in sequences:  # an invalid one ends the batch before anything is computed
                self.runner.encode(sequence)
            _read(answers)
            while scheduler.waiting or scheduler.running:
                scheduler.admit(self.runner)
                scheduler.advance(self.runner)
                _read(answers)
        finally:
            for sequence in sequences:
                self.runner.close(sequence)
        return [completion for _, completion in answers]

    def compile(self, options: Options) -> Options:
        """The options with their grammar compiled; any thread may call this. Another process tries
        it first, so that none can take more than some seconds, or all memory. Raises
        InvalidRequestError if it is invalid or too complex, and QueueFullError if too many are
        waiting.
        """
        grammar = options.grammar
        if grammar is None or grammar.compiled is not None:
            return options
        constraints = self.runner.samplers.constraints
        compiled = constraints.compile(grammar, options.reasoning, tries=True)
        return replace(options, grammar=replace(grammar, compiled=compiled))

    def reset(self) -> None:
        """Empties the caches that no answer is using, and ends the current stream. Files on disk
        stay."""
        self.runner.owner.check()
        if self._active is not None:
            self.runner.close(self._active)
        self.free_caches()
        self.memory.forget_requests()

    def free_caches(self) -> None:
        """Empties the caches that no answer is using, and nothing else."""
        self.runner.owner.check()
        self._prefixes.clear()
        if (drafts := self.speculation.draft_model) is not None:
            drafts.clear()

    def fitting(self, parallel: int) -> int:
        """How many requests to answer at a time: `parallel`, or fewer (at least 1) if the memory
        for caches has no room for this many of `USUAL_TOKENS`."""
        self.runner.owner.check()
        return max(1, int(min(parallel, self._prefixes.seats(USUAL_TOKENS))))

    def measure_costs(self, interrupted: Callable[[], bool]) -> None:
        """Measures for a few seconds what forward passes cost, if planners have to guess it; then
        finds out which passes compute identical rows, which may take minutes.

        Call it while no request waits; `interrupted` is called often and may end it. The next call
        continues with the results so far.
        """
        self.runner.owner.check()

        def check(*_: float) -> None:
            if interrupted():
                raise InterruptedError

        costs = self.costs
        while monotonic() >= self._measure_costs_at and (
            costs.wants_curve or costs.wants_row_class
        ):
            known, found = costs.measured, self._costs_found
            measure: Callable[..., CostCurve] = calibration.measure_and_store
            if known is not None:
                price = costs.most_price
                measure = partial(calibration.find_row_class, curve=known, most_price=price)
            try:
                with self.model.guard():
                    curve = measure(self.model, self.backend, progress=check, found=found)
                costs.trust(curve)
            except InterruptedError:
                return
            except Exception:  # requests can be answered without these costs
                pass
            self._costs_found = Unfinished()
            if costs.measured is known:
                self._measure_costs_at = monotonic() + _MEASURE_AGAIN_S

    def save_prompts(self, *, closing: bool = False) -> bool:
        """Writes one file with content of the caches that is not on disk yet; returns False if
        nothing is left to write. With `closing`, writes everything."""
        self.runner.owner.check()
        return self._prefixes.save(closing=closing)


def _read(answers: list[tuple[EventStream, Completion]]) -> None:
    for number, (reader, completion) in enumerate(answers, 1):
        try:
            for event in reader.ready():
                completion.add(event)
        except AkunuError as error:
            if len(answers) > 1:
                error.args = (f"Prompt {number} of {len(answers)}: {error}",)
            raise


def _merged(options: Options | None, named: Mapping[str, Any]) -> Options | None:
    """The options of a request; None if there are none, for a sequence that has its own."""
    return with_named(Options() if options is None else options, named) if named else options
