"""Length prediction: how long the target will be, from the source alone (layer 2; DESIGN section 3)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from padir.layers import Embed
from padir.types import Array


def prepend_length_token(source_tokens: Array, length_id: int) -> Array:
    """Puts [LENGTH] before each source: [B, Ls] int32 → [B, Ls + 1] int32.

    It goes in before encoding, so encoder positions and biases cover the source plus one.
    """
    return jnp.pad(source_tokens, ((0, 0), (1, 0)), constant_values=length_id)


class LengthTokenPredictor(nnx.Module):
    """Scores target lengths by the [LENGTH] token's encoder state (Ghazvininejad et al. 2019)."""

    def __init__(self, max_target_length: int, features: int, *, rngs: nnx.Rngs):
        # Float32 whatever the activations are: lengths decide the shape of everything after. The state is
        # RMS-normed, so 1/sqrt(E) makes the first logits of unit size.
        self.length_embed = Embed(
            max_target_length, features, dtype=jnp.dtype("float32"), rngs=rngs, stddev=features**-0.5
        )

    def __call__(self, length_state: Array) -> Array:
        """Encoder state of [LENGTH], [B, E] → logits [B, max_target_length]; index + 1 is the length."""
        return self.length_embed.attend(length_state)


def top_lengths(length_logits: Array, k: int, max_length: int) -> tuple[Array, Array]:
    """The k most likely lengths per source.

    Args:
      length_logits: [B, max_target_length] float32; index + 1 is a length in tokens, EOS counted.
      k: how many.
      max_length: longest length that fits the decode; longer ones are excluded.

    Returns:
      (lengths [B, k] int32, most likely first; their log-probabilities [B, k] float32).
    """
    log_probs = jax.nn.log_softmax(length_logits, axis=-1)
    values, indices = jax.lax.top_k(log_probs[:, :max_length], k)
    return indices + 1, values
