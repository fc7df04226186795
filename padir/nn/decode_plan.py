"""What a decode computes once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from padir.nn.attention import KeyValue
from padir.types import MASKED_LOGIT, Array


@struct.dataclass
class DecodePlan:
    """What a decode computes once, whatever the number of steps.

    Attributes:
      source: per layer, cross-attention keys and values [B, Ls, H, D].
      source_bias: [B, 1, 1, Ls] float32, masks source padding.
      self_bias: [N or 1, H, Lt, keys] float32, relative positions plus decoder mask; None before there are targets.
      positional_weights: per layer, [N, H, Lt, keys] float32; empty without positional attention.

    There are Lt keys, and one more where positions observe only some tokens; see `observing`.
    """

    source: tuple[KeyValue, ...]
    source_bias: Array
    self_bias: Array | None = None
    positional_weights: tuple[Array, ...] = ()

    def keep(self, rows: Array) -> DecodePlan:
        """The plan of some of the hypotheses: rows [M] int32, as many of each source."""
        return self.replace(
            self_bias=self.self_bias if self.self_bias.shape[0] == 1 else self.self_bias[rows],
            positional_weights=tuple(weights[rows] for weights in self.positional_weights),
        )

    def keep_sources(self, sources: Array, rows: Array) -> DecodePlan:
        """The plan of some sources, [M] int32, and of all their hypotheses, which are `rows` [M·K] int32."""
        kept = jax.tree.map(lambda field: field[sources], (self.source, self.source_bias))
        return self.keep(rows).replace(source=kept[0], source_bias=kept[1])

    def observing(self, contexts: Array) -> DecodePlan:
        """The plan of one pass of a disentangled decoder: each position observes some tokens, and reads MASK elsewhere.

        In the DisCo transformer (Kasai et al. 2020, arXiv 2001.05136) keys and values of all layers are made of token
        embeddings, not of hidden states, so that no position can tell another what it has observed. Positions outside
        the context are hidden. Queries and keys have absolute positions in them, and the authors' code puts EOS into
        every context, so that none is empty.

        Here positions are relative: one that saw only EOS could not tell where it stands. So positions outside the
        context, the query's own among them, are not hidden, but hold MASK. A layer attends as if it read the target
        with MASK in their place, and an empty context is nothing special. They all have one key and one value, so a
        single key does for them, the last: its bias is the log of their summed exponentials, its weight by position
        the sum of theirs. Positional attention, too, takes its values from token embeddings: hidden states would tell a
        position what others have observed, which may be its own token.

        Args:
          contexts: [N, Lt, Lt] bool, (n, i, j) says whether position i observes the token at j. Its own it never does,
            whatever is said here.

        Returns:
          A plan with Lt + 1 keys: those of the tokens, and MASK (`with_mask`).
        """
        observed = (contexts & ~jnp.eye(contexts.shape[-1], dtype=bool))[:, None]
        bias = jnp.where(observed, self.self_bias, MASKED_LOGIT)
        rest = jax.nn.logsumexp(jnp.where(observed, MASKED_LOGIT, self.self_bias), axis=-1, keepdims=True)
        weights = (
            jnp.concatenate(
                [jnp.where(observed, of_layer, 0.0), jnp.where(observed, 0.0, of_layer).sum(-1, keepdims=True)], axis=-1
            )
            for of_layer in self.positional_weights
        )
        return self.replace(self_bias=jnp.concatenate([bias, rest], axis=-1), positional_weights=tuple(weights))


def with_mask(tokens: Array, mask_id: int) -> Array:
    """What a disentangled decoder reads: tokens [N, Lt] int32 and MASK behind them, [N, Lt + 1]."""
    return jnp.pad(tokens, ((0, 0), (0, 1)), constant_values=mask_id)
