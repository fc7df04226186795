"""Checkpoints from and to T5X and Hugging Face (layer 5): arrays and names, no text and no run directories."""
