"""TargetModel: a model loaded through mlx-lm, which computes forward passes and prefills on caches.

It also has sizes and names for its callers, who decide what to draft and which tokens to choose.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm import utils

from akunu_py.cache.batched import BatchedCaches
from akunu_py.cache.kv_cache import KVCache, MakeLayers
from akunu_py.cache.model_cache import (
    KEPT_TOKENS,
    HeadCache,
    Rollback,
    make_kv_cache,
    no_rollback_reason,
)
from akunu_py.cache.states import make_recordable, record
from akunu_py.errors import ModelLoadError
from akunu_py.machine.backend import ModelShape, WeightLayout
from akunu_py.model.attention import (
    MOST_APART,
    attending,
    has_latent_attention,
    intercept_attention,
)
from akunu_py.model.files import CONTEXT_KEYS, FALLBACK_CONTEXT
from akunu_py.model.head import Head
from akunu_py.model.library import short_count
from akunu_py.options import KVQuantization
from akunu_py.text.json_schema import one_line
from akunu_py.text.tokenizer import Tokenizer

PREFILL_STEP: Final = 512
"""The default number of prompt tokens per forward pass."""
FORWARDS_PER_CLEANUP: Final = 256
"""How often MLX returns freed buffers; a growing context leaves larger and larger ones."""
REST_S: Final = 0.02
"""How long other ranks sleep between two checks for a message while there is no request: a wait in
MLX keeps a core busy."""

_PLAIN: Final = (bool, int, float, str)
_UNSIGNED: Final = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}
_SAMPLES: Final = 64
"""How many values of each weight enter a fingerprint in order; of the rest, only the sum does."""
_SEES_AHEAD: Final = "phi3small"
"""The mlx-lm model whose tokens see later ones; `tests/test_architectures.py` finds it."""


class TargetModel:
    """The model that generates the text and verifies drafts: an evaluated mlx-lm network, its
    `config.json`, and perhaps its adapter's folder and its head. Without a fitting head, `head` is
    None and `why_no_head` says why. `original` is mlx-lm's form of a faster `network`, for
    comparisons.

    Full attention keeps `max_kv_size` tokens, or all. `padding` gives what a drafted round is
    padded to (see `CostCurve.padding`), `pads_batches` says whether the network reads the keys of
    batches, padded; `is_latent`, whether a few tokens of one sequence go through its latent
    attention as a batch of single ones. `ranks` names the processes that compute, if not just this
    one; `forwards` counts passes built.
    """

    def __init__(
        self,
        network: nn.Module,
        tokenizer: Tokenizer,
        config: dict[str, Any],
        *,
        name: str,
        layout: WeightLayout,
        adapter: Path | None = None,
        original: nn.Module | None = None,
        kv_quantization: KVQuantization | None = None,
        max_kv_size: int | None = None,
        head: Head | None = None,
    ) -> None:
        is_recurrent = make_recordable(network)
        self.network = network
        self.original = network if original is None else original
        self.tokenizer = tokenizer
        self.config = config
        self.name = name
        self.layout: WeightLayout = layout
        self.adapter = adapter
        self.kv_quantization = kv_quantization
        self.max_kv_size = max_kv_size
        self.padding: Mapping[int, int] = {}
        self.pads_batches = False
        self.ranks: str | None = None
        self.head = head
        self.why_no_head: str | None = None
        self.forwards = 0
        self._watched = None if head is None else head.watch()
        self._rows_of: Callable[[mx.array], mx.array] = _first_sequence
        self._cache_type: Callable[[MakeLayers, int], KVCache] = KVCache
        self._intercepts = False
        has_plain_caches = kv_quantization is None and max_kv_size is None
        self.is_latent = (
            has_plain_caches
            and has_latent_attention(network)
            and (is_recurrent or not self.make_cache(1).has_states)
        )

    @cached_property
    def why_no_drafts(self) -> str | None:
        """A line for the user if drafts would change answers or cannot be dropped."""
        if self.config.get("model_type") == _SEES_AHEAD:
            return (
                "Speculation is off: in mlx-lm's form of this model, a token sees later tokens of "
                "the same forward pass, so drafts would change the answer."
            )
        return no_rollback_reason(self.make_cache(1))

    @property
    def full_name(self) -> str:
        return self.name if self.adapter is None else f"{self.name} with {self.adapter.name}"

    @property
    def vocabulary_size(self) -> int:
        """How many ids it accepts and predicts; its tokenizer may use fewer."""
        return self._setting("vocab_size") or len(self.tokenizer.wrapped)

    @property
    def context_length(self) -> int:
        """The context length that the model was trained for."""
        return self._setting(*CONTEXT_KEYS) or FALLBACK_CONTEXT

    @property
    def names_head(self) -> bool:
        """Whether its configuration names a drafting head; its files may have none."""
        return bool(self._setting("mtp_num_hidden_layers", "num_nextn_predict_layers"))

    def _setting(self, *names: str) -> int | None:
        """The first whole number with one of these names in the configuration, or else among
        mlx-lm's defaults. In a vision-language model, the text part comes first."""
        parts = (self.network, getattr(self.network, "language_model", None))
        assumed = [vars(args) for part in parts if (args := getattr(part, "args", None))]
        for settings in (self.config.get("text_config") or {}, self.config, *assumed):
            for name in names:
                if isinstance(settings.get(name), int):
                    return int(settings[name])
        return None

    @cached_property
    def shape(self) -> ModelShape:
        heads = max(1, self._setting("num_attention_heads", "n_head", "n_heads") or 1)
        width = self._setting("hidden_size", "n_embd", "d_model") or 0
        size = self._setting("head_dim") or width // heads
        if (latent := self._setting("qk_nope_head_dim")) is not None:
            size = latent + (self._setting("qk_rope_head_dim") or 0)
        experts = self._setting(
            "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"
        )
        return ModelShape(heads, size, (experts or 0) > 1)

    @property
    def parameter_bytes(self) -> int:
        return sum(array.nbytes for _, array in tree_flatten(self.network.parameters()))

    @cached_property
    def parameter_count(self) -> int:
        return int(utils.get_total_parameters(self.network))

    @property
    def size(self) -> str:
        """The number of weights, such as 7.6B."""
        return short_count(self.parameter_count)

    @cached_property
    def is_coarse(self) -> bool:
        """Whether it computes in 16 bits or quantizes its keys and values: logits of forward passes
        of different sizes then differ much more than in float32."""
        weights = (weight for _, weight in tree_flatten(self.network.parameters()))
        return self.kv_quantization is not None or any(
            mx.issubdtype(weight.dtype, mx.floating) and weight.dtype.size < mx.float32.size
            for weight in weights
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of its configuration, its layers' settings and its weights."""
        summary = sha256(json.dumps(self.config, sort_keys=True, default=str).encode())
        for name, module in self.network.named_modules():
            plain = {key: held for key, held in vars(module).items() if type(held) in _PLAIN}
            summary.update(repr((name, type(module).__name__, sorted(plain.items()))).encode())
        for name, weight in sorted(tree_flatten(self.network.parameters())):
            bits = weight.reshape(-1).view(_UNSIGNED[weight.dtype.size])
            sample = bits[:: max(1, bits.size // _SAMPLES)]
            facts = (name, weight.shape, str(weight.dtype), mx.sum(bits).item(), sample.tolist())
            summary.update(repr(facts).encode())
        return summary.hexdigest()

    @property
    def kv_cache_form(self) -> str | None:
        """How its caches are quantized or bounded, for the user; None if they are neither."""
        if self.max_kv_size is not None:
            return f"the first {KEPT_TOKENS} and the last tokens, {self.max_kv_size:,} in all"
        if self.kv_quantization is None:
            return None
        cache = self.make_cache(1)
        return f"{self.kv_quantization}, in {cache.quantized_layers} of {len(cache.layers)} layers"

    def make_cache(self, capacity: int, *, quantized_start: int | None = None) -> KVCache:
        """An empty cache for `capacity` tokens, quantized from the usual or the given length on."""
        quantization = self.kv_quantization
        if quantization is not None and quantized_start is not None:
            quantization = replace(quantization, start=quantized_start)
        cache = make_kv_cache(
            self.network, capacity, quantization, self.max_kv_size, self._cache_type
        )
        if self.head is not None:
            cache.head = HeadCache(self.head, self.head.make_cache(capacity))
        return cache

    def sample_cache(self) -> KVCache:
        """A cache that holds a token; all others have its form."""
        cache = self.make_cache(1)
        self.append(mx.array([0]), cache)
        self._read_pairs(cache, [0, 0])
        cache.evaluate()
        return cache

    @cached_property
    def after_rejection(self) -> Rollback:
        cache = self.make_cache(4)
        if not cache.can_rollback:
            return Rollback.NONE
        if not cache.has_states:
            return Rollback.COUNTER
        cache.mark()
        self.forward(mx.array([1, 2, 3]), cache)
        return Rollback.REPLAY if cache.rollback(2) else Rollback.RECURRENCE

    def guard(self) -> AbstractContextManager[None]:
        """A context for code that reads results: a lost rank raises a `RankError` in it."""
        return nullcontext()

    def on_lost(self, tell: Callable[[Exception], object]) -> None:
        """Calls `tell`, on any thread, if another rank is lost; the process ends a second later."""

    def rest(self, seconds: float = REST_S) -> bool:
        """Pauses the other ranks; returns whether there are any."""
        return False

    def broadcast_seconds(self) -> float:
        return 0.0

    def cache_bytes(self, capacity: int) -> float:
        """The most bytes of a cache for this many tokens, without checkpoints."""
        least, more, whole = self._cache_sizes
        start = 0 if self.kv_quantization is None else self.kv_quantization.start
        return least + max(more * capacity, whole * min(capacity, start))

    @cached_property
    def _cache_sizes(self) -> tuple[float, float, float]:
        """The bytes of an empty cache, of a token (quantized, if it will be), and of a token before
        quantization; from forward passes that are built but not computed."""
        caches = [self.make_cache(self.context_length, quantized_start=0)]
        if self.kv_quantization is not None:
            caches.append(self.make_cache(self.context_length, quantized_start=self.context_length))
        try:
            for cache in caches:
                self.network(mx.array([[0]]), cache=cache.layers)
                self._read_pairs(cache, [0, 0])
        except Exception as error:  # the sizes fit the weights, but something else does not
            why = f"{self.name} cannot compute what its config.json says ({one_line(str(error))})."
            raise ModelLoadError(why) from error
        least = caches[0].estimate(0)
        more, *_, whole = (cache.estimate(1) - least for cache in (*caches, caches[-1]))
        return least, more, whole

    def _read_pairs(self, cache: KVCache, tokens: Sequence[int], at: int = 0) -> None:
        """Lets the head read the last forward pass, which began at `at`; see `HeadCache.note`."""
        if cache.head is not None:
            cache.head.note(self.take_hidden(), tokens, at)
            cache.head.read()

    def forward(self, tokens: mx.array, cache: KVCache) -> mx.array:
        """Appends tokens `[positions]` to a cache that has room for them, and predicts the token
        after each: lazy logits `[positions, vocabulary]`."""
        if self.is_latent and 1 < tokens.size <= MOST_APART:
            return self._forward_rows(tokens, [cache], [tokens.size], pads=True)
        self._begin(_first_sequence)
        with record(cache.recording):
            logits: mx.array = self.network(tokens[None], cache=cache.layers)
        cache.advance(tokens.size)
        return logits[0]

    def append(self, tokens: mx.array, cache: KVCache) -> None:
        """Appends tokens like `forward`, but predicts nothing."""
        self.forward(tokens, cache)

    def forward_batch(
        self, tokens: mx.array, caches: Sequence[KVCache], counts: Sequence[int]
    ) -> mx.array:
        """Appends tokens to the caches of several sequences in one forward pass;
        `decoding/batch.py` knows which models can do this.

        `tokens` are `[rows]`, `counts` of each sequence, in order. Returns lazy logits `[rows,
        vocabulary]`.
        """
        return self._forward_rows(tokens, caches, counts, pads=self.pads_batches)

    def _forward_rows(
        self, tokens: mx.array, caches: Sequence[KVCache], counts: Sequence[int], *, pads: bool
    ) -> mx.array:
        if not self._intercepts:
            intercept_attention(self.network)
            self._intercepts = True
        self._begin(_rows_apart)
        batch = BatchedCaches(caches, counts, pads=pads)
        with record(batch.recorder), attending(batch.attention):
            logits: mx.array = self.network(tokens[:, None], cache=batch.layers)
        batch.advance()
        return _rows_apart(logits)

    def take_hidden(self) -> mx.array:
        """The lazy hidden states `[rows, hidden_size]` of the last forward pass, in the form that
        the head takes and in the order of the logits. They can be taken once, and are dropped at
        the next pass."""
        states = None if self._watched is None else self._watched.take()
        if states is None:
            raise ValueError("There are no hidden states: no head is loaded, or they were taken.")
        return self._rows_of(states)

    def _begin(self, rows_of: Callable[[mx.array], mx.array]) -> None:
        self.forwards += 1
        if self.forwards % FORWARDS_PER_CLEANUP == 0:
            mx.clear_cache()
        if self._watched is not None:
            self._watched.take()
            self._rows_of = rows_of

    def prefill(self, tokens: Sequence[int], cache: KVCache, *, step: int = PREFILL_STEP) -> None:
        for _ in self.prefill_chunks(tokens, cache, step=lambda: step, overlaps=True):
            pass

    def prefill_chunks(
        self,
        tokens: Sequence[int],
        cache: KVCache,
        *,
        step: Callable[[], int],
        overlaps: bool = False,
        observe: Callable[[mx.array], object] | None = None,
        ends: Sequence[int] = (),
    ) -> Iterator[int]:
        """Computes the cache of prompt tokens, `step` of them at a time; yields how many are done.
        A chunk also ends at `ends`, lengths of the cache, and where quantization begins.

        `overlaps` builds a chunk's graph while the previous one is computed; callers must then
        neither stop nor look into the cache between chunks. `observe` gets the lazy logits of each
        chunk; without it, they are not computed.
        """
        done = 0
        while done < len(tokens):
            stops = (cache.length + step(), *ends, cache.quantized_start)
            stop = min(end for end in stops if end > cache.length)
            chunk = tokens[done : done + stop - cache.length]
            if observe:
                observe(self.forward(mx.array(list(chunk)), cache))
            else:
                self.append(mx.array(list(chunk)), cache)
            self._read_pairs(cache, chunk, cache.length - len(chunk))
            if overlaps and done:
                mx.synchronize()  # MLX writes in place only where no forward pass in flight reads
                mx.clear_cache()
                yield done
            cache.submit()
            done += len(chunk)
            if not overlaps or done == len(tokens):
                mx.synchronize()
                mx.clear_cache()
                yield done


def _first_sequence(states: mx.array) -> mx.array:
    return states[0]


def _rows_apart(states: mx.array) -> mx.array:
    return states[:, 0]
