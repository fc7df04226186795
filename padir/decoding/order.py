"""In which order positions come to observe each other: how a disentangled model decodes (DisCo: Kasai et al. 2020).

Every position has a rank, and observes the tokens of those that have a lower one. All are predicted in every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp

from padir.decoding.state import StepView
from padir.types import Array

# The rank of a position whose token is known: all others observe it, and no step writes it.
KNOWN = -1


class OrderPolicy(Protocol):
    """Ranks positions after each step."""

    def __call__(self, view: StepView, ranks: Array) -> Array:
        """The ranks that the next step goes by.

        Args:
          view: what the step wrote.
          ranks: [N, L] int32, those that it went by; equal in the first step, which therefore observes no word.

        Returns:
          [N, L] int32. Those of known positions and beyond the length must stay: `KNOWN`, and L.
        """


@dataclass(frozen=True)
class EasyFirst(OrderPolicy):
    """Parallel easy-first: positions observe those that the first step was surer of.

    The first step observes no word, and ranks positions by the probability of its tokens, for good; of equal ones the
    first is easier. Each later step predicts every position from the last step's tokens of all easier ones.
    """

    def __call__(self, view: StepView, ranks: Array) -> Array:
        words = (ranks != KNOWN) & view.inside
        by_ease = jnp.argsort(jnp.where(words, -view.log_probs, jnp.inf), axis=-1, stable=True)
        first = jnp.where(words, jnp.argsort(by_ease, axis=-1).astype(ranks.dtype), ranks)
        return jnp.where(view.step == 0, first, ranks)


POLICIES = (EasyFirst,)


def initial_ranks(inside: Array) -> Array:
    """Ranks in the first step: equal, but for the EOS at the end, which is known.

    `inside` [N, L] bool marks positions within each length. Returns [N, L] int32.
    """
    last = inside & ~jnp.pad(inside[:, 1:], ((0, 0), (0, 1)))
    return jnp.where(inside, jnp.where(last, KNOWN, 0), inside.shape[1]).astype(jnp.int32)


def contexts(ranks: Array) -> Array:
    """Which tokens each position observes, for `DecodePlan.observing`: ranks [N, L] int32 → [N, L, L] bool."""
    return ranks[:, None, :] < ranks[:, :, None]
