"""Finished hypotheses, and the result that a decode makes of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from padir.decoding.refinement import Refinement
from padir.decoding.state import Hypotheses, Trace
from padir.types import PAD_ID, Array


@struct.dataclass
class Refined:
    """Finished hypotheses, not yet ranked.

    Attributes:
      tokens: [B, K, L] int32.
      scores: [B, K] float32.
      lengths, steps_run: [B, K] int32.
      steps: [] int32, decoder passes of the whole batch.
      trace: every step, or None.
    """

    tokens: Array
    scores: Array
    lengths: Array
    steps_run: Array
    steps: Array
    trace: Trace | None = None


def preference(config: Refinement, scores: Array, lengths: Array, *, rescored: bool = False) -> Array:
    """What hypotheses are put in order by, highest first: scores and lengths [B, K] → [B, K] float32.

    With `config.order` or `config.rewrite_only_remasked` the EOS at the end is known, at no cost. EOS alone would be
    the best hypothesis of all, having nothing to be unsure of; it comes last. (The authors' code tries no such length.)
    A causal model that has `rescored` them is unsure of EOS, too.
    """
    knows_end = config.order is not None or config.rewrite_only_remasked
    return jnp.where(lengths > 1, scores, -jnp.inf) if knows_end and not rescored else scores


def ranked(found: Refined, order: Array, max_length: int) -> Hypotheses:
    """The result: the hypotheses of `order` [B, k], best first, targets padded to `max_length`."""
    more = max_length - found.tokens.shape[-1]
    fields = {
        "tokens": jnp.pad(found.tokens, ((0, 0), (0, 0), (0, more))),
        "scores": found.scores,
        "predicted_lengths": found.lengths,
        "steps_run": found.steps_run,
    }
    fields = {name: _reorder(field, order) for name, field in fields.items()}
    trace = None
    if found.trace is not None:
        rows = jnp.arange(order.shape[0])[:, None] * found.lengths.shape[1] + order
        trace = _padded(jax.tree.map(lambda field: field[:, rows], found.trace), more)
    return Hypotheses(**fields, batch_steps=found.steps, trace=trace)


def without_failed(found: Hypotheses, failed: Array) -> Hypotheses:
    """Says which sources have no output, and takes away what they hold: failed [B] bool."""
    return found.replace(
        tokens=jnp.where(failed[:, None, None], PAD_ID, found.tokens),
        scores=jnp.where(failed[:, None], -jnp.inf, found.scores),
        failed=jnp.broadcast_to(failed[:, None], found.scores.shape),
    )


def _padded(trace: Trace, more: int) -> Trace:
    """Pads the target positions of a trace."""

    def pad(field: Array | None, axes: tuple[int, ...]) -> Array | None:
        if field is None:
            return None
        return jnp.pad(field, [(0, more if axis - field.ndim in axes else 0) for axis in range(field.ndim)])

    return Trace(
        pad(trace.inputs, (-1,)),
        pad(trace.proposals, (-1,)),
        pad(trace.log_probs, (-1,)),
        pad(trace.self_attentions, (-2, -1)),
        pad(trace.cross_attentions, (-2,)),
    )


def _reorder(field: Array, order: Array) -> Array:
    """Sorts hypotheses: field [B, K, …], order [B, K] → field[b, order[b]]."""
    return jnp.take_along_axis(field, order.reshape(order.shape + (1,) * (field.ndim - 2)), axis=1)
