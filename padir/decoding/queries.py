"""What generation under a verifier costs.

A query is one token drawn, or chosen, from the generator's distribution, whether it stays or is erased later. A second
draw at the same prefix counts, although it needs no further pass. Of every sampler, queries are the tokens of the
output and those that were discarded (thesis, section 3.1; `docs/concepts/generation_under_a_verifier.md`).
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct

from padir.types import Array


@struct.dataclass
class Queries:
    """The account of each row: [N] int32 each.

    Attributes:
      queries: tokens generated, kept or not.
      verifier_calls: prefixes that the verifier, or the value function, judged.
      decoder_passes: passes that the row took part in before it was done, those of discarded candidates included. A
        pass that only finds a rejected prefix's features is no query.
      backtracks: how often tokens were erased.
      erased: tokens discarded: erased ones, and those of candidates that were not taken.
    """

    queries: Array
    verifier_calls: Array
    decoder_passes: Array
    backtracks: Array
    erased: Array

    @classmethod
    def none(cls, rows: int) -> Queries:
        """The account of `rows` rows before anything is generated."""
        nothing = jnp.zeros((rows,), jnp.int32)
        return cls(nothing, nothing, nothing, nothing, nothing)
