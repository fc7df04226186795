"""Callbacks that look into a decode or change it, for research.

A callback is a pure, hashable function traced into the loop: it takes the state (or a step's logits and the state)
and returns the state (or logits) that the loop continues with. `OnHost` turns a plain Python function that only
looks into a callback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax.experimental import io_callback

from padir.decoding.state import RefinementState
from padir.types import Array

StateCallback = Callable[[RefinementState], RefinementState]
LogitsCallback = Callable[[Array, RefinementState], Array]


@dataclass(frozen=True)
class OnHost:
    """Calls a Python function with NumPy copies of the arguments, in the order of the steps, and changes nothing.

    Decoding may return before the last calls were made: `jax.effects_barrier()` waits for them. Calls in order
    need a decode on one device.

    Attributes:
      function: called with what the loop hands to the callback, (state) or (logits, state); result ignored.
    """

    function: Callable[..., Any]

    def __call__(self, first: Any, *others: Any) -> Any:
        def call(*values: Any) -> None:
            self.function(*values)

        io_callback(call, None, first, *others, ordered=True)
        return first
