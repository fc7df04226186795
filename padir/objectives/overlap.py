"""How much of a reference a hypothesis has, computed on the device."""

from __future__ import annotations

import jax.numpy as jnp

from padir.types import PAD_ID, Array


def ngram_f1(hypotheses: Array, references: Array, longest: int = 4) -> Array:
    """The F1 of n-grams of tokens, averaged over n = 1 … `longest`.

    An n-gram counts as often as both have it, as in BLEU. Averages leave out an n for which neither has any.

    Args:
      hypotheses: [N, L] int32, 0 behind the last token.
      references: [N, M] int32, likewise.
      longest: n of the longest n-grams.

    Returns:
      [N] float32 between 0 and 1; 0 where both are empty.
    """
    lengths = (hypotheses != PAD_ID).sum(-1), (references != PAD_ID).sum(-1)
    own, other = (_equal(hypotheses, others) for others in (hypotheses, references))
    same, among = own, other
    total, counted = jnp.zeros(len(hypotheses)), jnp.zeros(len(hypotheses))
    for n in range(1, longest + 1):
        if n > 1:
            same, among = _longer(same, own, n), _longer(among, other, n)
        # Every occurrence has an equal share of its n-gram's matches.
        occurrences = same.sum(-1)
        shares = jnp.minimum(among.sum(-1), occurrences) / jnp.maximum(occurrences, 1)
        there = sum(jnp.maximum(length - n + 1, 0) for length in lengths)
        total += jnp.where(there > 0, 2.0 * shares.sum(-1) / jnp.maximum(there, 1), 0.0)
        counted += there > 0
    return total / jnp.maximum(counted, 1.0)


def _equal(tokens: Array, others: Array) -> Array:
    """Where two tokens are equal and no padding: [N, L], [N, M] → [N, L, M] bool."""
    return (tokens[:, :, None] == others[:, None, :]) & (tokens != PAD_ID)[:, :, None]


def _longer(shorter: Array, tokens: Array, n: int) -> Array:
    """Where n-grams that begin there are equal, given where those one shorter, and single tokens, are."""
    if min(tokens.shape[1:]) < n:
        return jnp.zeros_like(shorter)
    last = jnp.pad(tokens[:, n - 1 :, n - 1 :], ((0, 0), (0, n - 1), (0, n - 1)))
    return shorter & last
