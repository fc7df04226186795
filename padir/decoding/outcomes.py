"""Outcome rewards, and what the samplers guided by values have in common."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from padir.checks import finite
from padir.decoding.generation import put
from padir.errors import PadirError
from padir.types import EOS_ID, Array

# Tokens whose outputs an outcome judges together.
_JUDGED_TOGETHER = 128


class Outcome(Protocol):
    """The outcome reward τ of complete outputs."""

    def __call__(self, tokens: Array, lengths: Array) -> Array:
        """Outputs [N, L] int32 of `lengths` [N] int32 tokens, the prompt's counted → [N] float32, ≥ 0.

        What stands in `tokens` beyond a length is arbitrary, and what it says of rows that are not complete is not
        used. Must allow `jax.vmap` over the tokens; a `jax.pure_callback` needs its `vmap_method` for it.
        """


def uniforms(key: Array, sample_ids: Array, draws: Array) -> Array:
    """Uniform in [0, 1), with the randomness of `draw`: key [], [N], [N] → [N] float32."""

    def of_row(sample: Array, draws: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, sample), draws))

    return jax.vmap(of_row)(sample_ids, draws)


def values_of_children(
    given: Array, outcome: Outcome | None, tokens: Array, lengths: Array, last: Array, floor: float
) -> Array:
    """V̂ of all children: as given inside, but at least the floor; τ at leaves if it is known.

    Args:
      given: [N, V] float32, of the value function.
      outcome: τ.
      tokens, lengths: [N, L], [N] int32, the prefixes.
      last: [N] bool, whether all children are leaves; False for rows that do not count.
      floor: least value of inner nodes.

    Returns:
      [N, V] float32.
    """
    ids = jnp.arange(given.shape[-1])
    leaf = last[:, None] | (ids == EOS_ID)
    at_leaves = given
    if outcome is not None:

        def of_token(token: Array) -> Array:
            every = jnp.broadcast_to(token, lengths.shape)
            return outcome(put(tokens, lengths, every), lengths + 1).astype(jnp.float32)

        def of_all() -> Array:
            return jax.lax.map(of_token, ids, batch_size=_JUDGED_TOGETHER).T

        def of_end() -> Array:
            return jnp.broadcast_to(of_token(jnp.int32(EOS_ID))[:, None], given.shape)

        at_leaves = jax.lax.cond(last.any(), of_all, of_end)
    return jnp.where(leaf, at_leaves, jnp.maximum(given, floor))


def positive(name: str, value: object) -> None:
    """Refuses what is not a positive number, with a message that names it.

    Raises:
      PadirError: it is not.
    """
    finite(name, value)
    if value <= 0:
        raise PadirError(f"{name}: {value} is not positive")
