"""Greedy decoding and sampling, one token a step: baselines that every speed-up is measured against."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from padir import rng
from padir.checks import finite, whole
from padir.decoding.sampling import Sampling, argmax, take
from padir.decoding.state import Hypotheses
from padir.errors import PadirError
from padir.nn.cache import DecoderCache
from padir.types import EOS_ID, PAD_ID, Array

# (last tokens [N] int32, cache) → (log-probabilities [N, V] float32, cache); -inf forbids a token
StepFn = Callable[[Array, DecoderCache], tuple[Array, DecoderCache]]
# (log-probabilities [N, V], position [] int32) → tokens [N] int32
ChooseFn = Callable[[Array, Array], Array]

# T5 starts a target with the padding id; BOS stays reserved.
START_ID = PAD_ID


@dataclass(frozen=True)
class TargetRoom:
    """How long a target may become.

    Attributes:
      max_length_ratio, max_length_offset: a target may have at most ratio · source tokens + offset tokens, and
        never more than the model's longest target. The cache has room for a source that fills its bucket, no
        more: that keeps the baseline fast.
    """

    max_length_ratio: float = 1.5
    max_length_offset: int = 8

    def __post_init__(self):
        finite(f"{type(self).__name__}.max_length_ratio", self.max_length_ratio)
        if not isinstance(self.max_length_offset, numbers.Integral):
            raise PadirError(f"{type(self).__name__}.max_length_offset: {self.max_length_offset!r} is no whole number")
        if self.max_length_ratio < 0 or self.max_length_ratio + self.max_length_offset <= 0:
            raise PadirError(
                f"{type(self).__name__}: max_length_ratio and max_length_offset leave no room for a target"
            )

    def max_length(self, source_length: Array | int, longest: int) -> Array | int:
        """Tokens, EOS counted, that a target of a source of `source_length` tokens may have; int32 if traced."""
        allowed = self.max_length_ratio * source_length + self.max_length_offset
        if isinstance(source_length, int):
            return max(1, min(longest, int(allowed)))
        return jnp.clip(allowed.astype(jnp.int32), 1, longest)


@dataclass(frozen=True)
class Autoregressive(TargetRoom):
    """Everything static about greedy decoding or sampling; hashable, so `jit` takes it whole.

    Attributes:
      max_length_ratio, max_length_offset: see `TargetRoom`.
      alpha: scores are summed log-probability over length^alpha.
      sampling: how the next token is chosen; greedy by default. The random numbers of a step depend on the key, the
        source, the position and which of the samples it is, never on the row: equal sources get equal translations.
      num_samples: translations drawn per source, returned best first.
    """

    alpha: float = 1.0
    sampling: Sampling = Sampling()
    num_samples: int = 1

    def __post_init__(self):
        super().__post_init__()
        finite("Autoregressive.alpha", self.alpha)
        whole("Autoregressive.num_samples", self.num_samples)
        if not isinstance(self.sampling, Sampling):
            raise PadirError(f"Autoregressive.sampling: {self.sampling!r} is not a policy; choose one of Sampling()")
        if self.num_samples > 1 and self.sampling.temperature == 0.0:
            raise PadirError("Autoregressive.num_samples: greedy samples are all equal; set a Sampling.temperature")

    @property
    def rows_per_source(self) -> int:
        """Decoder rows that a source takes."""
        return self.num_samples


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


def _likeliest(log_probs: Array, position: Array) -> Array:
    """The `ChooseFn` of greedy decoding."""
    del position
    return argmax(log_probs)


def generate(
    step_fn: StepFn,
    cache: DecoderCache,
    live: Array,
    limits: Array,
    max_length: int,
    choose: ChooseFn = _likeliest,
) -> AutoregressiveState:
    """Writes token after token until every row has its EOS.

    Args:
      step_fn: one decoder pass with its cache.
      cache: empty, with room for `max_length` tokens.
      live: [N] bool, False for rows that only pad the batch: they count as finished from the start.
      limits: [N] int32, most tokens each row may have, EOS counted.
      max_length: the largest of them, static.
      choose: what picks the next tokens; the likeliest ones by default.

    Returns:
      The final state; `cache.position` is the number of steps run.
    """

    def running(state: AutoregressiveState) -> Array:
        return (state.cache.position < max_length) & ~state.done.all()

    def step(state: AutoregressiveState) -> AutoregressiveState:
        """Writes the next token of every row."""
        position = state.cache.position
        log_probs, new_cache = step_fn(state.last, state.cache)
        token = choose(log_probs, position)
        log_prob = take(log_probs, token[:, None])[:, 0]
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


def decode(
    step_fn: StepFn,
    cache: DecoderCache,
    live: Array,
    limits: Array,
    max_length: int,
    config: Autoregressive,
    keys: Array | None,
) -> Hypotheses:
    """Decodes `config.rows_per_source` rows of each of B sources; arguments as in `generate`, but per source.

    Args:
      step_fn, max_length: see `generate`.
      cache: empty, with B·rows_per_source rows.
      live, limits: [B].
      config: scores and sampling.
      keys: [B], randomness of sampling; unused if greedy.

    Returns:
      `Hypotheses` with K = rows_per_source and L = max_length.
    """
    size = config.rows_per_source
    shape = (live.shape[0], size)

    def choose(log_probs: Array, position: Array) -> Array:
        per_source = log_probs.reshape(*shape, -1)
        return config.sampling(per_source, rng.folded(keys, position))[0].reshape(-1)

    state = generate(
        step_fn,
        cache,
        jnp.repeat(live, size),
        jnp.repeat(limits, size),
        max_length,
        _likeliest if config.sampling.temperature == 0.0 else choose,
    )
    lengths = (state.tokens != PAD_ID).sum(-1)
    scores = (state.score / jnp.maximum(lengths, 1) ** config.alpha).reshape(shape)
    order = jnp.argsort(-scores, axis=-1, stable=True)
    lengths = jnp.take_along_axis(lengths.reshape(shape), order, axis=1)
    return Hypotheses(
        tokens=jnp.take_along_axis(state.tokens.reshape(*shape, -1), order[..., None], axis=1),
        scores=jnp.take_along_axis(scores, order, axis=1),
        predicted_lengths=lengths,
        steps_run=lengths,
        batch_steps=state.cache.position,
    )
