"""Measurements for those who work on the engine; run as `python -m benchmarks.NAME`."""
