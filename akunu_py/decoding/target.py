"""ModelTarget: the forward passes of one sequence, from submission to the verified round.

Submitting returns at once; reading waits, verifies the draft and returns the round. `sampling/`
chooses the tokens, and `loop.py` decides how much of a draft is accepted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, NamedTuple, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.loop import accept_or_resample, match_choices, needs_distributions
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.errors import InvalidRequestError
from akunu_py.model.target_model import TargetModel
from akunu_py.planning.row_class import RowClass
from akunu_py.rounds import Round, RoundClock
from akunu_py.sampling.forward_logprobs import ForwardLogprobs
from akunu_py.sampling.sampler import Sampler
from akunu_py.tokens import LogprobRequest

_NO_LOGPROBS: Final = LogprobRequest()


class TokenBuffer:
    """The input of a round, `[known, d0 .. d(n-1)]`, allocated once.

    After a rollback of a recurrent model, the tokens to compute again stand before the known one.
    They take the places of draft tokens, so rejections never make a forward pass longer. Layout and
    guard are those of akunu's `decode_speculative`.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        if num_draft_tokens < 0:
            raise InvalidRequestError(
                f"The number of draft tokens must be 0 or more, not {num_draft_tokens}."
            )
        self._slots = np.zeros(1 + num_draft_tokens, dtype=np.int32)

    def draft_limit(self, *, cache_room: int, tokens_wanted: int, replayed: int = 0) -> int:
        """The guard: how many draft tokens the next round may have, 0 or more.

        A draft token is useful only if the round's last token is still wanted, and possible only if
        the cache has room for the known token and the whole draft.
        """
        places = len(self._slots) - replayed
        return max(0, min(places, cache_room, tokens_wanted) - 1)

    def load(
        self, known: int, draft: Sequence[int], replayed: Sequence[int] = ()
    ) -> npt.NDArray[np.int32]:
        """Writes the input of a round and returns it as a view of shape `[tokens]`. Raises
        InvalidRequestError, and writes nothing, if the draft does not fit.
        """
        size = len(replayed) + 1 + len(draft)
        if size > len(self._slots):
            raise InvalidRequestError(
                f"A draft of {len(draft)} tokens does not fit a buffer made for "
                f"{len(self._slots) - len(replayed) - 1}."
            )
        self._slots[:size] = [*replayed, known, *draft]
        return self._slots[:size]


@dataclass(slots=True)
class SharedForward:
    """One forward pass over the rows of several sequences that had `context` tokens, from its
    submission on. `is_ahead`: another pass was in flight then. `timed` gets the seconds of the
    first wait, after which `results` is None. `seconds` is the host's time for building and
    waiting, per sequence.
    """

    sequences: int
    rows: int
    context: int
    is_ahead: bool
    timed: Callable[["SharedForward", float], None]
    guessing_s: float = 0.0
    results: list[mx.array] | None = None
    seconds: float = 0.0

    def wait(self) -> bool:
        """Waits for it; returns True if it was waited for before."""
        results, self.results = self.results, None
        if results is None:
            return True
        begun = perf_counter()
        mx.eval(results)
        waited_s = perf_counter() - begun
        self.seconds += waited_s / self.sequences
        self.timed(self, waited_s)
        return False


@dataclass(slots=True)
class PendingForward:
    """A submitted forward pass: the place of its known token, what it verifies, and its results.

    `choices` has the token chosen after each position, or the distribution there if the draft is
    verified by rejection sampling. If the sampler blocks, it has the logits, and `read` computes
    the rest from them. `hidden` are the states for the model's head, if there is one. The pass may
    be part of a `shared` one.
    """

    start: int
    draft: Draft
    choices: mx.array
    has_distributions: bool
    logprobs: ForwardLogprobs | None
    pipelined: bool
    replayed: int
    hidden: mx.array | None
    build_s: float = 0.0
    shared: SharedForward | None = None


class Inputs(NamedTuple):
    """The inputs of a forward pass: ids `[rows]`, which may be lazy.

    The first `replayed` rows only restore what a rollback removed from the cache; the next one is
    the token at position `start`. The rows after the draft are padding.
    """

    tokens: mx.array
    draft: Draft
    start: int
    replayed: int
    pipelined: bool


