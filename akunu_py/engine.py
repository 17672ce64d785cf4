"""The engine: requests in, events out.

It owns a model and one cache, reuses what that cache already holds, decodes, turns tokens into
text, and stops where the request says. One request at a time, on the thread that loaded it: MLX
arrays belong to the thread that made them.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Final

from akunu_py.backend import Backend, find_backend
from akunu_py.calibration import find_cost_curve
from akunu_py.constraint import ConstraintMaker
from akunu_py.decoding import Limits, decode_autoregressive, decode_speculative
from akunu_py.draft_trimmer import DraftTrimmer
from akunu_py.drafting.base import Drafter
from akunu_py.errors import ContextOverflowError, InvalidRequestError
from akunu_py.kv_cache import PreallocatedKVCache, why_no_rollback
from akunu_py.model import PREFILL_STEP, PrefillProgress, TargetModel, load_target
from akunu_py.model_files import BUNDLED_MODEL
from akunu_py.options import Options
from akunu_py.prefix import PrefixSlot
from akunu_py.request import Completion, Event
from akunu_py.sampling import TokenChooser
from akunu_py.speculation import Speculation
from akunu_py.speculator import Calibrate, Speculator
from akunu_py.stats import Finish, Round, Stats
from akunu_py.text.fim import fill_prompt
from akunu_py.text.stream import TextStream
from akunu_py.token_logprob import TokenLogprob
from akunu_py.work import Work

_FIRST_CAPACITY: Final = 8192
"""Tokens a cache is made for unless told otherwise; longer prompts get a larger one."""


class Engine:
    """Answers requests with one model.

    Args:
        model: the target.
        backend: the machine it was loaded for.
        max_context: tokens that the cache is to hold; None makes it as large as requests need,
            up to the model's own context.
        calibrate: asked for the costs once, by the first request that leaves the length of
            drafts to the planner; the default measures for a few seconds on a model's first use
            and keeps the result on disk.
        draft_model: drafts where a request's drafter is `model`.
        prefill_step_size: prompt tokens per forward; a request is not heard to be cancelled
            before one is done.

    Attributes:
        work: what was done since; any thread may read it.

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
        self.work = Work()
        self._prefill_step_size = prefill_step_size
        self._grows = max_context is None
        capacity = max_context or min(_FIRST_CAPACITY, model.context_length)
        self._slot = PrefixSlot(model, capacity)
        self.speculator = Speculator(model, backend, calibrate, draft_model)
        self._constraints = ConstraintMaker(model)
        self._active: Generator[Event, None, None] | None = None

    @property
    def notices(self) -> list[str]:
        """Lines that the user should see once: what this machine or this model cannot do."""
        lines = (self.backend.warning, why_no_rollback(self._slot.cache))
        return [line for line in lines if line]

    @property
    def context_limit(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.model.context_length if self._grows else self._slot.cache.capacity

    def generate(
        self,
        prompt: str | Sequence[int],
        options: Options | None = None,
        *,
        suffix: str | None = None,
    ) -> Completion:
        """Answers a prompt at once; see `stream` for the arguments and the errors."""
        text: list[str] = []
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        for event in self.stream(prompt, options, suffix=suffix):
            text.append(event.text)
            tokens.extend(event.tokens)
            logprobs.extend(event.logprobs)
        finish = event.finish_reason or Finish.CANCELLED
        return Completion(
            self.model.name, "".join(text), tokens, finish, event.stats, tuple(logprobs)
        )

    def stream(
        self,
        prompt: str | Sequence[int],
        options: Options | None = None,
        *,
        suffix: str | None = None,
        progress: PrefillProgress | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Generator[Event, None, None]:
        """Answers a prompt a round at a time; the last event, and only it, has a finish reason.

        There is one cache, so beginning a request ends the one before it.

        Args:
            prompt: text, or ids as the model shall see them.
            options: what else is asked for; the defaults are greedy and speculative.
            suffix: text that follows the gap to fill, where the model can do that.
            progress: told about prompt tokens done and to do.
            cancelled: looked at between the chunks of a prefill and between rounds.

        Raises:
            InvalidRequestError: if the prompt is empty or the options cannot be served.
            ContextOverflowError: if the prompt does not fit.
        """
        options = options or Options()
        tokens, end_tokens = self._prompt_tokens(prompt, suffix)
        self._check_bias(options)
        self._make_room(len(tokens), options.max_tokens)
        grammar = options.grammar
        constraint = None if grammar is None else self._constraints.make(grammar, len(tokens))
        chooser = TokenChooser(options.sampling, tokens, constraint=constraint)
        drafter = self.speculator.drafter(options.drafter, chooser)
        request = _Request(
            tokens,
            options,
            chooser=chooser,
            end_tokens=end_tokens | self.tokenizer.end_tokens,
            text=TextStream(self.tokenizer.detokenizer(tokens), options.stop),
            cancelled=cancelled,
        )
        if self._active is not None:
            self._active.close()
        self._active = self._run(request, drafter, progress)
        return self._active

    def reset(self) -> None:
        """Forgets what the cache holds, so that the next prompt is computed whole."""
        self._slot.forget()

    def _prompt_tokens(
        self, prompt: str | Sequence[int], suffix: str | None
    ) -> tuple[list[int], frozenset[int]]:
        """The ids of a prompt, and the ids that end its answer besides the usual ones."""
        if suffix is not None:
            if not isinstance(prompt, str):
                raise InvalidRequestError("A suffix needs a prompt that is text.")
            filling = fill_prompt(self.tokenizer, prompt, suffix)
            return filling.tokens, filling.end_tokens
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not tokens:
            raise InvalidRequestError("The prompt is empty; give it at least one character.")
        if not 0 <= min(tokens) <= max(tokens) < self.model.vocabulary_size:
            raise InvalidRequestError(
                f"The prompt has ids outside the vocabulary of {self.model.vocabulary_size} tokens."
            )
        return tokens, frozenset()

    def _make_room(self, prompt_tokens: int, max_tokens: int | None) -> None:
        """Makes sure that the prompt fits, with a larger cache if need be and allowed.

        Raises:
            ContextOverflowError: if it does not.
        """
        capacity, limit = self._slot.cache.capacity, self.context_limit
        if prompt_tokens > limit:
            remedy = "shorten it" if limit == self.model.context_length else "raise --max-context"
            raise ContextOverflowError(
                f"The prompt has {prompt_tokens} tokens and the context only {limit}; {remedy}."
            )
        wanted = prompt_tokens + (max_tokens or 0)
        if self._grows and wanted > capacity < limit:
            while capacity < wanted:
                capacity *= 2
            self._slot.grow(min(capacity, limit))

    def _run(
        self, request: "_Request", drafter: Drafter, progress: PrefillProgress | None
    ) -> Generator[Event, None, None]:
        # The first one of its kind may measure, which is no part of a request.
        speculation = self._speculation(request, drafter)
        self.work.requests += 1
        slot, prompt, stats = self._slot, request.prompt, request.stats
        decodes = request.options.max_tokens != 0
        computed = list(prompt)
        begun = perf_counter()
        try:
            stats.cached_tokens = slot.reuse(prompt)
            # The last token goes into the first round, whose prediction is what is wanted.
            missing = prompt[stats.cached_tokens : len(prompt) - decodes]
            whole = self._prefill(missing, request, progress)
            prefilled = perf_counter()
            stats.prefill_s = prefilled - begun
            if not (whole and decodes):
                yield Event((), (), stats, Finish.LENGTH if whole else Finish.CANCELLED)
                return
            for done in self._rounds(request, speculation):
                self.work.rounds += 1
                computed.extend(done.tokens)
                if done.end_token is not None:
                    computed.append(done.end_token)
                now = perf_counter()
                stats.decode_s = now - prefilled
                stats.ttft_s = stats.ttft_s or now - begun
                event = request.book(done)
                yield event
                if event.finish_reason is not None:
                    return
        except RuntimeError:
            # MLX failed within a forward: what the buffers hold is unknown.
            slot.clear()
            raise
        finally:
            slot.settle(computed)

    def _prefill(
        self, tokens: Sequence[int], request: "_Request", progress: PrefillProgress | None
    ) -> bool:
        """Computes prompt tokens; False if the request was cancelled before they were all done."""
        before = self.work.prefill_tokens

        def count(done: int, total: int) -> None:
            self.work.prefill_chunks += 1
            self.work.prefill_tokens = before + done
            if progress:
                progress(done, total)

        return self.model.prefill(
            tokens,
            self._slot.cache,
            step=self._prefill_step_size,
            progress=count,
            cancelled=request.cancelled,
        )

    def _speculation(self, request: "_Request", drafter: Drafter) -> Speculation | None:
        """What a request speculates with; None where nothing can or need be drafted."""
        options, cache, speculator = request.options, self._slot.cache, self.speculator
        drafts = options.drafts and (options.max_tokens is None or options.max_tokens > 1)
        if not drafts or not isinstance(cache, PreallocatedKVCache):
            return None
        return Speculation(
            drafter,
            speculator.planner(options),
            speculator.buffer,
            DraftTrimmer(request.end_tokens, options.stop, self.tokenizer.decode),
            speculator.tie_breaker(options, cache, request.chooser, request.prompt[-1]),
            request.chooser.constraint,
        )

    def _rounds(self, request: "_Request", speculation: Speculation | None) -> Iterator[Round]:
        """Decodes; where the cache is full and may grow, it does, and decoding goes on."""
        if speculation is not None:
            begun = perf_counter()
            speculation.begin(request.prompt)
            request.stats.draft_s += perf_counter() - begun
        known, emitted, grows = request.prompt[-1], 0, True
        while grows:
            grows = False
            for done in self._decode(request, speculation, known, emitted):
                capacity = self._slot.cache.capacity
                grows = done.finish is Finish.CONTEXT and capacity < self.context_limit
                emitted += len(done.tokens)
                known = done.tokens[-1] if grows else known
                yield replace(done, finish=None) if grows else done
            if grows:
                self._slot.grow(min(2 * capacity, self.context_limit))

    def _decode(
        self, request: "_Request", speculation: Speculation | None, known: int, emitted: int
    ) -> Iterator[Round]:
        """The rounds that go on from `known`, after `emitted` tokens, while the cache has room."""
        cache, chooser, options = self._slot.cache, request.chooser, request.options
        longest = self.context_limit if options.max_tokens is None else options.max_tokens
        limits = Limits(longest - emitted, request.end_tokens)
        if speculation is None or not isinstance(cache, PreallocatedKVCache):
            return decode_autoregressive(
                self.model, cache, chooser, known, limits, logprobs=options.logprobs
            )
        return decode_speculative(
            self.model,
            cache,
            chooser,
            known,
            limits,
            speculation=speculation,
            logprobs=options.logprobs,
        )

    def _check_bias(self, options: Options) -> None:
        """Raises InvalidRequestError if a bias is for a token that the model does not have."""
        for token, _ in options.sampling.logit_bias:
            if token >= self.model.vocabulary_size:
                raise InvalidRequestError(
                    f"There is no token {token} to bias; "
                    f"the vocabulary has {self.model.vocabulary_size}."
                )


class _Request:
    """A request under way: what it asked for, and what has come of it so far."""

    def __init__(
        self,
        prompt: list[int],
        options: Options,
        *,
        chooser: TokenChooser,
        end_tokens: frozenset[int],
        text: TextStream,
        cancelled: Callable[[], bool],
    ) -> None:
        self.prompt = prompt
        self.options = options
        self.chooser = chooser
        self.end_tokens = end_tokens
        self.cancelled = cancelled
        self.stats = Stats()
        self.stats.prompt_tokens = len(prompt)
        self._text = text

    def book(self, done: Round) -> Event:
        """Turns a round into text, cuts it where that stops, and only then counts it."""
        pieces = []
        for position, token in enumerate(done.tokens):
            pieces.append(self._text.feed(token, drafted=position < done.accepted))
            if self._text.stopped:
                done = done.cut(position + 1, Finish.STOP)
                break
        if done.finish is None and self.cancelled():
            done = replace(done, finish=Finish.CANCELLED)
        if done.finish is not None:
            pieces.append(self._text.finish())
            if self._text.stopped:
                done = replace(done, finish=Finish.STOP)
        self.stats.add(done)
        return Event(done.tokens, tuple(pieces), self.stats, done.finish, done.logprobs)


def load(
    model: str = BUNDLED_MODEL,
    *,
    weights: str = "auto",
    max_context: int | None = None,
    calibrate: Calibrate = find_cost_curve,
    draft_model: str | None = None,
    prefill_step_size: int = PREFILL_STEP,
) -> Engine:
    """Loads a model and makes an engine of it.

    Args:
        model: the bundled model's name, a folder, or `owner/name` on the hub.
        weights: `auto`, `quantized` or `dense`; `auto` is what is fastest on this machine.
        max_context: tokens that the cache is to hold; None lets it grow with the requests.
        calibrate: tells what forwards cost; see `Engine`.
        draft_model: a second, smaller model that drafts where a request's drafter is `model`.
        prefill_step_size: prompt tokens per forward; see `Engine`.

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
    )
