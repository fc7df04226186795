"""`compute_type = 'auto'`: the type in which the devices at hand multiply fastest, in decoding or in training."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from padir.errors import PadirError
from padir.nn.rounded import rounding_products
from padir.nn.weights import (
    COMPUTE_TYPES,
    TRAINING_TYPES,
    check_compute_type,
    check_training_type,
    for_products,
    project,
)
from padir.runtime import platforms
from padir.runtime.cpu import x86_extensions

AUTO = "auto"

# A type that rounds must be at least so many times as fast as float32 to be chosen by measuring.
_WORTH_ROUNDING = 1.1
# Products of decoding: so many rows of activations with weights [out, in] of the paper's feed-forward layers.
_ROWS, _OUT, _IN = 32, 2048, 512
_PRODUCTS, _ROUNDS = 8, 12
# Products of training: 16 sentences of 32 tokens.
_TRAINING_ROWS = 512

# Matrix units of x86, by their extension: the fastest type first. Extensions of its vector units prove nothing: with
# avx512_bf16, products of rounded factors are faster than float32 on AMD's processors, and slower on Intel's.
_OF_X86 = (("int8", "amx_int8"), ("bfloat16", "amx_bf16"))

_Seconds = dict[str | None, float]


def resolved(option: str, compute_type: str | None) -> str | None:
    """A compute type of decoding in which 'auto' has been replaced by what it stands for here.

    Args:
      option: what to call it in an error.
      compute_type: one of `weights.COMPUTE_TYPES`, 'auto' or None.

    Returns:
      One of `weights.COMPUTE_TYPES`, or None for the type that the model was trained in.

    Raises:
      PadirError: it is unknown; or 'auto' on several hosts without TPUs, which could decide differently; or 'auto'
        while a program is compiled for devices that are not here, and whose fastest type only measuring could tell.
    """
    if compute_type != AUTO:
        check_compute_type(option, compute_type)
        return compute_type
    return _fastest(option, COMPUTE_TYPES, _measured)


def resolved_for_training(option: str, compute_type: str | None) -> str | None:
    """A compute type of training in which 'auto' has been replaced; like `resolved`, for `weights.TRAINING_TYPES`."""
    if compute_type != AUTO:
        check_training_type(option, compute_type)
        return compute_type
    return _fastest(option, TRAINING_TYPES, _measured_in_training)


def _fastest(option: str, types: tuple[str, ...], measured: Callable[[str], str | None]) -> str | None:
    """The fastest of `types` and None; where it is not known, as `measured` on a platform."""
    platform = platforms.current()
    if platform == "tpu":
        return "bfloat16"
    if platform != jax.default_backend():
        raise PadirError(f"{option}: 'auto' has to measure the devices, which are not here; name the type")
    if jax.process_count() > 1:
        raise PadirError(f"{option}: with 'auto' each process would decide for itself; name the type")
    extensions = x86_extensions() if platform == "cpu" else frozenset()
    known = (kind for kind, extension in _OF_X86 if kind in types and extension in extensions)
    return next(known, None) or measured(platform)


@functools.cache
def _measured(platform: str) -> str | None:
    """The fastest type by products of decoding on this `platform`, measured in about a second."""
    return _worth_rounding(product_seconds())


@functools.cache
def _measured_in_training(platform: str) -> str | None:
    """The fastest type by products of training on this `platform`, measured in about a second."""
    return _worth_rounding(training_product_seconds())


def _worth_rounding(seconds: _Seconds) -> str | None:
    fastest = min(seconds, key=seconds.__getitem__)
    return fastest if seconds[fastest] * _WORTH_ROUNDING < seconds[None] else None


def product_seconds() -> _Seconds:
    """Seconds of a product of activations [32, 512] with a weight [2048, 512], the least of several, by type."""
    weight, activations = jnp.full((_OUT, _IN), 0.01), jnp.full((_ROWS, _IN), 0.5)

    def run_of(compute_type: str | None) -> jax.stages.Compiled:
        product = for_products(weight, jnp.dtype("float32"), compute_type)

        def run(x: jax.Array) -> jax.Array:
            # One after another: each reads what the one before wrote.
            for _ in range(_PRODUCTS):
                x = product(x, jnp.dtype("float32"))[:, :_IN]
            return x

        return jax.jit(run).lower(activations).compile()

    least = _least_seconds({kind: run_of(kind) for kind in (None, *COMPUTE_TYPES)}, activations)
    return {kind: seconds / _PRODUCTS for kind, seconds in least.items()}


def training_product_seconds() -> _Seconds:
    """Seconds of a product of activations [512, 512] with a weight [2048, 512] and of its gradients, by type."""
    weight, activations = jnp.full((_OUT, _IN), 0.01), jnp.full((_TRAINING_ROWS, _IN), 0.5)

    def run_of(compute_type: str | None) -> jax.stages.Compiled:
        def run(x: jax.Array) -> tuple[jax.Array, ...]:
            with rounding_products(compute_type is not None):
                result, gradients = jax.vjp(lambda *factors: project(*factors, jnp.dtype("float32")), weight, x)
                return gradients(result)

        return jax.jit(run).lower(activations).compile()

    return _least_seconds({kind: run_of(kind) for kind in (None, *TRAINING_TYPES)}, activations)


def _least_seconds(programs: dict[str | None, jax.stages.Compiled], activations: jax.Array) -> _Seconds:
    """The least seconds of several calls of each program, which take turns."""
    least = dict.fromkeys(programs, float("inf"))
    for _ in range(_ROUNDS):
        for kind, program in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(program(activations))
            least[kind] = min(least[kind], time.perf_counter() - began)
    return least
