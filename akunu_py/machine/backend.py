"""The machine: its MLX device, and what depends on it; `tests/test_devices.py` has a list."""

import os
import platform
import resource
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, cast

from akunu_py.errors import BackendError, InvalidRequestError
from akunu_py.machine.blas import load_blas
from akunu_py.machine.device_memory import free_memory_bytes
from akunu_py.machine.threads import check_process
from akunu_py.options import WEIGHT_LAYOUTS, KVForm
from akunu_py.package import cache_folder, make_private

WeightLayout = Literal["quantized", "dense"]

_NO_BLAS_WARNING: Final = (
    "MLX uses its slow reference BLAS here, so answers take about 5-10x as long; "
    "install a BLAS: `pip install mkl` (x86-64) or the system package libopenblas0."
)
_DESCRIPTORS: Final = 4096
_RANK_VARIABLES: Final = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_CPU_PREFILL_STEP: Final = 128  # see docs/decisions.md
_PREFILL_STEP: Final = 1024
_LARGE_PREFILL_STEP: Final = 2048  # as in mlx-lm
_FUSED_HEADS: Final = (64, 80, 128)
"""Head sizes for which Metal has a fused attention kernel for many rows; for others, it stores all
scores. From MLX's `metal/scaled_dot_product_attention.cpp` (0.32)."""
_SCORE_BYTES: Final = 4  # of 16 bits, before and after the softmax
_MOST_SCORE_BYTES: Final = 1 << 30
_WARM_UP_TOKENS: Final = 600
_DENSE_MEMORY_SHARE: Final = 0.4
"""The share of the free memory; the rest of the process needs memory too."""


@dataclass(frozen=True)
class ModelShape:
    """What the size of prefill chunks depends on: the number of query heads, their size, and
    whether a layer has several experts."""

    heads: int
    head_size: int
    has_experts: bool


@dataclass(frozen=True)
class Backend:
    """The hardware and libraries that this machine computes with. On a Linux CPU, `blas` is `mkl`,
    `openblas` or `reference`, and starts with this many threads.
    """

    device: Literal["metal", "cuda", "cpu"]
    chip: str
    blas: str | None = None
    threads: int = 1

    @property
    def warning(self) -> str | None:
        """A line for the user if this machine could be much faster; else None."""
        return _NO_BLAS_WARNING if self.blas == "reference" else None

    @property
    def is_cpu(self) -> bool:
        """Whether MLX computes on the CPU. Then other processes slow its forward passes down, and
        the layers of `model/cpu/` replace mlx-lm's."""
        return self.device == "cpu"

    def gpu_bytes(self, weights: int) -> int:
        return 0 if self.is_cpu else weights

    @property
    def kv_form(self) -> KVForm:
        """How attention reads quantized keys and values; see docs/decisions.md."""
        return "packed" if self.device == "metal" else "bytewise"

    @property
    def attention_edges(self) -> tuple[int, ...]:
        """The numbers of keys at which attention over few rows may change its order of addition.

        From MLX's `metal/scaled_dot_product_attention.cpp` (0.32): there, it begins to work in
        blocks, or changes their number.
        """
        steps = (1_024, 4_096, 8_192, 16_384, 32_768, 65_536)
        return steps if self.device == "metal" else ()

    @property
    def current_threads(self) -> int:
        """How many threads the BLAS uses now; calibration may change the number."""
        blas = load_blas() if self.blas else None
        return blas.current_threads if blas else self.threads

    def prefill_step(self, shape: ModelShape, context: int, *, cancellable: bool) -> int:
        """Prompt tokens per forward pass of a prefill of `context` tokens.

        On a GPU, there are fewer if a cancelled prefill must stop soon, except in a mixture of
        experts, where each expert computes only some of the tokens. The number is halved until the
        attention scores fit into memory.
        """
        if self.is_cpu:  # MLX stores the scores of all tokens there, and only few fit its caches
            return _CPU_PREFILL_STEP
        is_small = cancellable and not shape.has_experts
        step = _PREFILL_STEP if is_small else _LARGE_PREFILL_STEP
        while step > _CPU_PREFILL_STEP and (
            self.score_bytes(shape, step, context) > _MOST_SCORE_BYTES
        ):
            step //= 2
        return step

    def score_bytes(self, shape: ModelShape, tokens: int, context: int) -> int:
        """The bytes of attention scores over this many tokens on Metal, if it stores them."""
        if self.device != "metal" or shape.head_size in _FUSED_HEADS:
            return 0
        return _SCORE_BYTES * shape.heads * tokens * context

    @property
    def warm_up_tokens(self) -> int:
        """How many prompt tokens to warm up with, so that later prompts find compiled kernels."""
        return 1 if self.is_cpu else _WARM_UP_TOKENS

    def weight_layout(self, wanted: str, dense_bytes: int) -> WeightLayout:
        """The layout for the weights: the `wanted` one, or for `auto` the fastest one here.

        On a CPU, MLX multiplies by quantized weights one row at a time, so dense float32 weights
        (of `dense_bytes`) are faster if they fit in memory. On a GPU, quantized weights are faster
        because they have fewer bytes to read.
        """
        if wanted not in WEIGHT_LAYOUTS:
            raise InvalidRequestError(
                f"There is no weight layout {wanted!r}; choose one of {', '.join(WEIGHT_LAYOUTS)}."
            )
        if wanted != "auto":
            return cast(WeightLayout, wanted)
        fits = dense_bytes <= _DENSE_MEMORY_SHARE * free_memory_bytes()
        return "dense" if self.is_cpu and fits else "quantized"


