"""Several processes, on one machine or more, that run one model together through MLX."""
