"""The jitted programs that decode a batch, shared by all translators of equal models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.queries import Queries
from padir.decoding.refinement import Refinement
from padir.decoding.state import Hypotheses, Trace
from padir.models import continuation
from padir.models.base import DecodingParams
from padir.models.kinds import DecodeConfig, Model
from padir.models.padir import PadirModel
from padir.types import Array

# What only some decodes return: (trace, queries, which hypotheses failed).
Extras = tuple[Trace | None, Queries | None, Array | None]
# (leaves of parameters and helper, source, key, number of steps of a refinement; by name lengths and constraint)
# → (packed hypotheses, extras)
Program = Callable[..., tuple[Array, Extras]]


@functools.cache
def decode_program(model: Model, decode: DecodeConfig, structure: jax.tree_util.PyTreeDef) -> Program:
    """Returns the jitted `model.decode`, the same one for equal arguments.

    Each array passed in or out adds latency, which matters for short requests. So the parameters are passed as a list
    of leaves, and the hypotheses are returned as one array, which `unpack` takes apart.

    Args:
      model: the configuration of the model.
      decode: the decode configuration.
      structure: the tree structure of (parameters, helper), where the helper may be None.
    """

    @jax.jit
    def run(leaves: list[Array], source: Array, key: Array, *steps: Array, **given: Any) -> tuple[Array, Extras]:
        params, helper = jax.tree.unflatten(structure, leaves)
        options = given if helper is None else {**given, helper.role: helper}
        found = model.decode(params, source, key, decode, *steps, **options)
        return _pack(found), (found.trace, found.queries, found.failed)

    return run


@functools.cache
def continuation_program(model: PadirModel, decode: Refinement) -> Callable[..., Hypotheses]:
    """Returns the jitted `continuation.decode` of (parameters, source, tokens, clamped, key, number of steps)."""

    @jax.jit
    def run(
        params: DecodingParams, source: Array, tokens: Array, clamped: Array, key: Array, *steps: Array
    ) -> Hypotheses:
        return continuation.decode(model, params, source, tokens, clamped, key, decode, *steps)

    return run


def _pack(found: Hypotheses) -> Array:
    """Packs everything but the extras into one array [B, K, 5 + L] int32, so that one copy brings it to the host."""
    scores = jax.lax.bitcast_convert_type(found.scores, jnp.int32)
    batch_steps = jnp.broadcast_to(found.batch_steps, scores.shape)
    rounds = jnp.full(scores.shape, -1) if found.rounds is None else found.rounds
    numbers = jnp.stack([scores, found.predicted_lengths, found.steps_run, batch_steps, rounds], axis=-1)
    return jnp.concatenate([numbers, found.tokens], axis=-1)


def unpack(packed: np.ndarray, extras: Extras) -> Hypotheses:
    """Returns the hypotheses of a `Program` as numpy arrays.

    Args:
      packed: [B, K, 5 + L] int32, the first result of the program: bits of the float32 score, predicted length, steps
        run, steps of the batch, rounds or -1, and L tokens.
      extras: its second result.
    """
    scores = np.ascontiguousarray(packed[..., 0]).view(np.float32)
    trace, *account = jax.device_get(extras)
    rounds = None if packed[0, 0, 4] < 0 else packed[..., 4]
    return Hypotheses(packed[..., 5:], scores, packed[..., 1], packed[..., 2], packed[0, 0, 3], trace, rounds, *account)
