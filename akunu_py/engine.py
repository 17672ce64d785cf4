"""The engine: requests in, events out.

It owns a model and the caches of earlier requests, reuses what these already hold, decodes, turns
tokens into text, and stops where the request says. One request at a time, on the thread that loaded
it: MLX arrays belong to the thread that made them.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

from akunu_py.answer import Answer
from akunu_py.backend import Backend, find_backend, spare_cache_bytes
from akunu_py.cache.kv_cache import PreallocatedKVCache, no_rollback_reason
from akunu_py.cache.prefix_pool import PrefixPool, PrefixSlot, SlotStatus
from akunu_py.calibration import find_cost_curve
from akunu_py.counters import EngineCounters
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.draft_trimmer import DraftTrimmer
from akunu_py.decoding.loops import Limits, decode_autoregressive, decode_speculative
from akunu_py.decoding.speculation import Calibrate, SpeculationState, longest_draft
from akunu_py.drafting.base import Drafter
from akunu_py.errors import ContextOverflowError, InvalidRequestError
from akunu_py.model import PREFILL_STEP, PrefillProgress, TargetModel, load_target
from akunu_py.model_files import BUNDLED_MODEL
from akunu_py.options import Options
from akunu_py.planning.planner import Planner
from akunu_py.prompt import PromptInput, encode_prompt, encode_references
from akunu_py.request import Completion, Event
from akunu_py.sampling.forward_logprobs import SCORING_STEP
from akunu_py.sampling.logprobs import PromptLogprobs, TokenLogprob
from akunu_py.sampling.sampler import SamplerFactory
from akunu_py.stats import Finish, Round
from akunu_py.text.stream import TextStream


class Engine:
    """Answers requests with one model.

    Args:
        model: the target.
        backend: the machine it was loaded for.
        max_context: tokens that a prompt and its answer may have together; None leaves that to
            the model. Caches grow up to there as requests need it.
        calibrate: asked for the costs once, by the first request that leaves the length of
            drafts to the planner; the default measures for a few seconds on a model's first use
            and keeps the result on disk.
        draft_model: drafts where a request's drafter is `model`.
        prefill_step_size: prompt tokens per forward; a request is not heard to be cancelled
            before one is done.
        cache_memory: bytes that the caches of requests may take together; None takes a share of
            the memory that is free. One request is always served, whatever it takes.

    Attributes:
        counters: what was done since; any thread may read it.

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
        prefill_step_size: int = PREFILL_STEP,
        cache_memory: int | None = None,
    ) -> None:
        if prefill_step_size < 1:
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
            memory=spare_cache_bytes() if cache_memory is None else cache_memory,
        )
        self._why_no_rollback = no_rollback_reason(model.make_cache(1))
        self.speculation = SpeculationState(model, backend, calibrate, draft_model)
        self._samplers = SamplerFactory(self.tokenizer, model.vocabulary_size)
        self._active: Generator[Event, None, None] | None = None

    @property
    def notices(self) -> list[str]:
        """Lines that the user should see once: what this machine or this model cannot do."""
        lines = (self.backend.warning, self._why_no_rollback)
        return [line for line in lines if line]

    @property
    def context_limit(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._prefixes.limit

    @property
    def slots(self) -> tuple[SlotStatus, ...]:
        """What the caches hold; any thread may read it."""
        return self._prefixes.statuses

    def generate(
        self,
        prompt: PromptInput,
        options: Options | None = None,
        *,
        suffix: str | None = None,
    ) -> Completion:
        """Answers a prompt at once; see `stream` for the arguments and the errors."""
        text: list[str] = []
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        scored: PromptLogprobs | None = None
        for event in self.stream(prompt, options, suffix=suffix):
            scored = scored or event.prompt_logprobs
            text.append(event.text)
            tokens.extend(event.tokens)
            logprobs.extend(event.logprobs)
        finish = event.finish_reason or Finish.CANCELLED
        return Completion(
            self.model.name, "".join(text), tokens, finish, event.stats, tuple(logprobs), scored
        )

    def stream(
        self,
        prompt: PromptInput,
        options: Options | None = None,
        *,
        suffix: str | None = None,
        progress: PrefillProgress | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Generator[Event, None, None]:
        """Answers a prompt a round at a time; the last event, and only it, has a finish reason.

        Beginning a request ends the one before it.

        Args:
            prompt: text, ids as the model shall see them, or a gap with what is around it.
            options: what else is asked for; the defaults are greedy and speculative.
            suffix: text that follows a gap after `prompt`, where the model can fill gaps.
            progress: told about prompt tokens done and to do.
            cancelled: looked at between the chunks of a prefill and between rounds.

        Raises:
            InvalidRequestError: if the prompt is empty or the options cannot be served.
            ContextOverflowError: if the prompt does not fit.
        """
        options = options or Options()
        asked = encode_prompt(self.model, prompt, suffix, options, self.context_limit)
        tokens = asked.tokens
        sampler = self._samplers.make(options, tokens, asked.end_tokens)
        fills_gap = asked.fills_gap
        drafter = self.speculation.drafter(options.drafter, sampler, fills_gap=fills_gap)
        planner = self._planner(options, fills_gap=fills_gap)
        answer = Answer(
            tokens,
            options,
            sampler=sampler,
            end_tokens=asked.end_tokens,
            text=TextStream(self.tokenizer.detokenizer(tokens), options.stop),
            cancelled=cancelled,
        )
        if self._active is not None:
            self._active.close()
        self._active = self._run(answer, drafter, planner, progress)
        return self._active

    def reset(self) -> None:
        """Forgets what the caches hold, so that the next prompt is computed whole."""
        self._prefixes.clear()

    def _run(
        self,
        answer: Answer,
        drafter: Drafter,
        planner: Planner | None,
        progress: PrefillProgress | None,
    ) -> Generator[Event, None, None]:
        self.counters.requests += 1
        prompt, options, stats = answer.prompt, answer.options, answer.stats
        decodes = options.max_tokens != 0
        computed = list(prompt)
        begun = perf_counter()
        slot = self._take_slot(answer)
        try:
            # The last token goes into the first round, whose prediction is what is wanted.
            missing = prompt[stats.cached_tokens : len(prompt) - decodes]
            whole = self._prefill(missing, slot, answer, progress)
            scored = answer.scorer.logprobs if answer.scorer and whole else None
            prefilled = perf_counter()
            stats.prefill_s = prefilled - begun
            if not (whole and decodes):
                finish = Finish.LENGTH if whole else Finish.CANCELLED
                yield Event((), (), stats, finish, prompt_logprobs=scored)
                return
            if scored is not None:
                yield Event((), (), stats, prompt_logprobs=scored)
            draft_session = self._draft_session(answer, slot, drafter, planner)
            for done in self._rounds(answer, slot, draft_session):
                self.counters.rounds += 1
                computed.extend(done.tokens)
                if done.end_token is not None:
                    computed.append(done.end_token)
                now = perf_counter()
                stats.decode_s = now - prefilled
                stats.ttft_s = stats.ttft_s or now - begun
                event = answer.book(done)
                yield event
                if event.finish_reason is not None:
                    return
        except RuntimeError:
            # MLX failed within a forward: what the buffers hold is unknown.
            self._prefixes.drop(slot)
            raise
        finally:
            self._prefixes.settle(slot, [] if options.scores_prompt else computed)

    def _take_slot(self, answer: Answer) -> PrefixSlot:
        """The cache to answer from, with what is known of the prompt in it already.

        A prompt that is scored is computed from its first token on.
        """
        prompt, options = answer.prompt, answer.options
        room = min(len(prompt) + (options.max_tokens or 0), self.context_limit)
        known = prompt[:1] if options.scores_prompt else prompt
        try:
            slot, answer.stats.cached_tokens = self._prefixes.take(known, room, options.slot)
        except RuntimeError:  # MLX has no memory left: make what room there is
            self._prefixes.clear()
            raise
        return slot

    def _prefill(
        self,
        tokens: Sequence[int],
        slot: PrefixSlot,
        answer: Answer,
        progress: PrefillProgress | None,
    ) -> bool:
        """Computes prompt tokens; False if the request was cancelled before they were all done."""
        before, scorer, step = self.counters.prefill_tokens, answer.scorer, self._prefill_step_size

        def count(done: int, total: int) -> None:
            self.counters.prefill_chunks += 1
            self.counters.prefill_tokens = before + done
            if progress:
                progress(done, total)

        return self.model.prefill(
            tokens,
            slot.cache,
            step=min(step, SCORING_STEP) if scorer else step,
            progress=count,
            cancelled=answer.cancelled,
            observe=scorer.take if scorer else None,
        )

    def _planner(self, options: Options, *, fills_gap: bool) -> Planner | None:
        """Who plans a request's drafts; None where nothing can or need be drafted."""
        drafts = options.drafts and (options.max_tokens is None or options.max_tokens > 1)
        if not drafts or self._why_no_rollback:
            return None
        # The first one of its kind measures, which is no part of a request.
        if options.exact:
            self.speculation.logit_difference(longest_draft(options))
        return self.speculation.planner(options, fills_gap=fills_gap)

    def _draft_session(
        self, answer: Answer, slot: PrefixSlot, drafter: Drafter, planner: Planner | None
    ) -> DraftSession | None:
        """What a request speculates with, begun; None without a planner."""
        options, cache, speculation = answer.options, slot.cache, self.speculation
        if planner is None or not isinstance(cache, PreallocatedKVCache):
            return None
        begun = perf_counter()
        draft_session = DraftSession(
            drafter,
            planner,
            speculation.buffer,
            DraftTrimmer(answer.end_tokens, options.stop, self.tokenizer.decode),
            speculation.tie_breaker(options, cache, answer.sampler, answer.prompt[-1]),
            answer.sampler.constraint,
        )
        references = encode_references(self.tokenizer, options.references, self.context_limit)
        draft_session.begin(answer.prompt, references)
        answer.stats.draft_s += perf_counter() - begun
        return draft_session

    def _rounds(
        self, answer: Answer, slot: PrefixSlot, draft_session: DraftSession | None
    ) -> Iterator[Round]:
        """Decodes; where the cache is full and may grow, it does, and decoding goes on."""
        known, emitted, grows = answer.prompt[-1], 0, True
        while grows:
            grows = False
            for done in self._decode(answer, slot, draft_session, known, emitted):
                capacity = slot.cache.capacity
                grows = done.finish is Finish.CONTEXT and capacity < self.context_limit
                emitted += len(done.tokens)
                known = done.tokens[-1] if grows else known
                yield replace(done, finish=None) if grows else done
            if grows:
                self._prefixes.grow(slot, min(2 * capacity, self.context_limit))

    def _decode(
        self,
        answer: Answer,
        slot: PrefixSlot,
        draft_session: DraftSession | None,
        known: int,
        emitted: int,
    ) -> Iterator[Round]:
        """The rounds that go on from `known`, after `emitted` tokens, while the cache has room."""
        cache, sampler, options = slot.cache, answer.sampler, answer.options
        longest = self.context_limit if options.max_tokens is None else options.max_tokens
        limits = Limits(longest - emitted, answer.end_tokens)
        if draft_session is None or not isinstance(cache, PreallocatedKVCache):
            return decode_autoregressive(
                self.model, cache, sampler, known, limits, logprobs=options.logprobs
            )
        return decode_speculative(
            self.model,
            cache,
            sampler,
            known,
            limits,
            draft_session=draft_session,
            logprobs=options.logprobs,
        )


def load(
    model: str = BUNDLED_MODEL,
    *,
    weights: str = "auto",
    max_context: int | None = None,
    calibrate: Calibrate = find_cost_curve,
    draft_model: str | None = None,
    prefill_step_size: int = PREFILL_STEP,
    cache_memory: int | None = None,
) -> Engine:
    """Loads a model and makes an engine of it.

    Args:
        model: the bundled model's name, a folder, or `owner/name` on the hub.
        weights: `auto`, `quantized` or `dense`; `auto` is what is fastest on this machine.
        max_context: tokens that a prompt and its answer may have together; None leaves that to
            the model.
        calibrate: tells what forwards cost; see `Engine`.
        draft_model: a second, smaller model that drafts where a request's drafter is `model`.
        prefill_step_size: prompt tokens per forward; see `Engine`.
        cache_memory: bytes that caches may take together; see `Engine`.

    Raises:
        AkunuError: if a model, the machine or the arguments do not allow it.
    """
    backend = find_backend()
    target = load_target(model, backend, weights)
    drafting = None if draft_model is None else load_target(draft_model, backend, weights)
    return Engine(
        target,
        backend,
        max_context=max_context,
        calibrate=calibrate,
        draft_model=drafting,
        prefill_step_size=prefill_step_size,
        cache_memory=cache_memory,
    )
