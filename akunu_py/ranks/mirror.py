"""A model whose forwards run on all ranks.

On rank 0, `RankedModel` and `RankedCache` stand in the places of `TargetModel` and `KVCache`: what
is done to them is done there and told to the others, which repeat it in `follow`. So drafters,
planners, samplers, schedulers and requests live on rank 0 alone. MLX's collectives must be
computed in the same order everywhere, so each forward is submitted as soon as it is built.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from functools import partial
from time import sleep
from typing import Any, Final, TypeVar

import mlx.core as mx
from mlx import nn

from akunu_py.cache.checkpoint import Checkpoint
from akunu_py.cache.kv_cache import KVCache, MakeLayers
from akunu_py.errors import InvalidRequestError, RankError
from akunu_py.machine.backend import ResidentWeights, WeightLayout
from akunu_py.model.target_model import REST_S, TargetModel
from akunu_py.options import KVQuantization
from akunu_py.ranks.group import Ranks
from akunu_py.text.tokenizer import Tokenizer

_FORWARDS_PER_CLEANUP: Final = 256
_DEFAULT_START: Final = -1

T = TypeVar("T")


class Operation(IntEnum):
    """What rank 0 tells the others to do, and the words that follow.

    STOP exit code; PAUSE milliseconds; MAKE cache, capacity, quantized start; DROP cache;
    ROLLBACK cache, to, whether to the saved checkpoint, checkpoints; MARK cache; SAVE cache;
    KEEP cache, checkpoints; SKIP cache, tokens; GROW cache, capacity; COPY cache, tokens, other,
    checkpoints of the other; APPEND cache, count, tokens; FORWARD the same; BATCH sequences,
    (cache, count) of each, tokens. `checkpoints`: how many, and their lengths; others are dropped.
    """

    STOP = 0
    PAUSE = 1
    MAKE = 2
    DROP = 3
    ROLLBACK = 4
    MARK = 5
    SAVE = 6
    KEEP = 7
    SKIP = 8
    GROW = 9
    COPY = 10
    APPEND = 11
    FORWARD = 12
    BATCH = 13


class RankedCache(KVCache):
    """A cache of rank 0's share of the layers; every change of it is told to the other ranks."""

    def __init__(self, ranks: Ranks, make_layers: MakeLayers, capacity: int) -> None:
        self._ranks = ranks
        self._is_telling = True  # and what a change does to the cache is no change of its own
        self.number = ranks.new_cache()
        super().__init__(make_layers, capacity)
        self._is_telling = False
        weakref.finalize(self, ranks.drop, Operation.DROP, self.number).atexit = False

    def rollback(self, to: int, checkpoint: Checkpoint | None = None) -> int:
        words = to, int(checkpoint is not None), *_kept(self)
        return self._tell(Operation.ROLLBACK, words, KVCache.rollback, to, checkpoint)

    def mark(self) -> None:
        if self.has_states:
            self._tell(Operation.MARK, (), KVCache.mark)

    def checkpoint(self, *, whole: bool = False) -> Checkpoint:
        made = super().checkpoint(whole=whole)
        if whole:
            self._tell(Operation.SAVE, (), lambda _: None)
        return made

    def keep(self) -> None:
        if self.needs_checkpoints:
            self._tell(Operation.KEEP, _kept(self), KVCache.keep)

    def skip(self, tokens: int) -> None:
        self._tell(Operation.SKIP, (tokens,), KVCache.skip, tokens)

    def grow(self, capacity: int) -> None:
        self._tell(Operation.GROW, (capacity,), KVCache.grow, capacity)

    def copy(self, other: KVCache, tokens: int) -> None:
        assert isinstance(other, RankedCache)
        words = tokens, other.number, *_kept(other)
        self._tell(Operation.COPY, words, KVCache.copy, other, tokens)

    def _tell(
        self, operation: Operation, words: Sequence[int], change: Callable[..., T], *arguments: Any
    ) -> T:
        if self._is_telling:
            return change(self, *arguments)
        self._is_telling = True
        try:
            result = change(self, *arguments)
        finally:
            self._is_telling = False
        self._ranks.queue(operation, self.number, *words)
        self._ranks.agree(self.number, self.length)
        return result


