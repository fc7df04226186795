"""Verified decoding: which drafted tokens the verifier lets stand, and what it writes where it does not.

A policy sees a window of positions in the order of the text. Everything up to the first rejected token is kept, and
that token is replaced, so what a policy says of later positions does not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp

from padir import rng
from padir.checks import whole
from padir.decoding.sampling import COLDEST, Sampling, argmax, take
from padir.errors import PadirError
from padir.types import PAD_ID, Array

# Keys of a round's random numbers: of the draft, of accepting it, of what replaces it.
DRAW, ACCEPT, REPLACE = range(3)


class AcceptPolicy(Protocol):
    """Decides about drafted tokens."""

    # How the draft must be drawn.
    sampling: ClassVar[Sampling] = Sampling()
    # Whether it reads the logits that the draft was drawn from; it then allows one draft a round.
    needs_draft_logits: ClassVar[bool] = False

    def __call__(
        self, log_probs: Array, draft: Array, draft_logits: Array | None, keys: Array | None
    ) -> tuple[Array, Array]:
        """Decides about a window of W positions.

        Args:
          log_probs: [N, W, V] float32, the verifier's log-probability of each token, given the tokens on the left;
            -inf forbids a token.
          draft: [N, W] int32; 0 where nothing was drafted, which is never accepted.
          draft_logits: [N, W, V] float32, what the draft was drawn from; None where nothing was, or nobody asked.
          keys: [N], randomness of this round, or None; unused by a policy that is not random.

        Returns:
          (accepted [N, W] bool, replacements [N, W] int32).
        """


@dataclass(frozen=True)
class AcceptGreedy(AcceptPolicy):
    """Accepts what greedy decoding of the verifier would write: the output is exactly that of greedy decoding."""

    def __call__(
        self, log_probs: Array, draft: Array, draft_logits: Array | None = None, keys: Array | None = None
    ) -> tuple[Array, Array]:
        del draft_logits, keys
        choice = argmax(log_probs)
        return draft == choice, choice


@dataclass(frozen=True)
class AcceptClose(AcceptPolicy):
    """Accepts what is nearly as good for the verifier as its own choice (Xia et al. 2023, SpecDec).

    A token must be among the verifier's `top` likeliest (β in their paper), and its log-probability at most `margin`
    nats below that of the likeliest (τ). More is accepted in a round, but the output may differ from greedy decoding.
    """

    top: int = 3
    margin: float = 1.0

    def __post_init__(self):
        whole("AcceptClose.top", self.top)
        if not 0.0 <= self.margin < math.inf:
            raise PadirError(f"AcceptClose.margin: {self.margin} is not a finite number of at least 0")

    def __call__(
        self, log_probs: Array, draft: Array, draft_logits: Array | None = None, keys: Array | None = None
    ) -> tuple[Array, Array]:
        del draft_logits, keys
        drafted = take(log_probs, draft[..., None])
        # Only tokens that are likelier count, so that of equal ones all have the same rank.
        rank = (log_probs > drafted).sum(axis=-1)
        close = drafted[..., 0] >= log_probs.max(axis=-1) - self.margin
        return close & (rank < self.top) & jnp.isfinite(drafted[..., 0]), argmax(log_probs)


@dataclass(frozen=True)
class AcceptSampled(AcceptPolicy):
    """Samples from the verifier at a temperature: the output has the law of its own sampling.

    The draft is drawn from the drafter's distribution q at the same temperature. A token x is accepted with probability
    min(1, p(x) / q(x)), where p is the verifier's distribution. In place of a rejected one stands a draw from
    max(0, p - q), normalised (Leviathan et al. 2023, Chen et al. 2023).
    """

    temperature: float = 1.0

    needs_draft_logits: ClassVar[bool] = True

    def __post_init__(self):
        if not 0.0 < self.temperature < math.inf:
            raise PadirError(
                f"AcceptSampled.temperature: {self.temperature} is not a positive number; for 0 use AcceptGreedy"
            )

    @property
    def sampling(self) -> Sampling:
        """How the draft is drawn."""
        return Sampling(temperature=self.temperature)

    def __call__(self, log_probs: Array, draft: Array, draft_logits: Array | None, keys: Array) -> tuple[Array, Array]:
        wanted = self._softmax(log_probs)
        # Where nothing was drafted nothing is accepted, and the replacement is a draw from the verifier itself.
        drafted, offered = (draft != PAD_ID)[..., None], jnp.zeros_like(wanted)
        if draft_logits is not None:
            offered = jnp.where(drafted, self._softmax(draft_logits), 0.0)
        ratio = (take(wanted, draft[..., None]) / take(offered, draft[..., None]))[..., 0]
        # A draw for each place in the window, whatever its size.
        places = rng.numbered(rng.folded(keys, ACCEPT), draft.shape[1])
        draw = jax.vmap(jax.vmap(jax.random.uniform))(places)
        rest = jnp.maximum(wanted - offered, 0.0)
        # Nothing is left where both are equal; then nothing is rejected, either.
        rest = jnp.where(rest.sum(axis=-1, keepdims=True) > 0, rest, wanted)
        replacement, _ = Sampling(temperature=1.0)(jnp.log(rest), rng.folded(keys, REPLACE))
        return drafted[..., 0] & (draw < ratio), replacement

    def _softmax(self, logits: Array) -> Array:
        """Probabilities at the temperature: [..., V] float32 → [..., V] float32."""
        # The largest is subtracted first, because divided by a temperature near 0 it would become infinite.
        return jax.nn.softmax((logits - logits.max(axis=-1, keepdims=True)) / max(self.temperature, COLDEST), axis=-1)


POLICIES = (AcceptGreedy, AcceptClose, AcceptSampled)
