"""The tests of the benchmarks use the models and settings of the engine's tests."""

from tests.conftest import _no_clock_and_no_trace, tiny_model_dir  # noqa: F401