class ModelTarget:
    """One sequence on the model: a cache, a sampler and a token buffer for `num_draft_tokens`.
    `grow` makes the cache larger, up to `limit` tokens; None leaves it as it is.

    `rows` is the class of passes to stay in, or the rows of every pass, which then begins where the
    last whole block ended (see `BLOCK_ROWS`); None gives each pass the rows it needs.
    """

    def __init__(
        self,
        model: TargetModel,
        cache: KVCache,
        sampler: Sampler,
        num_draft_tokens: int = 0,
        *,
        limit: int | None = None,
        grow: Callable[[int], None] | None = None,
        logprobs: LogprobRequest = _NO_LOGPROBS,
        rows: RowClass | int | None = None,
    ) -> None:
        self._model = model
        self.cache = cache
        self._sampler = sampler
        self._block_rows = rows if isinstance(rows, int) else 0
        self._class = rows if isinstance(rows, RowClass) else None
        sampler.pipelined = not self._block_rows
        self._buffer = TokenBuffer(self._block_rows - 1 if self._block_rows else num_draft_tokens)
        self._limit = cache.capacity if limit is None else limit
        self._grow = grow
        self._logprobs = logprobs
        self._newest_start = -1
        self._known = 0
        self._sent: list[int] = []
        self._sent_from = 0
        self._replayed: list[int] = []
        self._clock = RoundClock(lambda: model.forwards)
        self.note_pause = self._clock.note_pause

    @property
    def length(self) -> int:
        return self.cache.length + len(self._replayed)

    @property
    def room(self) -> int:
        return self._limit - self.length

    @property
    def replayed(self) -> int:
        return len(self._replayed)

    def needs_padding(self, after: PendingForward | None = None) -> bool:
        """Whether the next forward pass, or the step after one in flight, must not have rows of
        other sequences."""
        if self._class is None:
            return False
        context = self.length if after is None else after.start + 1
        is_last = self._forward_room < self._class.smallest  # where steps have no padding
        return is_last or self._class.needs_padding(context)

    @property
    def least_rows(self) -> int:
        """The fewest rows of a forward pass, where there is room."""
        return self._block_rows or (1 if self._class is None else self._class.smallest)

    @property
    def can_pipeline(self) -> bool:
        return not (self._sampler.blocks(1) or self._block_rows)

    def draft_limit(self, tokens_wanted: int) -> int:
        room = self._forward_room
        if self._class is not None:
            # A step without room for its padding is in another class.
            room = min(self._class.most(self.cache.length), room + 1 - self._class.smallest)
        return self._buffer.draft_limit(
            cache_room=room - len(self._replayed),
            tokens_wanted=tokens_wanted,
            replayed=len(self._replayed),
        )

    @property
    def _forward_room(self) -> int:
        """The most rows of the next forward pass, which ends where quantization begins."""
        room, before = self._limit - self.cache.length, self.cache.quantized_start
        return min(room, before - self.cache.length) if before > self.cache.length else room

    def submit(self, known: int, draft: Draft) -> PendingForward:
        return self._submit(self.begin(known, draft, alone=True))

    def submit_step_after(self, pending: PendingForward) -> PendingForward:
        return self._submit(self.begin_step_after(pending, alone=True))

    def begin_step_after(self, pending: PendingForward, *, alone: bool = False) -> Inputs:
        """The inputs of a step that begins with the token `pending` will choose; see `begin`."""
        if self.cache.length > (end := pending.start + 1):  # padding
            self.cache.rollback(end)
        tokens, size = pending.choices, self._size_of(1, drafted=0, alone=alone)
        if size > 1:
            tokens = mx.broadcast_to(tokens, (size,))
            self.cache.mark()
        self._make_room(size)
        return Inputs(tokens, NO_DRAFT, self.length, 0, True)

    def begin(self, known: int, draft: Draft, *, alone: bool = False) -> Inputs:
        """The inputs of a forward pass over `[known, *draft]`; the cache has room for them.

        `begin` and `finish` together are `submit` without the pass itself, which may be shared by
        several sequences. A pass for this sequence `alone` is padded to its class, and where that
        is faster.
        """
        start, replayed, self._known = self.length, len(self._replayed), known
        self._sent, self._sent_from = [*self._replayed, known, *draft.tokens], self.cache.length
        rows = self._buffer.load(known, draft.tokens, self._replayed)
        self._replayed = []
        size = self._size_of(len(rows), drafted=len(draft), alone=alone)
        if draft or size > len(rows) or self._block_rows:
            self.cache.mark()
        if size > len(rows):
            rows = np.pad(rows, (0, size - len(rows)), mode="edge")
        self._make_room(len(rows))
        return Inputs(mx.array(rows), draft, start, replayed, False)

    def _size_of(self, tokens: int, *, drafted: int, alone: bool) -> int:
        """How many rows a forward pass over this many tokens has; the rest is padding."""
        room, least = self._forward_room, tokens
        if self._block_rows:
            return min(self._block_rows, room)
        if not alone:
            return tokens
        most = room
        if self._class is not None:
            least = max(tokens, self._class.smallest)
            most = min(room, max(least, self._class.most(self.cache.length)))
        size = self._model.padding.get(least, least) if drafted else least
        return next((rows for rows in (size, least) if rows <= most), tokens)

    def rollback(self, length: int) -> None:
        end = length - self._sent_from
        # An unfinished block is computed again from its beginning.
        wanted = self._sent_from if self._block_rows else length
        missing = self.cache.rollback(wanted) + length - wanted
        assert missing <= max(end, 0), "what is missing was sent with the last draft"
        self._replayed = self._sent[end - missing : end] if missing else []

    def read(self, pending: PendingForward) -> Round:
        shared = pending.shared
        is_counted = shared is not None and shared.wait()
        begun = perf_counter()
        drafted, sampler = pending.draft.tokens, self._sampler
        position = pending.start + 1
        choices = pending.choices
        if sampler.blocks(1 + len(drafted)):
            choices = self._choices(choices, position, pending.has_distributions)
        if pending.has_distributions:
            proposal = pending.draft.probabilities
            assert proposal is not None, "see `needs_distributions`"
            verdict = accept_or_resample(
                np.asarray(choices),
                drafted,
                proposal,
                lambda index: sampler.uniforms(position + index),
            )
        else:
            verdict = match_choices(cast(list[int], choices.tolist()), drafted)
        tokens = (*drafted[: verdict.accepted], verdict.next_token)
        outcome = Round(
            tokens,
            pending.draft,
            verdict.accepted,
            pending.start,
            pending.pipelined,
            replayed=pending.replayed,
            is_counted=is_counted,
        )
        if (constraint := sampler.constraint) is not None:
            taken = constraint.extend(position, tokens)
            outcome.grammar_complete = constraint.complete
            if outcome.grammar_complete:  # if the draft completed it, there is no bonus token
                outcome.tokens = tokens = tokens[:taken]
                outcome.accepted = min(outcome.accepted, taken)
        if self.cache.head is not None and pending.hidden is not None:
            rows = pending.hidden[: 1 + outcome.accepted]
            self.cache.head.note(rows, [self._known, *tokens], pending.start)
        self._known = tokens[-1] if tokens else self._known
        if pending.logprobs is not None:
            outcome.logprobs = pending.logprobs.logprobs(tokens)
        wait_s = perf_counter() - begun
        if shared is not None:  # its time says nothing about this sequence alone
            self._clock.lap(wait_s)
            outcome.forward_s = shared.seconds + wait_s
            return outcome
        outcome.build_s = pending.build_s
        outcome.forward_s = pending.build_s + wait_s
        seconds = self._clock.lap(wait_s)
        # Submitting a forward pass can block until the one in flight is done. So the first and the
        # last round of a pipeline are timed wrongly: one too long, one too short.
        is_followed = self._newest_start > pending.start
        outcome.seconds = seconds if is_followed == pending.pipelined else None
        return outcome

    def _submit(self, inputs: Inputs) -> PendingForward:
        begun = perf_counter()
        raw = self._model.forward(inputs.tokens, self.cache)
        hidden = None if self.cache.head is None else self._model.take_hidden()
        pending, results = self.finish(inputs, raw, hidden)
        mx.async_eval(results)  # type: ignore[no-untyped-call]
        pending.build_s = perf_counter() - begun
        return pending

    def _make_room(self, tokens: int) -> None:
        needed = self.cache.length + tokens
        if self._grow and needed > self.cache.capacity:
            self._grow(needed)

    def finish(
        self, inputs: Inputs, raw: mx.array, hidden: mx.array | None
    ) -> tuple[PendingForward, list[mx.array]]:
        """The forward pass with these `raw` logits, lazy, `[rows, vocabulary]`, and the arrays to
        evaluate; `hidden` are its hidden states, if there is a head for them."""
        tokens, draft, start, replayed, pipelined = inputs
        self._newest_start = start
        sampler = self._sampler
        if tokens.size > 1 + len(draft):
            needed = slice(replayed, replayed + 1 + len(draft))
            raw, tokens = raw[needed], tokens[needed]
            hidden = None if hidden is None else hidden[needed]
        if sampler.constraint is not None:
            mx.async_eval(raw)  # type: ignore[no-untyped-call]  # it will wait for the tokens
        logits = sampler.process_logits(raw, start + 1, tokens)
        results = []
        is_exact = self._block_rows or self._class  # chosen alike, whatever was drafted
        is_matched = sampler.sampling.greedy or bool(is_exact)
        has_distributions = needs_distributions(draft, greedy=is_matched)
        blocks = sampler.blocks(1 + len(draft))
        choices = logits if blocks else self._choices(logits, start + 1, has_distributions)
        chosen = None if blocks or has_distributions else choices
        logprobs = None
        if self._logprobs.logprobs is not None:
            shown = sampler.logprobs(logits, start + 1) if self._logprobs.drawn else raw
            logprobs = ForwardLogprobs(shown, chosen, self._logprobs)
            results.extend(logprobs.lazy)
        pending = PendingForward(
            start, draft, choices, has_distributions, logprobs, pipelined, replayed, hidden
        )
        return pending, [choices, *results]

    def _choices(self, logits: mx.array, position: int, has_distributions: bool) -> mx.array:
        if has_distributions:
            return self._sampler.distributions(logits, position)
        return self._sampler.choose(logits, position)
