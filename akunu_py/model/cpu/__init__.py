"""Layers for the CPU that compute the same as mlx-lm's in fewer and cheaper operations.

MLX's CPU backend runs one operation at a time, a few microseconds each, and has no kernels of its
own for norms, rotary positions and attention. In a small model most of a forward is that overhead.
The weights are shared with the network as it was loaded.
"""