class RankedModel(TargetModel):
    """Rank 0's share of a model, whose forwards all ranks compute; see `TargetModel`.

    Args:
        ranks: all of them.
        pipeline: whether each has some of the layers, instead of a part of every layer.
        parameters: how many weights they have together.
        whole_bytes: and how many bytes.
    """

    def __init__(
        self,
        ranks: Ranks,
        network: nn.Module,
        tokenizer: Tokenizer,
        config: dict[str, Any],
        *,
        pipeline: bool,
        name: str,
        layout: WeightLayout,
        kv_quantization: KVQuantization | None,
        max_kv_size: int | None,
        parameters: int,
        whole_bytes: int,
    ) -> None:
        super().__init__(
            network, tokenizer, config,
            name=name, layout=layout, kv_quantization=kv_quantization, max_kv_size=max_kv_size,
        )  # fmt: skip
        self._ranks = ranks
        ranks.lead()
        self._pipeline = pipeline
        self._whole_bytes = whole_bytes
        self._cache_type = partial(RankedCache, ranks)
        self.parameter_count = parameters
        self.ranks = f"{ranks}, {'pipeline' if pipeline else 'tensor'} parallel"

    def make_cache(self, capacity: int, *, quantized_start: int | None = None) -> KVCache:
        cache = super().make_cache(capacity, quantized_start=quantized_start)
        assert isinstance(cache, RankedCache)
        start = _DEFAULT_START if quantized_start is None else quantized_start
        self._ranks.queue(Operation.MAKE, cache.number, capacity, start)
        return cache

    def forward(self, tokens: mx.array, cache: KVCache) -> mx.array:
        assert isinstance(cache, RankedCache)
        with self._ranks.forward([Operation.FORWARD, cache.number, tokens.size], tokens):
            logits = super().forward(tokens, cache)
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
        self._ranks.watch(logits)
        self._ranks.agree(cache.number, cache.length)
        return logits

    def append(self, tokens: mx.array, cache: KVCache) -> None:
        assert isinstance(cache, RankedCache)
        with self._ranks.forward([Operation.APPEND, cache.number, tokens.size], tokens):
            super().forward(tokens, cache)
            cache.submit()
        self._ranks.wait()
        self._ranks.agree(cache.number, cache.length)

    def forward_batch(
        self, tokens: mx.array, caches: Sequence[KVCache], counts: Sequence[int]
    ) -> mx.array:
        if self._pipeline:
            raise InvalidRequestError("Pipelined layers take one sequence at a time.")
        numbers = [cache.number for cache in caches if isinstance(cache, RankedCache)]
        pairs = [word for pair in zip(numbers, counts, strict=True) for word in pair]
        with self._ranks.forward([Operation.BATCH, len(numbers), *pairs], tokens):
            logits = super().forward_batch(tokens, caches, counts)
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
        self._ranks.watch(logits)
        self._ranks.agree(*(cache.length for cache in caches))
        return logits

    @property
    def whole_bytes(self) -> int:
        return self._whole_bytes

    def rest(self, seconds: float = REST_S) -> bool:
        try:
            self._ranks.pause(Operation.PAUSE, seconds)
        except RankError:
            return False  # the process is about to end
        return True

    def guard(self) -> AbstractContextManager[None]:
        return self._ranks.guard()

    def on_lost(self, tell: Callable[[Exception], object]) -> None:
        self._ranks.on_lost = tell

    def close(self) -> None:
        self._ranks.stop()

    def broadcast_seconds(self) -> float:
        return self._ranks.broadcast_seconds(Operation.PAUSE)


def follow(model: TargetModel, ranks: Ranks) -> int:
    """Does what rank 0 says, until it says to stop; returns the exit code that it ends with.

    Args:
        model: this rank's share.
        ranks: all of them.

    Raises:
        RankError: if rank 0 is lost, or this one holds other tokens.
    """
    follower = _Follower(model, ranks)
    with ranks.guard(), ResidentWeights():  # a lost rank is noticed wherever a forward is submitted
        while (code := follower.obey(iter(ranks.receive()))) is None:
            pass
    return code


