"""Verifiers of prefixes, for the samplers that generate under one.

A sampler rejects a prefix if its verifier's judgement lies below a threshold (`rejects`). Verifiers that are sure of
themselves say 0 or 1. All of these are pytrees: what they have learnt is traced, so `jit` takes them as arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from padir.checks import finite, whole
from padir.decoding.generation import Rows, Verifier, last_tokens
from padir.errors import PadirError
from padir.types import EOS_ID, Array, PyTree


def for_rows(judge: PyTree, rows: Rows, key: Array) -> PyTree:
    """A judge as it judges the rows of one batch.

    Some judges need more than a prefix: a `Listed` the rows' limits, a `RandomVerifier` their numbers. They have a
    method `for_rows(rows, key)`. All others stay as they are.

    Args:
      judge: a `Verifier` or `ValueFunction`.
      rows: what the sampler is given.
      key: [] the sampler's randomness.
    """
    return judge.for_rows(rows, key) if hasattr(judge, "for_rows") else judge


# Of samplers that have none of their own.
THRESHOLD = 0.5


def rejects(judgements: Array, threshold: float | None) -> Array:
    """Which prefixes a sampler rejects: judgements [N] float32 → [N] bool; None is `THRESHOLD`."""
    return judgements < (THRESHOLD if threshold is None else threshold)


def with_threshold(sampler: Any, threshold: float) -> Any:
    """The sampler, a frozen dataclass, with a verifier's own threshold if it takes one and has none of its own."""
    takes = getattr(sampler, "threshold", threshold) is None
    return dataclasses.replace(sampler, threshold=threshold) if takes else sampler


def check_threshold(name: str, value: object) -> None:
    """Raises PadirError unless the threshold called `name` is a number in [0, 1], 0 rejects nothing, or None."""
    if value is None:
        return
    finite(name, value)
    if not 0.0 <= value <= 1.0:
        raise PadirError(f"{name}: {value} is not in [0, 1]; a prefix is rejected if its judgement lies below")


def ends_in(tokens: Array, lengths: Array, delimiters: Sequence[int]) -> Array:
    """Prefixes whose last token is EOS or one of `delimiters`: [N, L] int32, [N] int32 → [N] bool."""
    ends = jnp.asarray((EOS_ID, *delimiters), jnp.int32)
    return (last_tokens(tokens, lengths)[:, None] == ends).any(axis=-1) & (lengths > 0)


@struct.dataclass
class AlwaysAccept:
    """A `Verifier` that objects to nothing: generation costs what it costs under one, and is that of the generator."""

    def __call__(self, tokens: Array, lengths: Array, features: Array) -> Array:
        del tokens, features
        return jnp.ones(lengths.shape, jnp.float32)


@struct.dataclass
class RandomVerifier:
    """A `Verifier` that knows nothing: its judgements are uniform in [0, 1) and independent for different prefixes.

    If generation gains as much under it as under another verifier, the gain is due to drawing again and not to what the
    other one knows. The judgement is a hash of the seed, the row's salt and the tokens that the row has written. So it
    depends on neither the batch nor the room behind the prefix, and a row that comes back to a prefix gets the same
    judgement again. (The thesis's random verifier draws anew at each call, which differs only there.) Tokens do not
    tell the source, nor the run: rows of different sources or runs that write the same prefix need different salts.
    `for_rows` gives them.

    Attributes:
      seed: another one gives other judgements (static).
      salt: [N] uint32, of each row; None if all rows share the judgements.
    """

    seed: int = struct.field(pytree_node=False, default=0)
    salt: Array | None = None

    def for_rows(self, rows: Rows, key: Array) -> RandomVerifier:
        """With a salt for each row, which depends on its number and the key alone."""
        salts = jax.vmap(lambda sample: jax.random.bits(jax.random.fold_in(key, sample)))(rows.sample_ids)
        return self.replace(salt=salts)

    def __call__(self, tokens: Array, lengths: Array, features: Array) -> Array:
        del features
        places = jnp.arange(tokens.shape[1], dtype=jnp.uint32)
        # Any well mixed function of token and place: their sum then tells apart prefixes of any length.
        hashes = _mixed(tokens.astype(jnp.uint32) * np.uint32(0x9E3779B1) + _mixed(places + 1))
        of_prefix = jnp.where(places < lengths[:, None], hashes, 0).sum(axis=-1, dtype=jnp.uint32)
        salts = jnp.zeros_like(of_prefix) if self.salt is None else self.salt
        key = jax.random.key(self.seed)

        def of_row(salt: Array, prefix: Array) -> Array:
            return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, salt), prefix))

        return jax.vmap(of_row)(salts, of_prefix)


