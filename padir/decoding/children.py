"""What every next token is worth, for the samplers that weigh them, under a verifier that judges only prefixes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from padir.decoding.generation import PrefixStepFn, Rows, ValueFunction, Verifier, put
from padir.decoding.verifiers import for_rows
from padir.types import Array, PyTree


@struct.dataclass
class ByPasses:
    """Judges the likeliest next tokens one by one, each in a decoder pass of its own; all others are worth 0.

    So the samplers' law is that of a generator that writes only its likeliest tokens, and a position costs `count`
    passes more than it has tokens to write. Nothing of it is a query: no token is drawn.

    Attributes:
      verifier: what judges.
      count: tokens judged at each position (static).
    """

    verifier: Verifier
    count: int = struct.field(pytree_node=False)

    def for_rows(self, rows: Rows, key: Array) -> ByPasses:
        """With its verifier as that judges the rows."""
        return self.replace(verifier=for_rows(self.verifier, rows, key))

    def children(
        self, step_fn: PrefixStepFn, cache: PyTree, tokens: Array, lengths: Array, limits: Array, log_probs: Array
    ) -> Array:
        """Judgements of all continuations [N, V] float32; arguments as of `children`."""
        chosen = jax.lax.top_k(log_probs, min(self.count, log_probs.shape[-1]))[1]
        # Of rows that are done, which have no room for another token, nothing is used.
        longer = jnp.minimum(lengths + 1, limits)

        def of_token(token: Array) -> Array:
            _, features, _ = step_fn(token, longer, cache)
            return self.verifier(put(tokens, lengths, token), longer, features)

        values = jax.lax.map(of_token, chosen.T).T
        nothing = jnp.zeros(log_probs.shape, jnp.float32)
        return jax.vmap(lambda row, at, value: row.at[at].set(value))(nothing, chosen, values)


def children(
    judge: ValueFunction | ByPasses,
    step_fn: PrefixStepFn,
    cache: PyTree,
    tokens: Array,
    lengths: Array,
    limits: Array,
    features: Array,
    log_probs: Array,
) -> tuple[Array, int, Array]:
    """What each continuation of the rows' prefixes is worth.

    Args:
      judge: what says so.
      step_fn, cache: the generator, which has read the prefixes.
      tokens, lengths, limits: [N, L], [N], [N] int32.
      features: [N, E] of the prefixes.
      log_probs: [N, V] of the next token.

    Returns:
      (values [N, V] float32, decoder passes that they took, how many of them were judged [N] int32).
    """
    possible = (log_probs > -jnp.inf).sum(axis=-1)
    if isinstance(judge, ByPasses):
        values = judge.children(step_fn, cache, tokens, lengths, limits, log_probs)
        count = min(judge.count, log_probs.shape[-1])
        return values, count, jnp.minimum(possible, count)
    return judge(tokens, lengths, features)[1], 0, possible
