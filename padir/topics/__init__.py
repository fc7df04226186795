"""What a one-layer Transformer learns from topics: exact optima, trained models, and statistics of any arrays."""
