"""How to start: the first hypothesis of a refinement.

The last position of every start is EOS, as in training and in the T5X release. The length is known, and a hypothesis
of MASK alone would look the same from every position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp

from padir import rng
from padir.errors import PadirError
from padir.nn.masks import length_mask
from padir.types import EOS_ID, PAD_ID, Array, TokenIds


class StartPolicy(Protocol):
    """Makes the initial tokens."""

    # Whether other keys make another start: several parallel starts of one length are pointless otherwise.
    is_random: ClassVar[bool] = False

    def check(self, max_length: int, ids: TokenIds) -> None:
        """Raises PadirError if there is no such start for targets of up to `max_length` tokens."""

    def __call__(self, keys: Array, lengths: Array, max_length: int, ids: TokenIds) -> Array:
        """keys [N], lengths [N] int32, the longest target → tokens [N, max_length] int32, 0 beyond each length."""


@dataclass(frozen=True)
class StartWithMask(StartPolicy):
    """Every position is MASK, the last EOS."""

    def __call__(self, keys: Array, lengths: Array, max_length: int, ids: TokenIds) -> Array:
        del keys
        return end(jnp.full((lengths.shape[0], max_length), ids.mask_id, jnp.int32), lengths)


@dataclass(frozen=True)
class StartWithMaskRange(StartPolicy):
    """Every position has a mask of its own, MASK − longest target + position; the last is EOS.

    The ids are the release's. They need not be reserved: a longest target beyond the vocabulary's extra ids
    reaches into its pieces.
    """

    def check(self, max_length: int, ids: TokenIds) -> None:
        if ids.mask_id - max_length <= EOS_ID:
            raise PadirError(
                f"StartWithMaskRange: {max_length} masks do not fit below MASK = {ids.mask_id}; "
                "use StartWithMask, or a shorter longest target"
            )

    def __call__(self, keys: Array, lengths: Array, max_length: int, ids: TokenIds) -> Array:
        del keys
        self.check(max_length, ids)
        masks = jnp.arange(ids.mask_id - max_length, ids.mask_id, dtype=jnp.int32)
        return end(jnp.broadcast_to(masks, (lengths.shape[0], max_length)), lengths)


@dataclass(frozen=True)
class StartWithRandom(StartPolicy):
    """Every position is a uniformly random piece, the last EOS.

    A row draws with its own key, and a position's piece is the same whatever the length and the bucket. So neither the
    neighbours in the batch nor padding can change a translation.
    """

    is_random: ClassVar[bool] = True

    def __call__(self, keys: Array, lengths: Array, max_length: int, ids: TokenIds) -> Array:
        return end(random_pieces(keys, max_length, ids.num_pieces), lengths)


POLICIES = (StartWithMask, StartWithMaskRange, StartWithRandom)


def end(tokens: Array, lengths: Array) -> Array:
    """Puts EOS at the last position of each length [N] and padding beyond it: tokens [N, L] → [N, L] int32."""
    inside = length_mask(lengths, tokens.shape[1])
    last = jnp.arange(tokens.shape[1]) == lengths[:, None] - 1
    return jnp.where(inside, jnp.where(last, EOS_ID, tokens), PAD_ID)


def random_pieces(keys: Array, length: int, num_pieces: int) -> Array:
    """Uniformly random ids of pieces, by a key for each row: keys [N] → [N, length] int32; none depends on `length`."""

    def draw(key: Array) -> Array:
        return jax.random.randint(key, (), EOS_ID + 1, num_pieces, jnp.int32)

    return jax.vmap(jax.vmap(draw))(rng.numbered(keys, length))
