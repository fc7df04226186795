"""Metrics of text and of training: BLEU and other quality scores, significance tests, stutter, and training logs."""
