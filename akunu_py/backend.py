"""The machine: its MLX device, its memory, and the weight layout that is fastest on it.

Every decision that depends on the device is made here. The reason behind the layouts: on a CPU,
MLX multiplies by quantized weights one row and one thread at a time, so dense float32 weights on a
real BLAS are faster wherever they fit in memory. A GPU has kernels for quantized weights and reads
fewer bytes with them.
"""

import os
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from akunu_py.blas import load_blas
from akunu_py.errors import BackendError, InvalidRequestError

if TYPE_CHECKING:
    from mlx import nn

WeightLayout = Literal["quantized", "dense"]
WEIGHT_LAYOUTS: Final = ("auto", "quantized", "dense")

_NO_BLAS_WARNING: Final = (
    "MLX computes with its reference BLAS here, which makes answers about 5-10x slower; "
    "`pip install mkl` (x86-64) or the system package libopenblas0 puts that right."
)
_NO_BACKEND: Final = (
    "MLX has no backend on this machine: install akunu-py[cpu], "
    "or akunu-py[cuda13] if it has an NVIDIA GPU."
)
# What dense weights may take of the memory that is free: the cache and the rest need room too.
_DENSE_MEMORY_SHARE: Final = 0.4
_CACHE_MEMORY_SHARE: Final = 0.25


@dataclass(frozen=True)
class Backend:
    """What this machine computes with.

    Attributes:
        device: where MLX runs.
        chip: the device's name, as MLX or the system reports it.
        blas: `mkl`, `openblas` or `reference` on a Linux CPU; None where it does not matter.
        threads: how many threads the BLAS uses; 1 where it does not matter.
    """

    device: Literal["metal", "cuda", "cpu"]
    chip: str
    blas: str | None = None
    threads: int = 1

    @property
    def warning(self) -> str | None:
        """One line for the user where this machine could do much better; else None."""
        return _NO_BLAS_WARNING if self.blas == "reference" else None

    def weight_layout(self, wanted: str, dense_bytes: int) -> WeightLayout:
        """The layout to run weights in: the one `wanted`, or for `auto` what is fastest here.

        Args:
            wanted: `auto`, `quantized` or `dense`.
            dense_bytes: what the weights take as float32.

        Raises:
            InvalidRequestError: if `wanted` is no layout.
        """
        if wanted == "quantized":
            return "quantized"
        if wanted == "dense":
            return "dense"
        if wanted != "auto":
            raise InvalidRequestError(
                f"There is no weight layout {wanted!r}; choose one of {', '.join(WEIGHT_LAYOUTS)}."
            )
        fits = dense_bytes <= _DENSE_MEMORY_SHARE * free_memory_bytes()
        return "dense" if self.device == "cpu" and fits else "quantized"


@cache
def find_backend() -> Backend:
    """Imports MLX and describes what it runs on.

    Raises:
        BackendError: if MLX is missing or has no backend here.
    """
    blas = load_blas()
    try:
        import mlx.core as mx  # noqa: PLC0415  (this is the place where its absence is reported)
    except ImportError as error:
        raise BackendError(_NO_BACKEND) from error
    info = mx.device_info()
    chip = str(info.get("device_name", platform.processor()))
    if mx.default_device() == mx.Device(mx.gpu):
        return Backend("metal" if mx.metal.is_available() else "cuda", chip)
    if blas is None:
        return Backend("cpu", chip)
    return Backend("cpu", chip, blas.name, blas.threads)


def free_memory_bytes() -> int:
    """Memory that weights and caches could take now, in bytes."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # macOS has no such figure: count on half of what is built in.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def spare_cache_bytes() -> int:
    """What the caches of earlier requests may take of the memory that is free now, in bytes."""
    import mlx.core as mx  # noqa: PLC0415

    own = mx.device_info().get("free_memory")  # of a device that does not share the machine's
    return int(_CACHE_MEMORY_SHARE * (own if isinstance(own, int) else free_memory_bytes()))


def keep_weights_resident() -> None:
    """Lets Metal keep as much memory wired as it recommends, as mlx-lm does while it generates.

    Without it macOS may page out a large model between two forwards. No effect elsewhere.
    """
    from mlx_lm.utils import maybe_set_recommended_wired_limit  # noqa: PLC0415

    maybe_set_recommended_wired_limit()


def release_thread() -> None:
    """Ends the streams that MLX keeps for the calling thread, if it has imported MLX.

    To be called at the end of a thread that computed: left to the thread's own end, they are torn
    down while the interpreter shuts down, and the process aborts.
    """
    if "mlx.core" in sys.modules:
        import mlx.core as mx  # noqa: PLC0415

        with suppress(RuntimeError):  # of a computation that nobody waited for
            mx.synchronize()
        mx.clear_streams()


def fastest_network(network: "nn.Module", backend: Backend) -> "nn.Module":
    """A loaded network in the form that is fastest on this machine; its weights are shared."""
    if backend.device != "cpu":
        return network
    from akunu_py.cpu.network import with_fused_layers  # noqa: PLC0415

    return with_fused_layers(network)


def use_dense_weights(network: "nn.Module") -> None:
    """Turns every weight of a loaded network into dense float32, in place."""
    import mlx.core as mx  # noqa: PLC0415
    from mlx_lm.utils import dequantize_model  # noqa: PLC0415

    dequantize_model(network)
    network.set_dtype(mx.float32)
    mx.eval(network.parameters())
