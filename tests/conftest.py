"""Models and engines that the tests share, each made once."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import akunu_py
from akunu_py.calibration import measure as calibration
from akunu_py.engine import Engine
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.package import CACHE_VARIABLE
from tests.metal import IS_SIMULATED, simulate_metal
from tests.planning.curves import FLAT
from tests.tiny_model import write_tiny_model

settings.register_profile("shared machines", deadline=None)
settings.load_profile("shared machines")
# A shell ignores Ctrl-C for what it starts with "&", and what ignores it passes that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()


def pytest_collection_finish() -> None:
    """Collections of garbage begin here and leave out what was imported: it stays, and to look
    through it takes a tenth of the time."""
    gc.enable()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_clock_and_no_trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Models count as measured, so that no test waits for it; the user's cache is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        patch.setattr(calibration, "measure_cost_curve", lambda *_, **__: FLAT)
        patch.setattr(calibration, "expected_curve", lambda *_: FLAT)
        # Costs that were measured on a busy machine are doubted, and tests keep it busy.
        patch.setattr(calibration, "other_load", lambda: 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _simulated_metal() -> Iterator[None]:
    """With `AKUNU_TESTS=metal`, the package believes in an Apple chip; see `metal.py`."""
    with pytest.MonkeyPatch.context() as patch:
        if IS_SIMULATED:
            simulate_metal(patch)
        yield


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 0.3M parameters with a byte-level tokenizer, in float32."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> TargetModel:
    """The network of that."""
    return load_target(str(tiny_model_dir), find_backend())


@pytest.fixture(scope="module")
def without_compiler() -> Iterator[None]:
    """On a CPU, MLX runs a C++ compiler for every function that a network compiles."""
    import mlx.core as mx  # noqa: PLC0415  # the package loads a fast BLAS first

    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture(scope="session")
def quantized_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, quantized to 4 bits."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-4bit", quantized=True)


@pytest.fixture(scope="session")
def shared_engine(tiny_model_dir: Path) -> Engine:
    return akunu_py.load(str(tiny_model_dir))


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """An engine on the tiny model, with nothing in its cache."""
    shared_engine.reset()
    return shared_engine
