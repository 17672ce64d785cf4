"""The target model: files, weights, adapters, attention, and layers for the CPU."""
