"""What remasked positions hold in the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from padir.decoding.sampling import argmax
from padir.types import Array


class ReplacePolicy(Protocol):
    """Chooses what the next step reads where a token was remasked."""

    # Whether the loop shall carry the sum of all steps' logits: [N, L, V], as much again as a step's own.
    needs_logits_sum: ClassVar[bool] = False

    def __call__(self, initial: Array, read: Array, logits_sum: Array | None) -> Array:
        """Chooses a token for every position; only remasked ones are used.

        Args:
          initial: [N, L] int32, the first hypothesis.
          read: [N, L] int32, what the step read.
          logits_sum: [N, L, V] float32, over all steps so far with this one, or None if not needed.

        Returns:
          [N, L] int32.
        """


@dataclass(frozen=True)
class ReplaceWithInitial(ReplacePolicy):
    """The token that the position started with: MASK, a random one, or EOS at the end (the paper's recipe)."""

    def __call__(self, initial: Array, read: Array, logits_sum: Array | None) -> Array:
        return initial


@dataclass(frozen=True)
class ReplaceWithPrevious(ReplacePolicy):
    """The token that the step read there, so that what it wrote is undone."""

    def __call__(self, initial: Array, read: Array, logits_sum: Array | None) -> Array:
        return read


@dataclass(frozen=True)
class ReplaceWithSummedLogits(ReplacePolicy):
    """The token with the largest sum of logits over all steps, as if the steps voted.

    In a row whose tokens no longer change the sum still does. Stopping there saves time, but it is not a fixed point.
    """

    needs_logits_sum: ClassVar[bool] = True

    def __call__(self, initial: Array, read: Array, logits_sum: Array | None) -> Array:
        return argmax(logits_sum)


POLICIES = (ReplaceWithInitial, ReplaceWithPrevious, ReplaceWithSummedLogits)
