"""A model split over all ranks: the share of each, and forward passes that run on all.

mlx-lm's models split themselves, by layer or within each; this module asks them to, and explains
failures in a sentence. On rank 0, `RankedModel` and `RankedCache` replace `TargetModel` and
`KVCache`. They send each operation to the other ranks, where `follow` repeats it. Drafters,
planners, samplers, schedulers and requests exist only on rank 0. MLX's collectives must run in the
same order everywhere, so each forward pass is submitted as soon as it is built.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum, auto
from functools import partial
from itertools import count
from math import inf
from os import SEEK_END
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any, Final, TypeVar
from zlib import crc32

import mlx.core as mx
from mlx import nn

from akunu_py.cache.kv_cache import KVCache, MakeLayers
from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.errors import InvalidRequestError, ModelLoadError, RankError
from akunu_py.model.loading import LoadedNetwork
from akunu_py.model.target_model import REST_S, TargetModel
from akunu_py.options import KVQuantization
from akunu_py.ranks.group import Ranks

_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096


def take_share(network: nn.Module, config: dict[str, Any], ranks: Ranks, *, pipeline: bool) -> None:
    """Drops what other ranks compute from a network whose weights have not been read, and reads the
    rest. With `pipeline`, ranks divide the list of layers instead of each layer. Raises a
    `ModelLoadError` if the network cannot be split.
    """
    stack = getattr(network, "model", None) or getattr(network, "language_model", None)
    stack = getattr(stack, "model", None) or stack
    can_shard, can_pipeline = hasattr(network, "shard"), hasattr(stack, "pipeline")
    if not (can_pipeline if pipeline else can_shard):
        remedy = "no other way of splitting works either."
        if pipeline and can_shard:
            remedy = "omit --pipeline, to split each layer."
        if not pipeline and can_pipeline:
            remedy = "add --pipeline, to split the list of its layers."
        raise ModelLoadError(
            f"mlx-lm's {config.get('model_type')} cannot be "
            f"{'pipelined' if pipeline else 'sharded'}: {remedy}"
        )
    try:
        if pipeline:
            stack.pipeline(ranks.group)  # type: ignore[union-attr]
        else:
            _check_heads(config.get("text_config") or config, ranks.size)
            network.shard(ranks.group)
        # Building a forward pass, without computing it, fails if a part has no whole heads.
        network(mx.array([[0, 0]]), cache=make_kv_cache(network, 2).layers)
    except Exception as error:  # whatever a network raises about shapes
        raise ModelLoadError(
            f"This model cannot be split among {ranks.size} ranks; try another number, such as one "
            f"that divides its heads ({' '.join(str(error).split())[:200].rstrip('.')})."
        ) from error
    mx.eval(network.parameters())
    cache = make_kv_cache(network, 1)
    ranks.check_same(
        repr((cache.has_states, cache.needs_checkpoints, cache.can_rollback)),
        "Each rank must have layers of every kind; try fewer ranks, or omit --pipeline.",
    )


def sampled_weights(folder: Path) -> int:
    """A checksum of the sizes of a model's weight files and of blocks throughout each file: each
    rank reads only its share, and two models may have the same configuration."""
    checksum = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = file.seek(0, SEEK_END)
            checksum = crc32(f"{path.name} {size}".encode(), checksum)
            for place in range(_SAMPLES):
                file.seek(size * place // _SAMPLES)
                checksum = crc32(file.read(_SAMPLE_BYTES), checksum)
    return checksum


def _check_heads(config: dict[str, Any], size: int) -> None:
    """Refuses numbers of heads where some models would split one head."""
    for name, heads in config.items():
        if name.endswith("heads") and isinstance(heads, int) and heads > 0:
            repeats = "key_value" in name and size % heads == 0  # some models repeat these
            if heads % size and not repeats:
                raise ValueError(f"it has {heads} {name}")


_DEFAULT_START: Final = -1
_PROBES: Final = 20

T = TypeVar("T")


class Operation(IntEnum):
    """The operations that rank 0 sends to the others, and the words that follow.

    STOP exit code; PAUSE milliseconds; MAKE cache, capacity, quantized start; DROP cache;
    APPEND, FORWARD and BATCH sequences, (cache, count) of each, tokens; TRIM cache, the number of
    its checkpoints, their lengths; the others are methods of a cache: cache, number of arguments,
    arguments.
    """

    STOP = 0
    PAUSE = auto()
    MAKE = auto()
    DROP = auto()
    APPEND = auto()
    FORWARD = auto()
    BATCH = auto()
    TRIM = auto()
    COPY = auto()
    ROLLBACK = auto()
    MARK = auto()
    KEEP = auto()
    SKIP = auto()
    REPEAT = auto()
    GROW = auto()


class RankedCache(KVCache):
    """A cache of rank 0's share of the layers; every change is sent to the other ranks."""

    def __init__(
        self, ranks: Ranks, numbers: Iterator[int], make_layers: MakeLayers, capacity: int
    ) -> None:
        self._ranks = ranks
        self._is_telling = True  # changes that another change makes are not sent
        self.number = next(numbers)
        super().__init__(make_layers, capacity)
        self._is_telling = False
        weakref.finalize(self, ranks.queue, Operation.DROP, self.number).atexit = False

    def rollback(self, to: int) -> int:
        return self._tell(Operation.ROLLBACK, partial(super().rollback, to), to)

    def mark(self) -> None:
        if self.has_states:
            self._tell(Operation.MARK, super().mark)

    def keep(self) -> None:
        if self.needs_checkpoints:
            self._tell(Operation.KEEP, super().keep)

    def skip(self, tokens: int) -> None:
        self._tell(Operation.SKIP, partial(super().skip, tokens), tokens)

    def repeat(self, tokens: int) -> None:
        self._tell(Operation.REPEAT, partial(super().repeat, tokens), tokens)

    def grow(self, capacity: int) -> None:
        self._tell(Operation.GROW, partial(super().grow, capacity), capacity)

    def copy(self, other: KVCache, tokens: int) -> None:
        assert isinstance(other, RankedCache)
        other.tell_kept()
        self._tell(Operation.COPY, partial(super().copy, other, tokens), other.number, tokens)

    def tell_kept(self) -> None:
        """Sends which checkpoints are left: a pool drops some when memory is short."""
        if self.needs_checkpoints:
            lengths = [one.length for one in self.checkpoints]
            self._ranks.queue(Operation.TRIM, self.number, len(lengths), *lengths)

    def _tell(self, operation: Operation, change: Callable[[], T], *arguments: int) -> T:
        if self._is_telling:
            return change()
        self._is_telling = True
        self.tell_kept()
        try:
            result = change()
        finally:
            self._is_telling = False
        self._ranks.queue(operation, self.number, len(arguments), *arguments)
        self._ranks.agree(self.number, self.length)
        return result


