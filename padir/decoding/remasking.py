"""What to remask between steps (paper section 4.2.3).

Policies that remask a number of positions (worst k, worst k %, schedules) choose among the positions before the last.
The last position is EOS in every start and is never noised in training. Remasking it would hide nothing, because the
length is known, and would use up one of the positions. Policies that judge each position by itself (stutter, rejecter)
may remask the last position, which puts its EOS back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp

from padir.checks import whole
from padir.decoding.state import StepView
from padir.errors import PadirError
from padir.nn.masks import stutter_mask
from padir.types import Array


class RemaskPolicy(Protocol):
    """Chooses the positions whose new token the next step must not read."""

    # Whether a later step may remask the same proposal differently. A row whose tokens are unchanged then has not
    # settled while any of them is remasked.
    changes_with_step: ClassVar[bool] = False
    # Whether the policy reads `StepView.rejecter_logits`.
    needs_rejecter: ClassVar[bool] = False
    # Whether it reads `StepView.entropy`.
    needs_entropy: ClassVar[bool] = False
    # Whether it accepts positions step by step, and remasks those that are still open: the others of
    # `StepView.writable`. It needs a start that says nothing yet, of MASK or random tokens.
    accepts: ClassVar[bool] = False

    def __call__(self, view: StepView) -> Array:
        """What a step wrote → remask [N, L] bool, False beyond each length."""


@dataclass(frozen=True)
class RemaskNothing(RemaskPolicy):
    """The next step reads exactly what this one wrote."""

    def __call__(self, view: StepView) -> Array:
        return jnp.zeros_like(view.inside)


@dataclass(frozen=True)
class RemaskStutter(RemaskPolicy):
    """Remasks stutter: tokens that repeat their left neighbour (the paper's recipe)."""

    def __call__(self, view: StepView) -> Array:
        return stutter_mask(view.proposal, view.inside)


@dataclass(frozen=True)
class RemaskWorst(RemaskPolicy):
    """Remasks the `count` least likely tokens of each row after every step.

    Attributes:
      count: how many (k); a row that has fewer before its last position remasks all of them.
    """

    count: int = 1

    def __post_init__(self):
        whole("RemaskWorst.count", self.count, "use RemaskNothing for none")

    def __call__(self, view: StepView) -> Array:
        return _least_likely(view, jnp.full(view.inside.shape[:1], self.count))


@dataclass(frozen=True)
class RemaskWorstPercent(RemaskPolicy):
    """Remasks a share of each row after every step: its least likely tokens, their number rounded down.

    Attributes:
      percent: share of the positions before the last.
    """

    percent: float = 10.0

    def __post_init__(self):
        if not 0.0 < self.percent <= 100.0:
            raise PadirError(f"RemaskWorstPercent.percent: {self.percent} is not in (0, 100]")

    def __call__(self, view: StepView) -> Array:
        # A table made in Python: compiled, a division by 100 may become a multiplication by 0.01, and 2 become 1.99.
        counts = [int(self.percent * size / 100.0) for size in range(view.inside.shape[1])]
        return _least_likely(view, jnp.array(counts)[before_last(view.inside).sum(-1)])


@dataclass(frozen=True)
class RemaskLinear(RemaskPolicy):
    """A linear schedule: after step t of T, n·(T − t)/T of a row's n tokens, the least likely (Ghazvininejad 2019).

    Rounded down; n does not count the last position. Needs at least two steps.
    """

    changes_with_step: ClassVar[bool] = True

    def __call__(self, view: StepView) -> Array:
        left = view.num_steps - view.step - 1
        return _least_likely(view, before_last(view.inside).sum(-1) * left // view.num_steps)


@dataclass(frozen=True)
class RemaskRejected(RemaskPolicy):
    """Remasks the tokens that the model's learnt rejecter would not keep.

    Attributes:
      threshold: tokens that are right with at least this probability, according to the rejecter, are kept.
    """

    threshold: float = 0.5

    needs_rejecter: ClassVar[bool] = True

    def __post_init__(self):
        if not 0.0 < self.threshold < 1.0:
            raise PadirError(f"RemaskRejected.threshold: {self.threshold} is not between 0 and 1")

    def __call__(self, view: StepView) -> Array:
        if view.rejecter_logits is None:
            raise PadirError("RemaskRejected: the model has no rejecter; train one, or choose another remask policy")
        return (jax.nn.sigmoid(view.rejecter_logits) < self.threshold) & view.inside


@dataclass(frozen=True)
class RemaskAny(RemaskPolicy):
    """Remasks what any of several policies would remask, such as a schedule and stutter.

    Attributes:
      policies: two or more.
    """

    policies: tuple[RemaskPolicy, ...]

    def __post_init__(self):
        object.__setattr__(self, "policies", several("RemaskAny.policies", self.policies))

    @property
    def changes_with_step(self) -> bool:
        return any(policy.changes_with_step for policy in self.policies)

    @property
    def needs_rejecter(self) -> bool:
        return any(policy.needs_rejecter for policy in self.policies)

    @property
    def needs_entropy(self) -> bool:
        return any(policy.needs_entropy for policy in self.policies)

    @property
    def accepts(self) -> bool:
        return any(policy.accepts for policy in self.policies)

    def __call__(self, view: StepView) -> Array:
        remask = jnp.zeros_like(view.inside)
        for policy in self.policies:
            remask |= policy(view)
        return remask


# Those of this file; `policies.REMASKING` has all.
POLICIES = (
    RemaskNothing,
    RemaskStutter,
    RemaskWorst,
    RemaskWorstPercent,
    RemaskLinear,
    RemaskRejected,
    RemaskAny,
)


def several(option: str, policies: object) -> tuple:
    """At least two policies that one combines; `policies.check` looks at each. Raises PadirError for anything else."""
    if not isinstance(policies, tuple | list) or len(policies) < 2:
        found = f"{len(policies)} given" if isinstance(policies, tuple | list) else f"{policies!r} is no tuple"
        raise PadirError(f"{option}: {found}; name at least two policies")
    return tuple(policies)


def before_last(inside: Array) -> Array:
    """Positions inside whose right neighbour is inside, too: [N, L] bool."""
    return inside & jnp.pad(inside[:, 1:], ((0, 0), (0, 1)))


def open_positions(view: StepView) -> Array:
    """Positions before the last that the step could write: [N, L] bool."""
    positions = before_last(view.inside)
    return positions if view.writable is None else positions & view.writable


def _least_likely(view: StepView, count: Array) -> Array:
    """The `count` [N] least likely tokens before the last one of each row, leftmost first of equals: [N, L] bool."""
    eligible = before_last(view.inside)
    confidence = jnp.where(eligible, view.log_probs, jnp.inf)
    # The rank of each position: sorting gives positions by rank, and sorting that the inverse.
    rank = jnp.argsort(jnp.argsort(confidence, axis=-1, stable=True), axis=-1)
    return (rank < count[:, None]) & eligible
