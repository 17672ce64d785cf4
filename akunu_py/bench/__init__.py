"""The measurements of `bench`: cost, speedup and replay, as tables and JSON."""