def launched_rank() -> int | None:
    """The rank of this process among those started by `mlx.launch`; None if it was not."""
    number = os.environ.get(rank_variable() or "", "")
    return int(number) if number.isdecimal() else None


def rank_variable() -> str | None:
    """The environment variable with the rank, if there is one."""
    return next((name for name in _RANK_VARIABLES if name in os.environ), None)


def _choose_compile_folder() -> None:
    """On a CPU, MLX runs whatever it finds in `mlx` in the temporary folder, whoever made it."""
    temporary = Path(tempfile.gettempdir())
    if not _is_private(temporary / "mlx"):
        temporary = cache_folder() / "compiled"
        if not _is_private(temporary):
            raise BackendError(
                "MLX compiles in a folder that only this user can write to, and "
                f"{temporary} is not one; delete it, or set TMPDIR to another folder."
            )
        os.environ["TMPDIR"] = str(temporary)
    elif os.environ.get("TMPDIR"):  # the folder may not exist
        os.environ["TMPDIR"] = str(temporary)


def _is_private(folder: Path) -> bool:
    """Makes a folder, or makes a folder of this user private; False if others could write to it."""
    if folder.is_symlink():  # whoever made the link can change it
        return False
    try:
        make_private(folder)
        folder.chmod(0o700)
    except OSError:
        return False
    return True


def _import_mlx_lm() -> None:
    """Imports mlx-lm, which requests 4,096 file descriptors and would fail if fewer are allowed."""
    _choose_compile_folder()
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


def find_backend() -> Backend:
    """Imports MLX and describes what it runs on. Raises a `BackendError` if it has no backend here,
    and an `InvalidRequestError` in a forked child of a process that has imported it."""
    backend, process = _found()
    check_process(process)
    return backend


@cache
def _found() -> tuple[Backend, int]:
    blas = load_blas()
    try:
        os.getcwd()
    except OSError as error:
        raise BackendError(
            "The working directory was deleted; change to another one, for example with `cd`."
        ) from error
    try:
        import mlx.core as mx  # noqa: PLC0415  (its absence is reported here)
    except ImportError as error:
        raise BackendError(
            f"MLX does not load here ({error}); install akunu-py again, and its extra cuda13 "
            "only with an NVIDIA GPU."
        ) from error
    _import_mlx_lm()
    try:
        chip = str(mx.device_info().get("device_name", platform.processor()))
    except RuntimeError as error:
        raise BackendError(
            f"This process may not use the GPU, as in a virtual machine or a sandbox: {error}"
        ) from error
    if mx.default_device() == mx.Device(mx.gpu):
        return Backend("metal" if mx.metal.is_available() else "cuda", chip), os.getpid()
    if blas is None:
        return Backend("cpu", chip), os.getpid()
    return Backend("cpu", chip, blas.name, blas.threads), os.getpid()


def other_load() -> float:
    """How many other processes want each core now; on a Mac, the average of the last minute,
    including this process."""
    with suppress(OSError):
        running = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
        return (int(running) - 1) / (os.cpu_count() or 1)
    return os.getloadavg()[0] / (os.cpu_count() or 1)
