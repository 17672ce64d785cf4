"""The machine: its MLX device, its memory, and the weight layout that is fastest on it.

Every decision that depends on the device is made here. On a CPU, MLX multiplies by quantized
weights one row and one thread at a time, so dense float32 weights with a real BLAS are faster if
they fit in memory. A GPU has kernels for quantized weights and reads fewer bytes with them.
"""

import os
import platform
import resource
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, cast

from akunu_py.errors import BackendError, InvalidRequestError
from akunu_py.machine.blas import load_blas
from akunu_py.options import MAX_PLANNED_TOKENS, KVForm

WeightLayout = Literal["quantized", "dense"]
WEIGHT_LAYOUTS: Final = ("auto", "quantized", "dense")

_NO_BLAS_WARNING: Final = (
    "MLX computes with its reference BLAS here, which makes answers about 5-10x slower; "
    "install a BLAS: `pip install mkl` (x86-64) or the system package libopenblas0."
)
_NO_BACKEND: Final = (
    "MLX has no backend on this machine: install akunu-py[cpu], "
    "or akunu-py[cuda13] if it has an NVIDIA GPU."
)
PREFILL_STEP: Final = 512
"""Prompt tokens per forward of a prefill that may be cancelled between two forwards."""

MOST_ROUND_TOKENS: Final = MAX_PLANNED_TOKENS + 1
"""The most tokens of a planned round; forwards of more are prefills."""

_DESCRIPTORS: Final = 4096
_RANK_VARIABLES: Final = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LARGE_PREFILL_STEP: Final = 2048  # as in mlx-lm
_CPU_PREFILL_STEP: Final = 128  # see benchmarks/prefill_step.py
# Shares of the free memory; the rest of the process needs memory too.
_DENSE_MEMORY_SHARE: Final = 0.4
_CACHE_MEMORY_SHARE: Final = 0.25


