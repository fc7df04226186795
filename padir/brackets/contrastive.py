"""The contrastive regulariser (2.58): what comes before a sequence and cancels should change nothing."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from padir.brackets.language import DyckLanguage
from padir.types import Array

# Logits [..., 2k] of prefixes, given by counts [..., R] and last ranks [...].
OfCounts = Callable[[Array, Array], Array]


def nested(language: DyckLanguage, kinds: Array, pairs: Array) -> tuple[Array, Array]:
    """Counts, and last rank, of nested pairs: an opening bracket of each type, then the closing ones.

    Args:
      language: the language.
      kinds: [N, D] int32, types from 0, the outermost first.
      pairs: [N] int32, r, how many of them count.

    Returns:
      How often each rank comes [N, R] float32, and the rank of the last token [N] int32.
    """
    depth = jnp.arange(1, language.depth + 1)
    opening = 2 * kinds * language.depth + depth - 1
    closing = (2 * kinds + 1) * language.depth + depth - 1
    there = (depth <= pairs[:, None])[..., None]
    counts = jax.nn.one_hot(opening, language.ranks) + jax.nn.one_hot(closing, language.ranks)
    return (counts * there).sum(axis=1), closing[:, 0]


def distance(
    language: DyckLanguage,
    logits: OfCounts,
    counts: Array,
    ranks: Array,
    predicts: Array,
    kinds: Array,
    pairs: Array,
    alone: Array | None = None,
) -> Array:
    """‖T(s | p_r ⊕ s) - T(s)‖² of sequences, where T are the logits that predict the tokens of s.

    Of s = t_S s_1 .. s_N those stand at positions 0 to N - 1; behind t_S p_r they stand at positions 2r to 2r + N - 1.
    So s_1 is predicted after t_S, and after the last token of p_r.

    Args:
      language: the language.
      logits: a model that sees counts and last ranks, such as `apply_to_counts`.
      counts: [N, W + 1, R], of t_S s.
      ranks: [N, W + 1] int32, of t_S s.
      predicts: [N, W] bool, positions that predict a token of s.
      kinds, pairs: [N, D] and [N] int32: p_r, see `nested`.
      alone: logits [N, W + 1, 2k] of t_S s, if they have been computed already.

    Returns:
      The mean over those positions of the squared distance of logits, [].
    """
    more, last = nested(language, kinds, pairs)
    alone = (logits(counts, ranks) if alone is None else alone)[:, :-1]
    behind = jnp.concatenate([last[:, None], ranks[:, 1:-1]], axis=1)
    square = ((logits(counts[:, :-1] + more[:, None], behind) - alone) ** 2).sum(axis=-1)
    return jnp.where(predicts, square, 0.0).sum() / predicts.sum()


def random_pairs(language: DyckLanguage, key: Array, rows: int) -> tuple[Array, Array]:
    """Draws p_r: types [N, D] int32, and r [N] int32, uniform on 1..D."""
    of_kinds, of_pairs = jax.random.split(key)
    kinds = jax.random.randint(of_kinds, (rows, language.depth), 0, language.types, jnp.int32)
    return kinds, jax.random.randint(of_pairs, (rows,), 1, language.depth + 1, jnp.int32)
