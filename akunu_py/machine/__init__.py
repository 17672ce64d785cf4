"""The machine: MLX's device, its memory, and the BLAS of a CPU."""
