"""Numbers about text and about runs: BLEU and its like, significance, stutter, logs of training."""
