"""How much fits: weights, KV cache, and the ceiling of sequences beside each other. Arithmetic; docs/capacity.md."""
