"""Going through the layers of a stack: one after the other in the program, or as one loop over all of them.

A program that repeats its layers is as long as there are layers. As a loop (`jax.lax.scan`) it holds one layer: it is
much smaller and compiles sooner. The parameters stay as they are, one set a layer; the program puts them side by side.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from padir.types import PyTree

_scanned: ContextVar[bool] = ContextVar("padir_scanned_layers", default=False)


@contextlib.contextmanager
def scanning_layers(wanted: bool = True) -> Iterator[None]:
    """Context manager: functions traced inside go through their layers in a loop if `wanted`."""
    token = _scanned.set(wanted)
    try:
        yield
    finally:
        _scanned.reset(token)


def through(
    layers: Sequence[nnx.Module],
    function: Callable[[Any, PyTree, PyTree], tuple[PyTree, PyTree]],
    carry: PyTree,
    inputs: Sequence[PyTree],
) -> tuple[PyTree, tuple[PyTree, ...]]:
    """Calls function(layer, carry, input of the layer) → (carry, output) for layer after layer.

    Args:
      layers: modules of one structure.
      function: what to do with each.
      carry: given to the first layer. What a layer returns has the same shapes and dtypes.
      inputs: one for each layer, of one structure.

    Returns:
      The last carry, and each layer's output.
    """
    if not _scanned.get() or len(layers) == 1:
        outputs = []
        for layer, of_layer in zip(layers, inputs, strict=True):
            carry, output = function(layer, carry, of_layer)
            outputs.append(output)
        return carry, tuple(outputs)
    graph = nnx.graphdef(layers[0])

    def step(carry: PyTree, of_layer: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        state, given = of_layer
        return function(nnx.merge(graph, state), carry, given)

    states = [nnx.state(layer) for layer in layers]
    carry, outputs = jax.lax.scan(step, carry, (_side_by_side(states), _side_by_side(inputs)))
    return carry, tuple(jax.tree.map(lambda leaf, at=at: leaf[at], outputs) for at in range(len(layers)))


def _side_by_side(trees: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
