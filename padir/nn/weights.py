"""Products of activations with a weight: as trained, rounded to fewer bits, or transposed for decoding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from padir.errors import PadirError
from padir.nn import rounded
from padir.runtime.platforms import choices
from padir.types import Array

# What decoding can round the factors of products with weights to; all other values keep the activations' type.
COMPUTE_TYPES = ("bfloat16", "int8")
# What training can; of int8 too little of a gradient would be left.
TRAINING_TYPES = ("bfloat16",)

# Values of jax_default_matmul_precision with which a TPU rounds float32 factors to bfloat16.
_ROUNDING_PRECISIONS = (None, "default", "fastest", "bfloat16")

# The largest of a row of activations, or of what a weight has for an output, becomes this in int8.
_INT8_LARGEST = 127


def check_compute_type(option: str, compute_type: str | None) -> None:
    """Raises PadirError that names `option` unless it is None or one of `COMPUTE_TYPES`."""
    if compute_type is not None and compute_type not in COMPUTE_TYPES:
        known = ", ".join(COMPUTE_TYPES)
        raise PadirError(f"{option}: unknown {compute_type!r}; choose {known}, auto or None, as the model was trained")


def check_training_type(option: str, compute_type: str | None) -> None:
    """Raises PadirError that names `option` unless it is None or one of `TRAINING_TYPES`."""
    if compute_type is not None and compute_type not in TRAINING_TYPES:
        why = "is only for decoding" if compute_type in COMPUTE_TYPES else "is unknown"
        raise PadirError(f"{option}: {compute_type!r} {why}; choose bfloat16, auto or None (float32, unless on a TPU)")


def project(weight: Array, x: Array, dtype: jnp.dtype) -> Array:
    """weight [out, in], x [..., in] → [..., out] in `dtype`, the type that the sum is added up in.

    In training, `rounded.rounding_products` rounds both factors; the sum is then float32 before it becomes `dtype`.

    With few rows of activations, as in decoding, XLA's matrix product on CPU is up to twice as fast with the weight as
    the first operand, where its rows are contiguous. With many rows, as in training, it is not. One row of a
    type narrower than float32 takes up to four times as long as eight rows, so it is padded. What a platform does is
    in `runtime.platforms`.
    """
    x, rows, how = x.astype(weight.dtype), x.size // x.shape[-1], choices()
    if rounds_in_training():
        summed = rounded.product(weight, x.reshape(rows, -1) if how.flattens_rows else x)
        return summed.reshape(*x.shape[:-1], -1).astype(dtype)
    if rows == 1 and (how.pads_every_row or weight.dtype.itemsize < 4):
        eight = jnp.pad(x.reshape(1, -1), ((0, 7), (0, 0)))
        return project(weight, eight, dtype)[0].reshape(*x.shape[:-1], -1)
    if rows <= how.weight_first_rows:
        return jnp.moveaxis(jnp.einsum("oi,...i->o...", weight, x, preferred_element_type=dtype), 0, -1)
    if not how.flattens_rows:
        return jnp.einsum("...i,oi->...o", x, weight, preferred_element_type=dtype)
    # With one axis of rows the gradient of the weight is one product; over several, XLA would first turn both factors.
    product = jnp.einsum("ri,oi->ro", x.reshape(rows, -1), weight, preferred_element_type=dtype)
    return product.reshape(*x.shape[:-1], -1)


class Plain(nnx.Module):
    """A weight [out, in] as it is, in the type of activations."""

    def __init__(self, weight: Array, dtype: jnp.dtype):
        self.weight = nnx.Param(weight.astype(dtype))

    def __call__(self, x: Array, dtype: jnp.dtype) -> Array:
        """x [..., in] → [..., out] in `dtype`."""
        return project(self.weight[...], x, dtype)


class Turned(nnx.Module):
    """A small weight stored as [in, out], which is faster for few rows of activations."""

    def __init__(self, weight: Array, dtype: jnp.dtype):
        self.weight = nnx.Param(weight.T.astype(dtype))

    def __call__(self, x: Array, dtype: jnp.dtype) -> Array:
        """x [..., in] → [..., out] in `dtype`."""
        weight = self.weight[...]
        return jnp.einsum("...i,io->...o", x.astype(weight.dtype), weight, preferred_element_type=dtype)


class Bfloat16(nnx.Module):
    """Both factors rounded to bfloat16; their products are added up in the type of the result."""

    def __init__(self, weight: Array):
        self.weight = nnx.Param(weight.astype(jnp.bfloat16))

    def __call__(self, x: Array, dtype: jnp.dtype) -> Array:
        """x [..., in] → [..., out] in `dtype`."""
        return project(self.weight[...], x, dtype)


class Int8(nnx.Module):
    """Both factors rounded to 8 bits; their products are added up in int32.

    A weight has a scale for every output, found once; activations have one for every row, found at each request
    (symmetric dynamic quantisation).
    """

    def __init__(self, weight: Array):
        scaled, scale = to_int8(weight)
        self.weight, self.scale = nnx.Param(scaled), nnx.Param(scale[:, 0])

    def __call__(self, x: Array, dtype: jnp.dtype) -> Array:
        """x [..., in] → [..., out] in `dtype`."""
        rounded, scale = to_int8(x)
        summed = project(self.weight[...], rounded, jnp.dtype("int32"))
        return (summed.astype(jnp.float32) * scale * self.scale[...]).astype(dtype)


def to_int8(x: Array) -> tuple[Array, Array]:
    """x [..., n] → (int8 [..., n], scale [..., 1] float32) whose product is nearly x; a row of zeros has scale 1."""
    x = x.astype(jnp.float32)
    largest = jnp.abs(x).max(axis=-1, keepdims=True)
    # What is not a number stays so.
    scale = jnp.where(largest == 0, 1.0, largest / _INT8_LARGEST)
    return jnp.round(x / scale).astype(jnp.int8), scale


def products_round() -> bool:
    """Whether the matrix unit rounds float32 factors to bfloat16, so that weights may be stored rounded.

    JAX_DEFAULT_MATMUL_PRECISION=highest turns it off: products are then of true float32 on every platform.
    """
    return choices().rounds_weights and jax.config.jax_default_matmul_precision in _ROUNDING_PRECISIONS


def rounds_in_training() -> bool:
    """Whether products are to round their factors and the matrix unit does not do it anyway."""
    return rounded.active() and not products_round()


def factor_type(dtype: jnp.dtype, compute_type: str | None) -> jnp.dtype:
    """The floating-point type in which decoding keeps the factors of products, for activations in `dtype`."""
    rounds = compute_type == "bfloat16" or (compute_type is None and products_round())
    return jnp.dtype("bfloat16") if rounds else dtype


def for_products(weight: Array, dtype: jnp.dtype, compute_type: str | None) -> nnx.Module:
    """The module that decoding uses in place of a weight [out, in].

    Args:
      weight: as it was trained.
      dtype: of activations.
      compute_type: of `COMPUTE_TYPES`, or None for `dtype`, or for bfloat16 where products round to it anyway.
    """
    if compute_type == "int8":
        return Int8(weight)
    if factor_type(dtype, compute_type) != dtype:
        return Bfloat16(weight)
    return Turned(weight, dtype) if weight.size <= choices().turned_weight_size else Plain(weight, dtype)
