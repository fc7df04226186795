"""What training keeps of the forward pass, and what it computes again in the backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax

from padir.errors import PadirError

# By what `train.remat` may be: of each layer everything is kept; its products with weights, so that attention and
# element-wise work are done again; or its input only.
CHOICES = ("none", "dots", "layer")

_active: ContextVar[str] = ContextVar("padir_active_remat", default="none")


def check(choice: str) -> None:
    """Raises PadirError unless `choice` is one of `CHOICES`."""
    if choice not in CHOICES:
        raise PadirError(f"train.remat: unknown {choice!r}; choose one of {', '.join(CHOICES)}")


@contextlib.contextmanager
def rematerialising(choice: str) -> Iterator[None]:
    """While a function is traced in here, layers that went through `rematerialised` keep what `choice` says."""
    token = _active.set(choice)
    try:
        yield
    finally:
        _active.reset(token)


def rematerialised(layer: Callable[..., Any]) -> Callable[..., Any]:
    """`layer`, a pure function of its arguments, keeping only part of its work for the backward pass.

    Outside `rematerialising`, as in decoding, `layer` itself.
    """
    if _active.get() == "none":
        return layer
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if _active.get() == "dots" else None
    # A function of its own: JAX would use a trace of the same object again, wherever it was made.
    return jax.checkpoint(lambda *arguments: layer(*arguments), policy=policy)
