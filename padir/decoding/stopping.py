"""When a row stops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax.numpy as jnp

from padir.decoding.remasking import several
from padir.decoding.state import StopView, Written
from padir.errors import PadirError
from padir.types import Array


class StopPolicy(Protocol):
    """Decides for each row, from what a step read, what the next one would read, and how sure the step was."""

    # Whether the policy reads `StopView.mean_entropy`.
    needs_entropy: ClassVar[bool] = False

    def __call__(self, view: StopView) -> Array:
        """The rows that are finished: [N] bool."""


@dataclass(frozen=True)
class StopWhenUnchanged(StopPolicy):
    """Stops a row when X^(t+1) = X^(t) (paper section 4.2.2.1): all later steps would repeat this one.

    With a remasking schedule that still remasks something, where the next step may write other positions, or with
    sampling, later steps may differ: the row goes on.
    With self-conditioning they might differ, too, because they also read what the last one expected: the row stops.
    """

    def __call__(self, view: StopView) -> Array:
        return view.settled


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

    def __call__(self, view: StopView) -> Array:
        return view.settled | (view.confidence >= math.log(self.threshold))


@dataclass(frozen=True)
class StopWhenStable(StopPolicy):
    """Stops a row when a step wrote what the step before had written, even if the next step would read something new.

    For remasking with fresh noise or a schedule, under which what is read never settles; better with another condition
    (`StopWhenAll`).
    """

    def __call__(self, view: StopView) -> Array:
        return view.settled | view.stable


@dataclass(frozen=True)
class StopWhenCertain(StopPolicy):
    """Stops a row when the mean entropy of its positions is low, or nothing changed.

    Attributes:
      entropy: the mean that is low enough, in nats.
    """

    entropy: float = 0.1

    needs_entropy: ClassVar[bool] = True

    def __post_init__(self):
        if not 0.0 <= self.entropy < math.inf:
            raise PadirError(f"StopWhenCertain.entropy: {self.entropy} is not a number of nats of at least 0")

    def __call__(self, view: StopView) -> Array:
        return view.settled | (view.mean_entropy <= self.entropy)


@dataclass(frozen=True)
class StopWhenAll(StopPolicy):
    """Stops a row when every one of several policies would, such as when it is stable and certain.

    Attributes:
      policies: two or more.
    """

    policies: tuple[StopPolicy, ...]

    def __post_init__(self):
        object.__setattr__(self, "policies", several("StopWhenAll.policies", self.policies))

    @property
    def needs_entropy(self) -> bool:
        return any(policy.needs_entropy for policy in self.policies)

    def __call__(self, view: StopView) -> Array:
        stop = jnp.ones_like(view.settled)
        for policy in self.policies:
            stop &= policy(view)
        return stop


@dataclass(frozen=True)
class StopNever(StopPolicy):
    """Runs every step, for benchmarks of a fixed amount of work."""

    def __call__(self, view: StopView) -> Array:
        return jnp.zeros_like(view.settled)


POLICIES = (StopWhenUnchanged, StopWhenConfident, StopWhenStable, StopWhenCertain, StopWhenAll, StopNever)


def stop_view(
    written: Written,
    tokens: Array,
    remasked: Array,
    writable: Array | None,
    log_probs: Array,
    stable: Array,
    counted: Array,
    config: Any,
) -> StopView:
    """What the stop policy is given: [N, L] fields but `stable` [N]; `config` is a `Refinement`.

    `writable` are the positions that this step might write, None for all; `counted` are those that the mean entropy is
    taken over.
    """
    any_remasked = remasked.any(-1)
    mean_entropy = None
    if written.entropy is not None:
        mean_entropy = jnp.where(counted, written.entropy, 0.0).sum(-1) / jnp.maximum(counted.sum(-1), 1)
    return StopView(
        written.read,
        tokens,
        _settled(written.read, tokens, remasked, writable, config),
        stable,
        jnp.where(any_remasked, -jnp.inf, log_probs.min(-1)),
        mean_entropy,
    )


def _settled(read: Array, next_tokens: Array, remasked: Array, writable: Array | None, config: Any) -> Array:
    """Rows [N] bool as `StopView.settled`; the other fields are [N, L], `config` a `Refinement`."""
    any_remasked = remasked.any(-1)
    repeats = (read == next_tokens).all(-1) & (config.sampling.temperature == 0)
    if writable is not None:
        # The next step reads the same, but would write elsewhere.
        repeats &= (remasked == writable).all(-1)
    if config.may_remask_otherwise:
        # What the next step would read tells nothing while anything is remasked.
        repeats &= ~any_remasked
    # Whatever the next step would read, it may be that it could not write.
    return repeats | ~any_remasked if config.rewrite_only_remasked else repeats