@dataclass(frozen=True)
class VectorAttention:
    """What MLX's attention kernel for few rows serves; more rows take another kernel.

    Attributes:
        rows: the most rows.
        query_rows: the most rows times the query heads that share keys.
    """

    rows: int
    query_rows: int

    def most_rows(self, sharing: int) -> int:
        """The most rows if so many query heads share keys; 0 if not even one."""
        return min(self.rows, self.query_rows // sharing)


@dataclass(frozen=True)
class Backend:
    """What this machine computes with.

    Attributes:
        device: where MLX runs.
        chip: the device's name, as MLX or the system reports it.
        blas: `mkl`, `openblas` or `reference` on a Linux CPU; else None.
        threads: how many threads the BLAS uses at first; 1 on other devices.
    """

    device: Literal["metal", "cuda", "cpu"]
    chip: str
    blas: str | None = None
    threads: int = 1

    @property
    def warning(self) -> str | None:
        """One line for the user if this machine could be much faster; else None."""
        return _NO_BLAS_WARNING if self.blas == "reference" else None

    @property
    def kv_form(self) -> KVForm:
        """How attention reads quantized keys and values; see `benchmarks/kv_quantization.py`."""
        return "bytewise" if self.device == "cpu" else "packed"

    @property
    def vector_attention(self) -> VectorAttention | None:
        """What the kernel for few rows serves, if there is another that may be slower.

        From MLX's `metal/scaled_dot_product_attention.cpp` (0.32).
        """
        return VectorAttention(rows=8, query_rows=32) if self.device == "metal" else None

    @property
    def plans_attention(self) -> bool:
        """Whether cuDNN computes attentions of several rows in 16 bits. It makes a plan for each
        number of keys, which takes longer than many forwards.

        Seen on an H200; from MLX's `cuda/scaled_dot_product_attention.cpp` (0.32).
        """
        return self.device == "cuda"

    @property
    def traces(self) -> bool:
        """Whether forwards are built from traced operations: a GPU waits while Python builds one.

        On a CPU it is not worth it: `cpu/` has layers of fewer operations instead.
        """
        return self.device != "cpu"

    @property
    def current_threads(self) -> int:
        """How many threads the BLAS uses now: `calibration.py` may choose another number."""
        blas = load_blas() if self.blas else None
        return blas.current_threads if blas else self.threads

    def prefill_step(self, cancellable: bool) -> int:
        """Prompt tokens per forward of a prefill: few if somebody may wait for its end.

        On a CPU the fewest, which is also fastest: MLX holds the scores of attention for all tokens
        of a forward there, and with many of them the processor's caches are too small.
        """
        if self.device == "cpu":
            return _CPU_PREFILL_STEP
        return PREFILL_STEP if cancellable else _LARGE_PREFILL_STEP

    def weight_layout(self, wanted: str, dense_bytes: int) -> WeightLayout:
        """The layout to run weights in: the `wanted` one, or for `auto` the fastest one here.

        Args:
            wanted: `auto`, `quantized` or `dense`.
            dense_bytes: bytes of the weights as float32.

        Raises:
            InvalidRequestError: if there is no layout `wanted`.
        """
        if wanted in ("quantized", "dense"):
            return cast(WeightLayout, wanted)
        if wanted != "auto":
            raise InvalidRequestError(
                f"There is no weight layout {wanted!r}; choose one of {', '.join(WEIGHT_LAYOUTS)}."
            )
        fits = dense_bytes <= _DENSE_MEMORY_SHARE * free_memory_bytes()
        return "dense" if self.device == "cpu" and fits else "quantized"


def launched_rank() -> int | None:
    """The number that `mlx.launch` gave this process among those that run one model; or None."""
    number = os.environ.get(rank_variable() or "", "")
    return int(number) if number.isdecimal() else None


def rank_variable() -> str | None:
    """The variable of the environment that holds this number, if there is one."""
    return next((name for name in _RANK_VARIABLES if name in os.environ), None)


def _import_mlx_lm() -> None:
    """Imports mlx-lm, which then asks for 4,096 descriptors and fails where there are fewer; and
    sets a folder for temporary files that exists, without which MLX compiles nothing."""
    temporary = tempfile.gettempdir()
    if os.environ.get("TMPDIR") and not os.path.isdir(os.environ["TMPDIR"]):
        os.environ["TMPDIR"] = temporary
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    set_limit = resource.setrlimit
    try:
        resource.setrlimit = lambda *_: None
        import mlx_lm  # noqa: F401, PLC0415
    finally:
        resource.setrlimit = set_limit
    most = limits[1] if limits[1] != resource.RLIM_INFINITY else _DESCRIPTORS
    if limits[0] < min(most, _DESCRIPTORS):
        set_limit(resource.RLIMIT_NOFILE, (min(most, _DESCRIPTORS), limits[1]))


@cache
def find_backend() -> Backend:
    """Imports MLX and describes what it runs on.

    Raises:
        BackendError: if MLX is missing or has no backend here.
    """
    blas = load_blas()
    try:
        import mlx.core as mx  # noqa: PLC0415  (its absence is reported here)
    except ImportError as error:
        raise BackendError(_NO_BACKEND) from error
    _import_mlx_lm()
    info = mx.device_info()
    chip = str(info.get("device_name", platform.processor()))
    if mx.default_device() == mx.Device(mx.gpu):
        return Backend("metal" if mx.metal.is_available() else "cuda", chip)
    if blas is None:
        return Backend("cpu", chip)
    return Backend("cpu", chip, blas.name, blas.threads)


def peak_memory_bytes() -> int:
    """The most memory that MLX's arrays have taken so far."""
    import mlx.core as mx  # noqa: PLC0415  (takes a while)

    return mx.get_peak_memory()


def free_memory_bytes() -> int:
    """Free memory for weights and caches, in bytes."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # macOS does not report it: assume half of the installed memory.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def spare_cache_bytes() -> int:
    """Bytes that the caches of earlier requests may take, of what the loaded weights leave."""
    import mlx.core as mx  # noqa: PLC0415

    info = mx.device_info()
    free = info.get("free_memory")  # of a device that does not share the machine's
    recommended = info.get("max_recommended_working_set_size")  # Metal's, for everything
    if isinstance(recommended, int):
        free = max(0, recommended - mx.get_active_memory())
    return int(_CACHE_MEMORY_SHARE * (free if isinstance(free, int) else free_memory_bytes()))


class ResidentWeights:
    """Lets Metal keep as much memory wired as it recommends, as mlx-lm does: from the begin of the
    first `with` to the end of the last.

    Otherwise macOS may page out a large model between two forwards. It is not left in force:
    with it, other users of the device have made macOS panic (mlx issue 3186). No effect on other
    systems.
    """

    def __init__(self) -> None:
        self._users = 0
        self._before: int | None = None

    def __enter__(self) -> None:
        from mlx_lm.utils import maybe_set_recommended_wired_limit  # noqa: PLC0415

        self._users += 1
        if self._users == 1:
            self._before = maybe_set_recommended_wired_limit()

    def __exit__(self, *_: object) -> None:
        import mlx.core as mx  # noqa: PLC0415

        self._users -= 1
        if self._users == 0 and self._before is not None:
            mx.synchronize()  # it must not change while a forward is in flight
            mx.set_wired_limit(self._before)


def release_thread() -> None:
    """Ends MLX's streams of the calling thread, if MLX was imported.

    Call it at the end of a thread that computed. Otherwise the streams are destroyed while the
    interpreter shuts down, and the process aborts.
    """
    if "mlx.core" in sys.modules:
        import mlx.core as mx  # noqa: PLC0415

        with suppress(RuntimeError):  # from a computation whose result was not read
            mx.synchronize()
        mx.clear_streams()
