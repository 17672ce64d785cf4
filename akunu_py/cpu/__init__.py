"""Layers for the CPU: what mlx-lm's compute, from fewer and cheaper operations.

MLX's CPU backend runs an operation at a time, some microseconds each, and has no kernels of its own
for norms, rotary positions and attention; a small model's step is mostly that. Weights are shared
with the network as it was loaded.
"""