class _Follower:
    """A rank that repeats what rank 0 does to its share of a model."""

    def __init__(self, model: TargetModel, ranks: Ranks) -> None:
        self._model = model
        self._ranks = ranks
        self._caches: dict[int, KVCache] = {}
        self._saved: dict[int, Checkpoint] = {}
        self._forwards = 0

    def obey(self, words: Iterator[int]) -> int | None:
        """Does what a message says; the exit code if it is the last one."""
        for word in words:
            match Operation(word):
                case Operation.STOP:
                    return next(words)
                case Operation.PAUSE:
                    sleep(next(words) / 1000)
                case Operation.MAKE:
                    number, capacity, start = (next(words) for _ in range(3))
                    self._caches[number] = self._model.make_cache(
                        capacity, quantized_start=None if start == _DEFAULT_START else start
                    )
                case Operation.DROP:
                    number = next(words)
                    del self._caches[number]
                    self._saved.pop(number, None)
                case Operation.APPEND | Operation.FORWARD:
                    number, count = next(words), next(words)
                    self._compute([number], [count], words, reads=word == Operation.FORWARD)
                case Operation.BATCH:
                    pairs = [(next(words), next(words)) for _ in range(next(words))]
                    numbers, counts = zip(*pairs, strict=True)
                    self._compute(numbers, counts, words, reads=True, batched=True)
                case operation:
                    number = next(words)
                    self._change(operation, number, words)
                    self._ranks.agree(number, self._caches[number].length)
        return None

    def _change(self, operation: Operation, number: int, words: Iterator[int]) -> None:
        cache = self._caches[number]
        match operation:
            case Operation.ROLLBACK:
                to, to_saved = next(words), next(words)
                _drop_others(cache, words)
                cache.rollback(to, self._saved[number] if to_saved else None)
            case Operation.MARK:
                cache.mark()
            case Operation.SAVE:
                self._saved[number] = cache.checkpoint(whole=True)
            case Operation.KEEP:
                _drop_others(cache, words)
                cache.keep()
            case Operation.SKIP:
                cache.skip(next(words))
            case Operation.GROW:
                cache.grow(next(words))
            case Operation.COPY:
                tokens, other = next(words), self._caches[next(words)]
                _drop_others(other, words)
                cache.copy(other, tokens)

    def _compute(
        self,
        numbers: Sequence[int],
        counts: Sequence[int],
        words: Iterator[int],
        *,
        reads: bool,
        batched: bool = False,
    ) -> None:
        """Computes a forward; what it predicts only if rank 0 reads that."""
        self._ranks.check()
        tokens = mx.array(list(words))
        caches = [self._caches[number] for number in numbers]
        with self._ranks.waiting():  # MLX waits where many operations are in flight
            try:
                if batched:
                    logits = self._model.forward_batch(tokens, caches, counts)
                else:
                    logits = self._model.forward(tokens, caches[0])
            except Exception:  # a model's Python may raise anything, and has done so on rank 0
                return
            if reads:
                mx.async_eval(logits)  # type: ignore[no-untyped-call]
            else:
                caches[0].submit()
        lengths = [cache.length for cache in caches]
        self._ranks.agree(*(lengths if batched else (numbers[0], lengths[0])))
        self._forwards += 1
        if not reads or self._forwards % _FORWARDS_PER_CLEANUP == 0:
            mx.clear_cache()


def _kept(cache: KVCache) -> tuple[int, ...]:
    """The checkpoints of a cache, as words."""
    lengths = [one.length for one in cache.checkpoints]
    return len(lengths), *lengths


def _drop_others(cache: KVCache, words: Iterator[int]) -> None:
    """Drops the checkpoints that rank 0 has dropped."""
    lengths = {next(words) for _ in range(next(words))}
    cache.checkpoints = [one for one in cache.checkpoints if one.length in lengths]
