"""A perfect judge of prefixes for a generator that must write one of some listed outputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from padir.decoding.generation import Rows
from padir.types import PAD_ID, Array


@struct.dataclass
class Listed:
    """Says of a prefix whether any output of its row's list begins with it; the samplers write nothing else.

    As a `Verifier` it judges a prefix. Its `values` are a `ValueFunction`, which judges all continuations at once: a
    list tells them without a decoder pass.

    It knows token sequences, not texts: the same text in other pieces is no output.

    Attributes:
      outputs: [N, M, L] int32, M outputs of each row, each ending in EOS, 0 behind it; of 0 alone where a row has
        fewer. [1, M, L] if all rows have the same.
      vocab_size: V, of the generator's distribution (static).
    """

    outputs: Array
    vocab_size: int = struct.field(pytree_node=False)

    def fitting(self, limits: Array) -> Listed:
        """Without the outputs that are too long for their row: `limits` [N] int32, tokens with EOS.

        A generator that may not write so many tokens could begin one of these and not end it.
        """
        fits = (self.outputs != PAD_ID).sum(-1) <= limits[:, None]
        return self.replace(outputs=jnp.where(fits[..., None], self.outputs, PAD_ID))

    def for_rows(self, rows: Rows, key: Array) -> Listed:
        """Without the outputs that a row has no room for; a row that has none left cannot write anything."""
        del key
        return self.fitting(rows.limits)

    def repeated(self, count: int) -> Listed:
        """The lists of `count` rows in the place of each."""
        return self.replace(outputs=jnp.repeat(self.outputs, count, axis=0))

    def alive(self, tokens: Array, lengths: Array) -> Array:
        """Which outputs begin with a prefix: tokens [N, L] int32, lengths [N] int32 → [N, M] bool."""
        longest = max(tokens.shape[1], self.outputs.shape[-1])
        written = _wide(tokens, longest)[:, None]
        behind = jnp.arange(longest) >= lengths[:, None, None]
        outputs = _wide(self.outputs, longest)
        return (behind | (written == outputs)).all(-1) & (outputs[..., 0] != PAD_ID)

    def __call__(self, tokens: Array, lengths: Array, features: Array | None = None) -> Array:
        """1 where the prefix can still become an output, or is one, else 0; see `Verifier`."""
        del features
        return self.alive(tokens, lengths).any(-1).astype(jnp.float32)

    def values(self, tokens: Array, lengths: Array, features: Array | None = None) -> tuple[Array, Array]:
        """The same of the prefix [N] and of each of its continuations [N, V]; see `ValueFunction`."""
        del features
        alive = self.alive(tokens, lengths)
        room = self.outputs.shape[-1] + 1
        outputs = jnp.broadcast_to(_wide(self.outputs, room), (*alive.shape, room))
        at = jnp.minimum(lengths, room - 1)[:, None, None]
        following = jnp.take_along_axis(outputs, at, axis=-1)[..., 0]
        # Nothing follows the end of an output.
        real = (alive & (following != PAD_ID)).astype(jnp.float32)

        def mark(following: Array, real: Array) -> Array:
            return jnp.zeros((self.vocab_size,), jnp.float32).at[following].max(real)

        return alive.any(-1).astype(jnp.float32), jax.vmap(mark)(following, real)


def _wide(tokens: Array, length: int) -> Array:
    """Tokens [..., L] padded to `length`."""
    return jnp.pad(tokens, [(0, 0)] * (tokens.ndim - 1) + [(0, length - tokens.shape[-1])])
