"""The jitted programs that decode a batch, shared by all translators of equal models."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.state import Hypotheses, Trace
from padir.models.kinds import DecodeConfig, Model
from padir.types import Array

# (leaves of parameters and rescorer, source, key, number of steps of a refinement) → (packed hypotheses, trace)
Program = Callable[..., tuple[Array, Trace | None]]


@functools.cache
def decode_program(model: Model, decode: DecodeConfig, structure: jax.tree_util.PyTreeDef) -> Program:
    """Returns the jitted `model.decode`, the same one for equal arguments.

    Each array passed in or out adds latency, which matters for short requests. So the parameters are passed as a list
    of leaves, and the hypotheses are returned as one array, which `unpack` takes apart.

    Args:
      model: the configuration of the model.
      decode: the decode configuration.
      structure: the tree structure of (parameters, rescorer).
    """

    @jax.jit
    def run(
        leaves: list[Array], source: Array, key: Array, *steps: Array, **lengths: Array
    ) -> tuple[Array, Trace | None]:
        params, rescorer = jax.tree.unflatten(structure, leaves)
        options = lengths if rescorer is None else {**lengths, "rescorer": rescorer}
        found = model.decode(params, source, key, decode, *steps, **options)
        return _pack(found), found.trace

    return run


def _pack(found: Hypotheses) -> Array:
    """Packs everything but the trace into one array [B, K, 4 + L] int32, so that one copy brings it to the host."""
    scores = jax.lax.bitcast_convert_type(found.scores, jnp.int32)
    batch_steps = jnp.broadcast_to(found.batch_steps, scores.shape)
    numbers = jnp.stack([scores, found.predicted_lengths, found.steps_run, batch_steps], axis=-1)
    return jnp.concatenate([numbers, found.tokens], axis=-1)


def unpack(packed: np.ndarray, trace: Trace | None) -> Hypotheses:
    """Returns the hypotheses of a `Program` as numpy arrays.

    Args:
      packed: [B, K, 4 + L] int32, the first result of the program: bits of the float32 score, predicted length, steps
        run, steps of the batch, and L tokens.
      trace: its second result.
    """
    scores = np.ascontiguousarray(packed[..., 0]).view(np.float32)
    trace = None if trace is None else jax.device_get(trace)
    return Hypotheses(packed[..., 4:], scores, packed[..., 1], packed[..., 2], packed[0, 0, 3], trace)
