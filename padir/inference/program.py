"""Compiled programs, as many as a process can hold, and those that decode a batch, shared by equal models."""

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
    """A function that is compiled for each combination of shapes; what was compiled is dropped before maps run out.

    XLA's compiler for CPU takes three memory maps for each fusion, one or two thousand for a large program. Linux
    allows a process 65,530 unless told otherwise; when they are taken, the process dies.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function, self._compiled = function, dict[Any, _Compiled]()

    def __call__(self, weights: Any, *arrays: Any, **given: Any) -> Any:
        """Calls the function. The first argument's shapes are not looked at, because it has many arrays."""
        shapes: tuple[Any, ...] = tuple([array.shape for array in arrays])
        for name, of in given.items():
            shapes += name, *(leaf.shape for leaf in jax.tree.leaves(of))
        compiled = self._compiled.get(shapes)
        if compiled is None:
            compiled = self._compiled.setdefault(shapes, _Compiled(self._function))
        found = compiled.run(weights, *arrays, **given)
        compiled.is_there, compiled.used = True, time.monotonic()
        return found

    def lower(self, *arguments: Any, **given: Any) -> jax.stages.Lowered:
        """Lowers the function for arguments or their shapes, like `jax.jit`'s own `lower`."""
        return jax.jit(self._function).lower(*arguments, **given)


class _Compiled:
    """The function of a `Program` for one combination of shapes.

    Attributes:
      run: it, jitted.
      is_there: whether it has been called since it was dropped.
      used: when it was called, in seconds of `time.monotonic`.
    """

    # Of the memory maps that this process may have, the share from which programs are dropped. The rest is for those
    # that other threads are compiling, and for what is not a `Program`.
    _FULL = 0.7

    _all: weakref.WeakSet[_Compiled] = weakref.WeakSet()
    _one_at_a_time = threading.Lock()

    def __init__(self, function: Callable[..., Any]):
        # JAX traces whenever it compiles, whatever the reason.
        @functools.wraps(function)
        def traced(*arguments: Any, **given: Any) -> Any:
            self._make_room()
            return function(*arguments, **given)

        self.run, self.is_there, self.used = jax.jit(traced), False, 0.0
        with self._one_at_a_time:
            self._all.add(self)

    def _make_room(self) -> None:
        """Drops those used longest ago while too many memory maps are in use; later calls compile them again."""
        with self._one_at_a_time:
            used, allowed = host_memory.memory_maps()
            if used < self._FULL * allowed:
                return
            there = sorted((each for each in self._all if each.is_there), key=lambda each: each.used)
            left, dropped = used, 0
            while left >= self._FULL * allowed and dropped < len(there):
                there[dropped].is_there = False
                there[dropped].run.clear_cache()
                dropped += 1
                left = host_memory.memory_maps()[0]
        warnings.warn(
            f"{used:,} of the {allowed:,} memory maps that Linux allows this process were in use, so compiled programs "
            f"were dropped, {dropped} of those used longest ago, which leaves {left:,}; they are compiled again when "
            "needed. To keep them, have the limit raised: sysctl -w vm.max_map_count=1048576",
            stacklevel=2,
        )


@functools.cache
def decode_program(model: Model, decode: DecodeConfig, structure: jax.tree_util.PyTreeDef) -> Program:
    """Returns the program of `model.decode`, the same one for equal arguments.

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
    """Returns the program of `continuation.decode`, of (parameters, source, tokens, clamped, key, number of steps)."""

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
