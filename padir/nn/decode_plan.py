"""What a decode computes once."""

from __future__ import annotations

import jax
from flax import struct

from padir.nn.attention import KeyValue
from padir.types import Array


@struct.dataclass
class DecodePlan:
    """What a decode computes once, whatever the number of steps.

    Attributes:
      source: per layer, cross-attention keys and values [B, Ls, H, D].
      source_bias: [B, 1, 1, Ls] float32, masks source padding.
      self_bias: [N or 1, H, Lt, Lt] float32, relative positions plus decoder mask; None before there are targets.
      positional_weights: per layer, [N, H, Lt, Lt] float32; empty without positional attention.
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
