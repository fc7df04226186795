"""Random prefixes and complete words of bounded Dyck languages, drawn on the fly in training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from padir.brackets.language import DyckLanguage
from padir.types import Array


@struct.dataclass
class Sequences:
    """Sequences of several lengths, the start token first; what lies beyond a length means nothing.

    Attributes:
      tokens: [N, W + 1] int32.
      ranks: [N, W + 1] int32, r(t, d) of each token, counted from 0 (see `DyckLanguage.rank`).
      depths: [N, W + 1] int32.
      top_types: [N, W + 1] int32, type of the last unmatched opening bracket, from 0; -1 where none is open.
      lengths: [N] int32, without the start token.
    """

    tokens: Array
    ranks: Array
    depths: Array
    top_types: Array
    lengths: Array

    @property
    def predicts(self) -> Array:
        """Positions whose next token is there: [N, W] bool."""
        return jnp.arange(self.tokens.shape[1] - 1) < self.lengths[:, None]

    @property
    def asks_closing(self) -> Array:
        """Positions whose next token is there and closes: [N, W] bool."""
        return self.predicts & (self.tokens[:, 1:] % 2 == 0)


def complete(language: DyckLanguage, key: Array, rows: int, longest: int) -> Sequences:
    """Draws words that end at depth 0, of a length uniform on {2, 4, .., longest}, from (2.39) given depth 0 there."""
    of_lengths, of_words = jax.random.split(key)
    lengths = 2 * jax.random.randint(of_lengths, (rows,), 1, longest // 2 + 1, jnp.int32)
    table = jnp.asarray(language.up_table(longest), jnp.float32)
    left = jnp.maximum(lengths[:, None] - jnp.arange(longest), 0)
    return _draw(language, of_words, table[left], lengths)


def prefixes(language: DyckLanguage, key: Array, rows: int, length: int) -> Sequences:
    """Draws prefixes of a length from (2.39)."""
    up = jnp.asarray(language.up_probabilities(), jnp.float32)
    lengths = jnp.full((rows,), length)
    return _draw(language, key, jnp.broadcast_to(up, (rows, length, len(up))), lengths)


def given(language: DyckLanguage, tokens: np.ndarray) -> Sequences:
    """Sequences of prefixes [N, L] int, without the start token."""
    parsed = language.parse(tokens)
    start = np.zeros((len(tokens), 1), int)
    fields = [np.concatenate([start, tokens], axis=1), parsed.ranks, parsed.depths, parsed.top_types]
    return Sequences(*(jnp.asarray(field, jnp.int32) for field in fields), jnp.full(len(tokens), tokens.shape[1]))


def _draw(language: DyckLanguage, key: Array, up: Array, lengths: Array) -> Sequences:
    """Draws tokens, each an opening bracket with probability up [N, W, D + 1] of the position and the depth there."""
    rows, width, _ = up.shape

    # All at once: a generator inside the loop takes long to compile.
    of_opening, of_type = jax.random.uniform(key, (2, width, rows), jnp.float32)
    drawn_kinds = (of_type * language.types).astype(jnp.int32)

    def write(state: tuple[Array, Array], at: tuple[Array, ...]) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        """Draws one token of each row: a stack is [N, D + 1] int32, its lowest place unused."""
        (depth, stack), (chances, number, drawn) = state, at
        opens = number < jnp.take_along_axis(chances, depth[:, None], axis=1)[:, 0]
        kind = jnp.where(opens, drawn, jnp.take_along_axis(stack, depth[:, None], axis=1)[:, 0])
        # Beyond a word's end the chance is 0, and depth stays 0.
        depth = jnp.clip(depth + jnp.where(opens, 1, -1), 0, language.depth)
        here = (jnp.arange(language.depth + 1) == depth[:, None]) & opens[:, None]
        stack = jnp.where(here, kind[:, None], stack)
        token = 2 * kind + 2 - opens
        top = jnp.where(depth > 0, jnp.take_along_axis(stack, depth[:, None], axis=1)[:, 0], -1)
        return (depth, stack), (token, depth, top)

    first = jnp.zeros(rows, jnp.int32), jnp.zeros((rows, language.depth + 1), jnp.int32)
    at = up.transpose(1, 0, 2), of_opening, drawn_kinds
    tokens, depths, tops = jax.lax.scan(write, first, at)[1]
    ranks = (tokens - 1) * language.depth + depths - tokens % 2
    columns = ((tokens, 0), (ranks, language.ranks - 1), (depths, 0), (tops, -1))
    padded = [jnp.concatenate([jnp.full((rows, 1), at_start), of.T], axis=1) for of, at_start in columns]
    return Sequences(*(of.astype(jnp.int32) for of in padded), lengths)
