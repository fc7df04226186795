"""The jitted programs that decode a batch, shared by all translators of equal models."""

from __future__ import annotations

import functools
import threading
import time
import warnings
import weakref
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
from padir.runtime import host_memory
from padir.types import Array

# What only some decodes return: (trace, queries, which hypotheses failed).
Extras = tuple[Trace | None, Queries | None, Array | None]


class Program:
    """A jitted function that makes room before it is compiled for further shapes.

    XLA's compiler for CPU takes three memory maps for each fusion of a program, and Linux allows a process 65,530 of
    them unless told otherwise. A few dozen programs take them all; then the process would die.
    """

    # Of the memory maps that this process may have. A large program takes a twentieth of them.
    _FULL = 0.75

    _known: weakref.WeakSet[Program] = weakref.WeakSet()
    _one_at_a_time = threading.Lock()

    def __init__(self, run: Callable[..., Any]):
        self._run, self._shapes, self._used = jax.jit(run), set[Any](), 0.0
        self._known.add(self)

    def __call__(self, weights: Any, *arrays: Any, **given: Any) -> Any:
        """Calls the function. The shapes of `weights` are taken to be always the same."""
        shapes: tuple[Any, ...] = tuple(array.shape for array in arrays)
        for name, of in given.items():
            shapes += name, *(leaf.shape for leaf in jax.tree.leaves(of))
        self._used = time.monotonic()
        if shapes not in self._shapes:
            self._make_room()
            self._shapes.add(shapes)
        return self._run(weights, *arrays, **given)

    def lower(self, *arguments: Any, **given: Any) -> jax.stages.Lowered:
        """Lowers the function for arguments or their shapes, like `jax.jit`'s own `lower`."""
        return self._run.lower(*arguments, **given)

    @classmethod
    def _make_room(cls) -> None:
        """Drops the programs used longest ago while too many memory maps are in use; later calls compile them again."""
        with cls._one_at_a_time:
            if host_memory.share_of_maps() < cls._FULL:
                return
            warnings.warn(
                "compiled programs need almost all memory maps that Linux allows a process, so those used longest ago "
                "are dropped and compiled again when they are needed; to keep them, allow more: "
                "sysctl -w vm.max_map_count=1048576",
                stacklevel=2,
            )
            compiled = sorted((program for program in cls._known if program._shapes), key=lambda program: program._used)
            for program in compiled:
                program._shapes.clear()
                program._run.clear_cache()
                if host_memory.share_of_maps() < cls._FULL:
                    break


@functools.cache
def decode_program(model: Model, decode: DecodeConfig, structure: jax.tree_util.PyTreeDef) -> Program:
    """Returns the jitted `model.decode`, the same one for equal arguments.

    It maps (leaves of parameters and helper, source, key, number of steps of a refinement; by name lengths and
    constraint) to (packed hypotheses, extras).

    Each array passed in or out adds latency, which matters for short requests. So the parameters are passed as a list
    of leaves, and the hypotheses are returned as one array, which `unpack` takes apart.

    Args:
      model: the configuration of the model.
      decode: the decode configuration.
      structure: the tree structure of (parameters, helper), where the helper may be None.
    """

    def run(leaves: list[Array], source: Array, key: Array, *steps: Array, **given: Any) -> tuple[Array, Extras]:
        params, helper = jax.tree.unflatten(structure, leaves)
        options = given if helper is None else {**given, helper.role: helper}
        found = model.decode(params, source, key, decode, *steps, **options)
        return _pack(found), (found.trace, found.queries, found.failed)

    return Program(run)


@functools.cache
def continuation_program(model: PadirModel, decode: Refinement) -> Program:
    """Returns the jitted `continuation.decode` of (parameters, source, tokens, clamped, key, number of steps)."""

    def run(
        params: DecodingParams, source: Array, tokens: Array, clamped: Array, key: Array, *steps: Array
    ) -> Hypotheses:
        return continuation.decode(model, params, source, tokens, clamped, key, decode, *steps)

    return Program(run)


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
