"""What remasked positions hold in the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import jax.numpy as jnp

from padir import rng
from padir.decoding.initial import random_pieces
from padir.decoding.sampling import argmax
from padir.decoding.state import ReplaceView
from padir.errors import PadirError
from padir.types import EOS_ID, Array


class ReplacePolicy(Protocol):
    """Chooses what the next step reads where a token was remasked."""

    # Whether the loop shall carry the sum of all steps' logits: [N, L, V], as much again as a step's own.
    needs_logits_sum: ClassVar[bool] = False

    # Whether the loop shall draw `ReplaceView.noise`.
    needs_noise: ClassVar[bool] = False

    def __call__(self, view: ReplaceView) -> Array:
        """A token for every position, [N, L] int32; only those of remasked ones are used."""


@dataclass(frozen=True)
class ReplaceWithInitial(ReplacePolicy):
    """The token that the position started with: MASK, a random one, or EOS at the end (the paper's recipe)."""

    def __call__(self, view: ReplaceView) -> Array:
        return view.initial


@dataclass(frozen=True)
class ReplaceWithPrevious(ReplacePolicy):
    """The token that the step read there, so that what it wrote is undone."""

    def __call__(self, view: ReplaceView) -> Array:
        return view.read


@dataclass(frozen=True)
class ReplaceWithSummedLogits(ReplacePolicy):
    """The token with the largest sum of logits over all steps, as if the steps voted.

    In a row whose tokens no longer change the sum still does. Stopping there saves time, but it is not a fixed point.
    """

    needs_logits_sum: ClassVar[bool] = True

    def __call__(self, view: ReplaceView) -> Array:
        return argmax(view.logits_sum)


@dataclass(frozen=True)
class ReplaceWithRandom(ReplacePolicy):
    """A uniformly random piece, another in each step: noise again instead of MASK. The last position gets its EOS back.

    For models that were trained with random tokens; starts with them, too (`StartWithRandom`).
    """

    needs_noise: ClassVar[bool] = True

    def __call__(self, view: ReplaceView) -> Array:
        # No start but its last position holds EOS.
        return jnp.where(view.initial == EOS_ID, view.initial, view.noise)


POLICIES = (ReplaceWithInitial, ReplaceWithPrevious, ReplaceWithSummedLogits, ReplaceWithRandom)


def noise_of_step(keys: Array, step: Array, hypotheses: int, inside: Array, num_pieces: int | None) -> Array:
    """Random pieces for every position in this step: keys [B], inside [N, L] → [N, L] int32."""
    if num_pieces is None:
        raise PadirError("refine: Refinement.replace draws random pieces; say how many there are in num_pieces")
    # Sampling draws from the step's own keys, and counts hypotheses up from 0: these keys are none of its.
    apart = rng.folded(rng.folded(keys, step), jnp.uint32(0xFFFFFFFF))
    return random_pieces(rng.numbered(apart, hypotheses).reshape(-1), inside.shape[1], num_pieces)
