"""What `bench` measures: cost, speedup, replay; tables and JSON."""
