"""Measurements for developers of the engine; run as `python -m benchmarks.NAME`."""
