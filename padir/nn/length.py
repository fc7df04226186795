"""Length prediction: how long the target will be, from the source alone (docs/concepts/method.md).

A predictor maps (encoder output, source tokens) to a logit for every length, so that the likeliest lengths
can be ranked whatever predicted them. Affine and fertility predictors estimate one number; a length's logit is
then minus its squared distance from the estimate: the neighbours follow by distance, and minus the logit of the
true length is the squared error that trains the estimate.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from padir.nn.layers import Dense, Embed
from padir.types import PAD_ID, Array

# By the name under which `PadirModel.length_predictor` asks for them. An oracle has nothing to predict:
# lengths come from the caller.
LENGTH_PREDICTORS = ("token", "affine", "fertility", "oracle")


def prepend_length_token(source_tokens: Array, length_id: int) -> Array:
    """Puts [LENGTH] before each source: [B, Ls] int32 → [B, Ls + 1] int32.

    It goes in before encoding, so encoder positions and biases cover the source plus one.
    """
    return jnp.pad(source_tokens, ((0, 0), (1, 0)), constant_values=length_id)


class LengthTokenPredictor(nnx.Module):
    """Scores target lengths by the [LENGTH] token's encoder state (Ghazvininejad et al. 2019)."""

    def __init__(self, max_target_length: int, features: int, *, relative: bool = False, rngs: nnx.Rngs):
        """Draws the embeddings of lengths.

        Args:
          max_target_length: the longest length there is.
          features: E.
          relative: embeddings stand for target − source length instead of the length itself, and the sum of
            the source's states is read beside the [LENGTH] token's. How much longer or shorter each word
            comes out adds up over the source, which attention, an average, can hardly express; so the
            difference is learnt in a fraction of the steps.
          rngs: randomness.
        """
        # Float32 whatever the activations are: lengths decide the shape of everything after. The state is
        # RMS-normed, so 1/sqrt(E) makes the first logits of unit size.
        self.length_embed = Embed(
            max_target_length, features, dtype=jnp.dtype("float32"), rngs=rngs, stddev=features**-0.5
        )
        self.relative = relative
        if relative:
            self.sum = Dense(features, features, dtype=jnp.dtype("float32"), rngs=rngs, scale=0.1)

    def __call__(self, encoded: Array, source_tokens: Array) -> Array:
        """Scores every length.

        Args:
          encoded: [B, Ls + 1, E] encoder output, the [LENGTH] token first.
          source_tokens: [B, Ls] int32.

        Returns:
          Logits [B, max_target_length] float32; index + 1 is the length. Differences beyond the table of a
          relative predictor share its first or last row.
        """
        if not self.relative:
            return self.length_embed.attend(encoded[:, 0])
        inside = source_tokens != PAD_ID
        total = (encoded[:, 1:].astype(jnp.float32) * inside[:, :, None]).sum(1)
        scores = self.length_embed.attend(encoded[:, 0] + self.sum(total))
        source_lengths = inside.sum(-1)
        size = scores.shape[-1]
        # Row `size // 2` of the table stands for equal lengths.
        index = jnp.arange(1, size + 1)[None, :] - source_lengths[:, None] + size // 2
        return jnp.take_along_axis(scores, jnp.clip(index, 0, size - 1), axis=1)


class AffineLengthPredictor(nnx.Module):
    """Estimates a learnt scale times the source's length, plus a learnt offset; both count EOS."""

    def __init__(self, max_target_length: int):
        """Starts at the source's own length."""
        # One array of both: Adafactor steps in proportion to an array's size, so an offset that stood alone
        # and began at 0 would never move.
        self.scale_and_offset = nnx.Param(jnp.array([1.0, 0.0]))
        self.max_target_length = max_target_length

    def __call__(self, encoded: Array, source_tokens: Array) -> Array:
        """encoded [B, Ls, E] (not read), source_tokens [B, Ls] int32 → logits [B, max_target_length] float32."""
        del encoded
        scale, offset = self.scale_and_offset[...]
        return _logits_around(scale * (source_tokens != PAD_ID).sum(-1) + offset, self.max_target_length)


class FertilityLengthPredictor(nnx.Module):
    """Estimates how many target tokens each source token becomes, and adds them up (after Gu et al. 2018)."""

    def __init__(self, max_target_length: int, features: int, *, max_fertility: int = 2, rngs: nnx.Rngs):
        """Draws the layers.

        Args:
          max_target_length: the longest length there is.
          features: E.
          max_fertility: most target tokens that one source token can become.
          rngs: randomness.
        """
        self.mlp = Dense(features, features, dtype=jnp.dtype("float32"), rngs=rngs)
        self.logits_dense = Dense(features, max_fertility + 1, dtype=jnp.dtype("float32"), rngs=rngs)
        self.max_target_length = max_target_length

    def __call__(self, encoded: Array, source_tokens: Array) -> Array:
        """Scores every length.

        Args:
          encoded: [B, Ls, E] encoder output. It is read but not trained: an error of several tokens, squared,
            would drown what the decoder asks of the encoder.
          source_tokens: [B, Ls] int32.

        Returns:
          Logits [B, max_target_length] float32; index + 1 is the length.
        """
        hidden = jax.nn.gelu(self.mlp(jax.lax.stop_gradient(encoded)))
        probabilities = jax.nn.softmax(self.logits_dense(hidden), axis=-1)
        fertility = probabilities @ jnp.arange(probabilities.shape[-1], dtype=jnp.float32)
        return _logits_around((fertility * (source_tokens != PAD_ID)).sum(-1), self.max_target_length)


def _logits_around(estimate: Array, max_target_length: int) -> Array:
    """Estimates [B] float32 → logits [B, max_target_length] float32; index + 1 is the length."""
    return -jnp.square(jnp.arange(1, max_target_length + 1) - estimate[:, None])


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
