"""Autoregressive decoding, one token a step: the baseline every speed-up is measured against (layer 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from padir.cache import DecoderCache
from padir.decoding.sampling import greedy
from padir.errors import PadirError
from padir.types import EOS_ID, PAD_ID, Array

# (last tokens [N] int32, cache) → (logits [N, V], cache)
StepFn = Callable[[Array, DecoderCache], tuple[Array, DecoderCache]]

# T5 starts a target with the padding id; BOS stays reserved.
START_ID = PAD_ID


@dataclass(frozen=True)
class Autoregressive:
    """Everything static about an autoregressive decode.

    Attributes:
      max_length_ratio, max_length_offset: a target may have at most ratio · source tokens + offset tokens, and
        never more than the model's longest target. The cache has room for a source that fills its bucket, no
        more: that keeps the baseline fast.
      alpha: scores are summed log-probability over length^alpha.
    """

    max_length_ratio: float = 1.5
    max_length_offset: int = 8
    alpha: float = 1.0

    def __post_init__(self):
        if self.max_length_ratio < 0 or self.max_length_ratio + self.max_length_offset <= 0:
            raise PadirError("Autoregressive: max_length_ratio and max_length_offset leave no room for a target")

    def max_length(self, source_length: Array | int, longest: int) -> Array | int:
        """Tokens, EOS counted, that a target of a source of `source_length` tokens may have; int32 if traced."""
        allowed = self.max_length_ratio * source_length + self.max_length_offset
        if isinstance(source_length, int):
            return max(1, min(longest, int(allowed)))
        return jnp.clip(allowed.astype(jnp.int32), 1, longest)


@struct.dataclass
class AutoregressiveState:
    """The carry of the loop.

    Attributes:
      tokens: [N, L] int32, written so far, 0 from the current position and after EOS.
      last: [N] int32, the token that the next step reads.
      score: [N] float32, summed log-probability of what is written.
      done: [N] bool, rows that have written EOS.
      cache: keys and values so far.
    """

    tokens: Array
    last: Array
    score: Array
    done: Array
    cache: DecoderCache


def greedy_decode(
    step_fn: StepFn, cache: DecoderCache, live: Array, limits: Array, max_length: int
) -> AutoregressiveState:
    """Writes the likeliest token after the likeliest token until every row has its EOS.

    Args:
      step_fn: one decoder pass with its cache.
      cache: empty, with room for `max_length` tokens.
      live: [N] bool, False for rows that only pad the batch: they count as finished from the start.
      limits: [N] int32, most tokens each row may have, EOS counted.
      max_length: the largest of them, static.

    Returns:
      The final state; `cache.position` is the number of steps run.
    """

    def running(state: AutoregressiveState) -> Array:
        return (state.cache.position < max_length) & ~state.done.all()

    def step(state: AutoregressiveState) -> AutoregressiveState:
        position = state.cache.position
        logits, new_cache = step_fn(state.last, state.cache)
        token, log_prob = greedy(logits)
        # A finished row goes on through the decoder (the shape is fixed) but writes only padding.
        token = jnp.where(state.done, PAD_ID, token)
        return AutoregressiveState(
            tokens=jax.lax.dynamic_update_index_in_dim(state.tokens, token, position, axis=1),
            last=token,
            score=state.score + jnp.where(state.done, 0.0, log_prob),
            done=state.done | (token == EOS_ID) | (position + 1 >= limits),
            cache=new_cache,
        )

    rows = live.shape[0]
    first = AutoregressiveState(
        tokens=jnp.full((rows, max_length), PAD_ID, jnp.int32),
        last=jnp.full((rows,), START_ID, jnp.int32),
        score=jnp.zeros((rows,), jnp.float32),
        done=~live,
        cache=cache,
    )
    return jax.lax.while_loop(running, step, first)
