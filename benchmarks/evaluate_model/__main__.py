"""Runs `evaluation.py`, which is a module of its own for the processes that it starts."""

from benchmarks.evaluate_model.evaluation import main

main()