class RankedModel(TargetModel):
    """Rank 0's share of a model whose forward passes all ranks compute; see `TargetModel`.

    With `pipeline`, each rank has some of the layers instead of a part of every layer.
    """

    def __init__(
        self,
        ranks: Ranks,
        loaded: LoadedNetwork,
        *,
        pipeline: bool,
        kv_quantization: KVQuantization | None,
        max_kv_size: int | None,
    ) -> None:
        super().__init__(
            loaded.network, loaded.tokenizer, loaded.config, name=loaded.name,
            layout=loaded.layout, kv_quantization=kv_quantization, max_kv_size=max_kv_size,
        )  # fmt: skip
        self._ranks = ranks
        ranks.lead()
        self._pipeline = pipeline
        self._cache_type = partial(RankedCache, ranks, count(1))
        self.parameter_count = loaded.parameters
        self.ranks = f"{ranks}, {'pipeline' if pipeline else 'tensor'} parallel"

    def make_cache(self, capacity: int, *, quantized_start: int | None = None) -> KVCache:
        cache = super().make_cache(capacity, quantized_start=quantized_start)
        assert isinstance(cache, RankedCache)
        start = _DEFAULT_START if quantized_start is None else quantized_start
        self._ranks.queue(Operation.MAKE, cache.number, capacity, start)
        return cache

    def forward(self, tokens: mx.array, cache: KVCache) -> mx.array:
        with self._told(Operation.FORWARD, tokens, [cache], [tokens.size]):
            logits = super().forward(tokens, cache)
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
        self._ranks.agree(cache.length)
        return logits

    def append(self, tokens: mx.array, cache: KVCache) -> None:
        with self._told(Operation.APPEND, tokens, [cache], [tokens.size]):
            super().forward(tokens, cache)
            cache.submit()
        with self._ranks.guard():
            mx.synchronize()
        self._ranks.agree(cache.length)

    def forward_batch(
        self, tokens: mx.array, caches: Sequence[KVCache], counts: Sequence[int]
    ) -> mx.array:
        if self._pipeline:
            raise InvalidRequestError("Pipelined layers take one sequence at a time.")
        with self._told(Operation.BATCH, tokens, caches, counts):
            logits = super().forward_batch(tokens, caches, counts)
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
        self._ranks.agree(*(cache.length for cache in caches))
        return logits

    def _told(
        self,
        operation: Operation,
        tokens: mx.array,
        caches: Sequence[KVCache],
        counts: Sequence[int],
    ) -> AbstractContextManager[None]:
        numbers = [cache.number for cache in caches if isinstance(cache, RankedCache)]
        pairs = [word for pair in zip(numbers, counts, strict=True) for word in pair]
        return self._ranks.forward([operation, len(numbers), *pairs], tokens)

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
        return median(self._ranks.pause(Operation.PAUSE, 0) for _ in range(_PROBES))


