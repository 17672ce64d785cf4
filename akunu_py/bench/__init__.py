"""What `bench` measures: cost, speedup, replay, seeds; tables and plots."""
