"""Products of training whose factors are rounded to bfloat16 and whose sums are float32 (`train.compute_type`).

Both products of a gradient are rounded in the same way: JAX's own gradient of such a product would multiply bfloat16
with float32, which no hardware does, and would return a weight's gradient in bfloat16.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import jax
import jax.numpy as jnp

from padir.runtime.platforms import choices
from padir.types import Array

_ROUNDED = jnp.dtype("bfloat16")
_SUMMED = jnp.dtype("float32")

_active: ContextVar[bool] = ContextVar("padir_rounded_products", default=False)


@contextlib.contextmanager
def rounding_products(wanted: bool = True) -> Iterator[None]:
    """Context manager: products with weights in functions traced inside have rounded factors if `wanted`."""
    token = _active.set(wanted)
    try:
        yield
    finally:
        _active.reset(token)


def active() -> bool:
    """Whether a function is being traced inside `rounding_products`."""
    return _active.get()


@jax.custom_vjp
def product(weight: Array, x: Array) -> Array:
    """weight [out, in], x [..., in], floats → [..., out] float32, of factors rounded to bfloat16.

    The gradients have the types of `weight` and `x`; they are sums in float32 of rounded factors, too.
    """
    return _forward(weight, x)[0]


# What the backward pass keeps: both rounded factors, and an empty array of each type that a gradient must have.
_Kept = tuple[Array, Array, Array, Array]


def _forward(weight: Array, x: Array) -> tuple[Array, _Kept]:
    left, right = x.astype(_ROUNDED), weight.astype(_ROUNDED)
    kept = left, right, jnp.zeros(0, x.dtype), jnp.zeros(0, weight.dtype)
    return _dot(left, right, (x.ndim - 1,), (1,)), kept


def _backward(kept: _Kept, gradient: Array) -> tuple[Array, Array]:
    x, weight, like_x, like_weight = kept
    gradient = gradient.astype(_ROUNDED)
    of_x = _dot(gradient, weight, (gradient.ndim - 1,), (0,))
    return _over_rows(gradient, x).astype(like_weight.dtype), of_x.astype(like_x.dtype)


product.defvjp(_forward, _backward)


def _over_rows(gradient: Array, x: Array) -> Array:
    """Gradient [..., out], x [..., in] → the weight's gradient [out, in] float32."""
    if not choices().turns_in_gradients:
        rows = tuple(range(x.ndim - 1))
        return _dot(gradient, x, rows, rows)
    gradient, x = (array.reshape(-1, array.shape[-1]) for array in (gradient, x))
    rows, (outer, inner) = len(x), (gradient.shape[-1], x.shape[-1])
    # The product needs one factor turned. Turning the other one gives the result turned, which is float32.
    if rows * outer <= rows * inner + 2 * outer * inner:
        return _dot_of_turned(gradient, x)
    # The barrier keeps XLA from asking the library for a turned result, which it cannot write.
    return jax.lax.optimization_barrier(_dot_of_turned(x, gradient)).T


def _dot_of_turned(left: Array, right: Array) -> Array:
    """[rows, m], [rows, n] bfloat16 → [m, n] float32.

    XLA on CPU multiplies bfloat16 by its library only if the left factor is summed along its last axis; otherwise it
    converts both to float32. It must not see that this axis was turned: neither by merging it into the product, which
    the barrier prevents, nor by the layout of the turned array, which the axis of 1 resets.
    """
    turned = jax.lax.optimization_barrier(left.T)[None]
    return jax.lax.dot_general(turned, right[None], (((2,), (1,)), ((0,), (0,))), preferred_element_type=_SUMMED)[0]


def _dot(left: Array, right: Array, of_left: tuple[int, ...], of_right: tuple[int, ...]) -> Array:
    """The product of rounded factors over these axes of either, added up in float32."""
    return jax.lax.dot_general(left, right, ((of_left, of_right), ((), ())), preferred_element_type=_SUMMED)
