"""What every sampler that generates under a verifier is given, and what it returns.

A sampler never sees a model. It is given a function that continues prefixes, so that it can be tested with tables.
Every sampler is a frozen dataclass with one method,

    generate(step_fn, cache, rows, judge, key) -> Generated

where the judge is a `Verifier`, or a `ValueFunction` for samplers that weigh next tokens. It is one `lax.while_loop`
over rows of different lengths, with one decoder pass of all rows an iteration, and more where next tokens are read one
by one.
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
from flax import struct

from padir.decoding.autoregressive import START_ID
from padir.decoding.queries import Queries
from padir.decoding.sampling import Sampling
from padir.nn.cache import DecoderCache
from padir.types import EOS_ID, PAD_ID, Array, PyTree


class PrefixStepFn(Protocol):
    """The generator: one decoder pass over the last token of every row's prefix."""

    def __call__(self, last: Array, position: Array, cache: PyTree) -> tuple[Array, Array, PyTree]:
        """Continues prefixes.

        Args:
          last: [N] int32, the last token of each prefix; `START_ID` of an empty one.
          position: [N] int32, where it is in the decoder's input, which begins with `START_ID`: the number of tokens
            of the prefix.
          cache: keys and values of everything to its left. What lies to its right is stale, and is overwritten.

        Returns:
          (log-probabilities of the next token [N, V] float32, -inf forbids one; features of the prefix [N, E] float32;
          the cache with the last token's keys and values).
        """


class Verifier(Protocol):
    """The probability that a prefix is fine, that is, can still become valid; exact ones say 0 or 1."""

    def __call__(self, tokens: Array, lengths: Array, features: Array) -> Array:
        """Prefixes [N, L] int32 of `lengths` [N] int32 tokens, with features [N, E] → [N] float32 in [0, 1].

        What stands in `tokens` beyond a prefix's length is arbitrary.
        """


class ValueFunction(Protocol):
    """How much a prefix, and each of its continuations, is worth: an estimate of the expected outcome reward."""

    def __call__(self, tokens: Array, lengths: Array, features: Array) -> tuple[Array, Array]:
        """Arguments of a `Verifier` → (of each prefix [N], of its continuation by each token [N, V]), float32, ≥ 0."""


@struct.dataclass
class Rows:
    """What each row starts from.

    Attributes:
      tokens: [N, L] int32, the prompt, then room for what is generated, 0.
      prompt_lengths: [N] int32, tokens of the prompt; 0 without one.
      limits: [N] int32, most tokens that prompt and generated text may have together, EOS counted; at most L.
      live: [N] bool, False for rows that only pad the batch: they count as done from the start.
      sample_ids: [N] int32. Rows with the same number get the same random numbers, whatever else is in the batch.
    """

    tokens: Array
    prompt_lengths: Array
    limits: Array
    live: Array
    sample_ids: Array


@struct.dataclass
class Generated:
    """What a sampler returns.

    Attributes:
      tokens: [N, L] int32, prompt and generated text, 0 behind it.
      lengths: [N] int32, tokens of both together.
      failed: [N] bool, rows that found no output: at a dead end, or at the end of their budget. What they hold is as
        far as they came.
      score: [N] float32, summed log-probability of the generated tokens under the generator.
      queries: what it cost.
      batch_steps: [] int32, decoder passes of the whole batch.
    """

    tokens: Array
    lengths: Array
    failed: Array
    score: Array
    queries: Queries
    batch_steps: Array


def last_tokens(tokens: Array, lengths: Array) -> Array:
    """The last token of each prefix, `START_ID` of empty ones: [N, L], [N] → [N] int32."""
    last = jnp.take_along_axis(tokens, jnp.maximum(lengths - 1, 0)[:, None], axis=1)[:, 0]
    return jnp.where(lengths > 0, last, START_ID)


def is_complete(tokens: Array, lengths: Array, limits: Array) -> Array:
    """Prefixes that nothing follows, at EOS or their limit: [N, L], [N], [N] → [N] bool."""
    # The start token is not EOS, so that an empty prefix is none.
    return (last_tokens(tokens, lengths) == EOS_ID) | (lengths >= limits)


def put(values: Array, at: Array, new: Array, where: Array | bool = True) -> Array:
    """Values [N, L] with `new` [N] at place `at` [N] of the rows `where` [N]; places beyond the last are ignored."""
    # Not a scatter, which on CPU would be a loop over the rows.
    here = jnp.arange(values.shape[1]) == at[:, None]
    return jnp.where(here & jnp.reshape(where, (-1, 1)), new[:, None], values)


def cut(values: Array, lengths: Array) -> Array:
    """Values [N, L] with nothing (0) behind their lengths [N]."""
    return jnp.where(jnp.arange(values.shape[1]) < lengths[:, None], values, PAD_ID)


def draw(sampling: Sampling, log_probs: Array, key: Array, sample_ids: Array, draws: Array) -> tuple[Array, Array]:
    """Draws a token for every row, with random numbers that depend on the row's sample and its draws so far alone.

    Args:
      sampling: temperature and nucleus; greedy if its temperature is 0.
      log_probs: [N, V] float32.
      key: [] randomness.
      sample_ids: [N] int32, see `Rows`.
      draws: [N] int32, how many tokens each row has drawn before.

    Returns:
      (tokens [N] int32, their log-probabilities [N] float32 under `log_probs` as given, normalised).
    """

    def of_row(log_probs: Array, sample: Array, draws: Array) -> tuple[Array, Array]:
        return sampling(log_probs, jax.random.fold_in(jax.random.fold_in(key, sample), draws))

    return jax.vmap(of_row)(log_probs, sample_ids, draws)


def at_positions(cache: DecoderCache, position: Array) -> DecoderCache:
    """The cache whose next tokens, one a row, lie at `position` [N] int32: to erase tokens, go back to a lower one."""
    return cache.replace(position=position[:, None])
