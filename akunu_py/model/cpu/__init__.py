"""Layers for the CPU that compute the same as mlx-lm's, from the same weights, in fewer operations.

MLX runs one operation at a time on a CPU, and has no kernels there for norms, rotary positions and
attention. In a small model, most of a forward pass is that overhead.
"""
