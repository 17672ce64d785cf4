"""Layers for the CPU that compute the same as mlx-lm's, from the same weights, in fewer operations.

On a CPU, MLX runs one operation at a time, and has no kernels for norms, rotary positions and
attention. In a small model, this overhead is most of a forward pass.
"""
