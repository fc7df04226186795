"""Rematerialisation: recomputing parts of the forward pass in the backward pass to save memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax

from padir.errors import PadirError

# What is kept of each layer: everything ('none'), its products with weights, so that attention and element-wise
# operations are recomputed ('dots'), or only its input ('layer').
CHOICES = ("none", "dots", "layer")

_active: ContextVar[str] = ContextVar("padir_active_remat", default="none")


def check(choice: str) -> None:
    """Raises PadirError unless `choice` is one of `CHOICES`."""
    if choice not in CHOICES:
        raise PadirError(f"train.remat: unknown {choice!r}; choose one of {', '.join(CHOICES)}")


@contextlib.contextmanager
def rematerialising(choice: str) -> Iterator[None]:
    """Context manager: functions traced inside keep, of each `rematerialised` layer, what `choice` says.

    Args:
      choice: one of `CHOICES`.
    """
    token = _active.set(choice)
    try:
        yield
    finally:
        _active.reset(token)


def rematerialised(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `layer` as a function that keeps only a part of its results for the backward pass.

    Outside `rematerialising`, as in decoding, it returns `layer` itself.

    Args:
      layer: a pure function of its arguments.
    """
    if _active.get() == "none":
        return layer
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if _active.get() == "dots" else None
    # A new function each time, because JAX would reuse the trace of the same object from another context.
    return jax.checkpoint(lambda *arguments: layer(*arguments), policy=policy)
