"""What the bundled model can do on text it never saw: `python -m benchmarks.evaluate_model`."""