def follow(model: TargetModel, ranks: Ranks) -> int:
    """Repeats the operations of rank 0 with this rank's share; returns the exit code."""
    follower = Follower(model, ranks)
    with ranks.guard(inf):  # only what is inside has a limit
        while (code := follower.obey(iter(ranks.receive()))) is None:
            pass
    ranks.finish()
    return code


class Follower:
    """A rank that repeats what rank 0 does to its share of a model."""

    def __init__(self, model: TargetModel, ranks: Ranks) -> None:
        self._model = model
        self._ranks = ranks
        self._caches: dict[int, KVCache] = {}

    def obey(self, words: Iterator[int]) -> int | None:
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
                    del self._caches[next(words)]
                case Operation.APPEND | Operation.FORWARD | Operation.BATCH as operation:
                    self._compute(operation, words)
                case operation:
                    number, *arguments = next(words), *(next(words) for _ in range(next(words)))
                    self._change(operation, number, arguments)
        return None

    def _change(self, operation: Operation, number: int, arguments: list[int]) -> None:
        cache = self._caches[number]
        match operation:
            case Operation.TRIM:
                cache.checkpoints = [one for one in cache.checkpoints if one.length in arguments]
                return
            case Operation.COPY:
                cache.copy(self._caches[arguments[0]], arguments[1])
            case _:
                getattr(cache, operation.name.lower())(*arguments)
        self._ranks.agree(number, cache.length)

    def _compute(self, operation: Operation, words: Iterator[int]) -> None:
        """Computes a forward pass; its logits only if rank 0 reads them."""
        self._ranks.check()
        pairs = [(self._caches[next(words)], next(words)) for _ in range(next(words))]
        caches, counts = zip(*pairs, strict=True)
        tokens = mx.array(list(words))
        with self._ranks.guard():  # MLX waits while many operations are in flight
            try:
                if operation is Operation.BATCH:
                    logits = self._model.forward_batch(tokens, caches, counts)
                else:
                    logits = self._model.forward(tokens, caches[0])
            except Exception:  # the model's own code raised it, and on rank 0 too
                return
            if operation is Operation.APPEND:
                caches[0].submit()
            else:
                mx.async_eval(logits)  # type: ignore[no-untyped-call]
        self._ranks.agree(*(cache.length for cache in caches))
        if operation is Operation.APPEND:
            mx.clear_cache()
