"""When a row stops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp

from padir.errors import PadirError
from padir.types import Array


class StopPolicy(Protocol):
    """Decides for each row, from what a step read, what the next one would read, and how sure the step was."""

    def __call__(self, read: Array, next_tokens: Array, settled: Array, confidence: Array) -> Array:
        """Chooses the rows that are finished.

        Args:
          read: [N, L] int32, what the step read; with `Refinement.active_positions`, what each position read last.
          next_tokens: [N, L] int32, what the next step would read.
          settled: [N] bool, where no further step could change anything: the two are equal and steps neither draw
            at random nor go on to remask less, or the next step may write nowhere. (With active positions a step could
            still decode positions anew whose own token is the same; that is not waited for.)
          confidence: [N] float32, log-probability of the least likely token; -inf where any was remasked.

        Returns:
          [N] bool.
        """


@dataclass(frozen=True)
class StopWhenUnchanged(StopPolicy):
    """Stops a row when X^(t+1) = X^(t) (paper section 4.2.2.1): all later steps would repeat this one.

    With a remasking schedule that still remasks something, or with sampling, later steps may differ: the row goes on.
    """

    def __call__(self, read: Array, next_tokens: Array, settled: Array, confidence: Array) -> Array:
        return settled


@dataclass(frozen=True)
class StopWhenConfident(StopPolicy):
    """Stops a row when every token is likely enough or nothing changed. This saves the step that would only confirm.

    Attributes:
      threshold: the probability that every token must reach.
    """

    threshold: float = 0.8

    def __post_init__(self):
        if not 0.0 < self.threshold <= 1.0:
            raise PadirError(f"StopWhenConfident.threshold: {self.threshold} is not in (0, 1]")

    def __call__(self, read: Array, next_tokens: Array, settled: Array, confidence: Array) -> Array:
        return settled | (confidence >= math.log(self.threshold))


@dataclass(frozen=True)
class StopNever(StopPolicy):
    """Runs every step, for benchmarks of a fixed amount of work."""

    def __call__(self, read: Array, next_tokens: Array, settled: Array, confidence: Array) -> Array:
        return jnp.zeros_like(settled)


def settled(read: Array, next_tokens: Array, any_remasked: Array, config: Any) -> Array:
    """Rows [N] bool as `StopPolicy` is told of them; `any_remasked` [N] bool, `config` a `Refinement`."""
    repeats = (read == next_tokens).all(-1) & (config.sampling.temperature == 0)
    if config.remask.changes_with_step:
        # The next step may remask less: what it would read tells nothing while anything is remasked.
        repeats &= ~any_remasked
    # Whatever the next step would read, it may be that it could not write.
    return repeats | ~any_remasked if config.rewrite_only_remasked else repeats


POLICIES = (StopWhenUnchanged, StopWhenConfident, StopNever)
