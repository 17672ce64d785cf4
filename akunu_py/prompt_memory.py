"""PromptMemory: how much memory a prompt takes, whether it fits, and in which chunks to compute
it."""

from typing import Final

from akunu_py.cache.prefix_pool import PrefixPool
from akunu_py.errors import ContextOverflowError
from akunu_py.machine.backend import Backend
from akunu_py.machine.device_memory import MORE_MEMORY, free_device_bytes
from akunu_py.model.target_model import TargetModel
from akunu_py.sequence import Sequence

_LARGE_BYTES: Final = 256 << 20
"""A prompt that needs less memory is not checked."""

_NOTICED_S: Final = 0.1
"""A wait that people notice (Miller 1968, https://doi.org/10.1145/1476589.1476628)."""
_DEARER: Final = 1.15
"""Halving a chunk may make each token at most this many times slower; see docs/decisions.md."""


class ChunkSize:
    """How many prompt tokens the next forward pass of a prefill has.

    Other requests wait for the pass, and a long context makes it slow. After a noticeably long
    pass, the next one has half as many tokens, unless that takes almost as long. On a busy machine,
    single times say little, so no pass has less than a quarter of the `most`.
    """

    def __init__(self, most: int) -> None:
        self.tokens = most
        self._least = -(-most // 4)
        self._longest_s = _NOTICED_S
        self._twice_s: float | None = None  # of the last one, if it had twice the tokens

    def learn(self, seconds: float) -> None:
        """Learns how long a forward pass over this many tokens took."""
        twice_s, self._twice_s = self._twice_s, None
        if twice_s is not None and 2.0 * seconds > _DEARER * twice_s:
            self.tokens *= 2
            self._longest_s = 2.0 * twice_s
        elif seconds > self._longest_s and self.tokens > self._least:
            self.tokens //= 2
            self._twice_s = seconds


class PromptMemory:
    """The memory of one engine's prompts. Without a `step_size`, in tokens per pass, the backend
    decides.
    """

    def __init__(
        self, model: TargetModel, backend: Backend, prefixes: PrefixPool, step_size: int | None
    ) -> None:
        self._model = model
        self._backend = backend
        self._prefixes = prefixes
        self._step_size = step_size

    def varies(self, sequence: Sequence) -> bool:
        """Whether the chunks of its prompt may be shortened while other requests run. Otherwise
        their size is constant, because it affects how later keys and values are rounded."""
        options = sequence.options
        is_fixed = options.exact or options.scores_prompt or self._step_size is not None
        return sequence.may_be_cancelled and not is_fixed

    def step(self, sequence: Sequence, tokens: int | None = None) -> int:
        """The most prompt tokens per pass of a sequence, or of one with this many `tokens`."""
        kept = self._kept(len(sequence.prompt) if tokens is None else tokens)
        return self._step_size or self._backend.prefill_step(
            self._model.shape, kept, cancellable=sequence.may_be_cancelled
        )

    def limit_caches(self, tokens: int) -> None:
        """Limits the caches to the free memory, if they are about to take much of it."""
        if self._prefixes.is_bounded or self._prefixes.needed_bytes(tokens)[0] > _LARGE_BYTES:
            self._prefixes.bound(free_device_bytes())

    def check(self, sequence: Sequence) -> None:
        """Refuses a prompt whose cache and attention scores do not fit into the free memory with a
        ContextOverflowError, which says how many tokens fit.
        """
        tokens, idle = len(sequence.prompt), self._prefixes.needed_bytes(0)[1]
        self.limit_caches(tokens)
        known = 0 if sequence.options.scores_prompt else self._prefixes.known(sequence.prompt)
        needed = self._bytes_of(sequence, tokens, known)
        if needed - idle <= _LARGE_BYTES or needed <= (free := free_device_bytes() + idle):
            return
        fits = tokens
        while fits and self._bytes_of(sequence, fits) > free:
            fits = fits * 7 // 8
        raise ContextOverflowError(
            f"A prompt of {tokens:,} tokens needs {needed / 2**30:.1f} GiB of memory here, and "
            f"{free / 2**30:.1f} GiB are free: about {fits:,} tokens fit. Load the model with "
            f"--kv-bits 8 or --max-kv-size, or {MORE_MEMORY}.",
            tokens=tokens,
            limit=fits,
        )

    def _bytes_of(self, sequence: Sequence, tokens: int, known: int = 0) -> float:
        """Bytes of the cache and the attention scores of a prompt with this many `tokens`; `known`
        of them are computed already."""
        chunk = min(self.step(sequence, tokens), tokens - known)
        scores = self._backend.score_bytes(self._model.shape, chunk, self._kept(tokens))
        return self._prefixes.needed_bytes(min(tokens + 1, self._prefixes.limit))[0] + scores

    def _kept(self, tokens: int) -> int:
        return min(tokens, self._model.max_kv_size or tokens)
