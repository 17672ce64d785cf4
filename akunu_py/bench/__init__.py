"""What `bench` measures: cost, speedup, replay; tables, JSON and plots."""