def _mixed(values: Array) -> Array:
    """A bijection of uint32 in which each bit depends on all bits."""
    values = (values ^ (values >> 16)) * np.uint32(0x7FEB352D)
    values = (values ^ (values >> 15)) * np.uint32(0x846CA68B)
    return values ^ (values >> 16)


@struct.dataclass
class Exact:
    """A `Verifier` that is sure of itself, from a rule such as a grammar's.

    Attributes:
      accepts: (tokens [N, L] int32, lengths [N] int32) → [N] bool, which prefixes are fine; traceable, such as an
        automaton's run. A rule in Python goes through `jax.pure_callback`, which is slow (static).
    """

    accepts: Callable[[Array, Array], Array] = struct.field(pytree_node=False)

    def __call__(self, tokens: Array, lengths: Array, features: Array) -> Array:
        del features
        return self.accepts(tokens, lengths).astype(jnp.float32)


@struct.dataclass
class Probe:
    """A `Verifier` that reads the generator's hidden states: linear, or a perceptron with ReLU between its layers.

    Attributes:
      layers: (kernel [in, out], bias [out]) of each layer, float32; the last has one output, the log-odds of "fine".
      mean, scale: [E] float32, subtracted from the features, which are then divided by the scale; None leaves them.
    """

    layers: tuple[tuple[Array, Array], ...]
    mean: Array | None = None
    scale: Array | None = None

    @classmethod
    def fresh(cls, sizes: Sequence[int], key: Array) -> Probe:
        """A probe with random kernels: `sizes` are those of the features and of the hidden layers, none if linear."""
        shapes = list(zip(sizes, (*sizes[1:], 1), strict=True))
        keys = zip(jax.random.split(key, len(shapes)), shapes, strict=True)
        kernels = [jax.nn.initializers.lecun_normal()(each, shape) for each, shape in keys]
        return cls(tuple((kernel, jnp.zeros(kernel.shape[1])) for kernel in kernels))

    def log_odds(self, features: Array) -> Array:
        """Log-odds that prefixes are fine: features [N, E] float32 → [N] float32."""
        hidden = features if self.mean is None else features - self.mean
        hidden = hidden if self.scale is None else hidden / self.scale
        for index, (kernel, bias) in enumerate(self.layers):
            hidden = (jax.nn.relu(hidden) if index else hidden) @ kernel + bias
        return hidden[:, 0]

    def __call__(self, tokens: Array, lengths: Array, features: Array) -> Array:
        del tokens, lengths
        return jax.nn.sigmoid(self.log_odds(features))


@struct.dataclass
class BlockEnd:
    """A `Verifier` that has a say at the ends of blocks alone; of other prefixes it says 1.

    A block ends in EOS, in a delimiter, or where the prefix, prompt included, has a multiple of `size` tokens.

    Attributes:
      verifier: what judges the prefixes that end a block.
      size: tokens of a block; None if only delimiters end it (static).
      delimiters: ids of tokens that end a block (static).
    """

    verifier: Verifier
    size: int | None = struct.field(pytree_node=False, default=None)
    delimiters: tuple[int, ...] = struct.field(pytree_node=False, default=())

    def __post_init__(self):
        if self.size is not None:
            whole("BlockEnd.size", self.size, "None leaves it to the delimiters")

    def for_rows(self, rows: Rows, key: Array) -> BlockEnd:
        """With its verifier as that judges the rows."""
        return self.replace(verifier=for_rows(self.verifier, rows, key))

    def __call__(self, tokens: Array, lengths: Array, features: Array) -> Array:
        ends = ends_in(tokens, lengths, self.delimiters)
        if self.size is not None:
            ends |= (lengths % self.size == 0) & (lengths > 0)
        return jnp.where(ends, self.verifier(tokens, lengths, features), 1.0)
