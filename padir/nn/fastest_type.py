"""`compute_type = 'auto'`: the type in which the devices at hand multiply fastest."""

from __future__ import annotations

import functools
import time

import jax
import jax.numpy as jnp

from padir.errors import PadirError
from padir.nn.weights import COMPUTE_TYPES, check_compute_type, for_products
from padir.runtime import platforms
from padir.runtime.cpu import x86_extensions

AUTO = "auto"

# A type that rounds must be at least so many times as fast as float32 to be chosen by measuring.
_WORTH_ROUNDING = 1.1
# Products of decoding: so many rows of activations with weights [out, in] of the paper's feed-forward layers.
_ROWS, _OUT, _IN = 32, 2048, 512
_PRODUCTS, _ROUNDS = 8, 12


def resolved(option: str, compute_type: str | None) -> str | None:
    """A compute type in which 'auto' has been replaced by what it stands for here.

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
    platform = platforms.current()
    if platform == "tpu":
        return "bfloat16"
    if platform != jax.default_backend():
        raise PadirError(f"{option}: 'auto' has to measure the devices, which are not here; name the type")
    if jax.process_count() > 1:
        raise PadirError(f"{option}: with 'auto' each process would decide for itself; name the type")
    extensions = x86_extensions() if platform == "cpu" else frozenset()
    if not extensions:
        return _measured(platform)
    if "amx_int8" in extensions:
        return "int8"
    return "bfloat16" if "avx512_bf16" in extensions else None


@functools.cache
def _measured(platform: str) -> str | None:
    """The fastest type by products of decoding on this `platform`, measured in about a second."""
    seconds = product_seconds()
    fastest = min(COMPUTE_TYPES, key=seconds.__getitem__)
    return fastest if seconds[fastest] * _WORTH_ROUNDING < seconds[None] else None


def product_seconds() -> dict[str | None, float]:
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

    programs = {kind: run_of(kind) for kind in (None, *COMPUTE_TYPES)}
    least = dict.fromkeys(programs, float("inf"))
    for _ in range(_ROUNDS):
        for kind, program in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(program(activations))
            least[kind] = min(least[kind], (time.perf_counter() - began) / _PRODUCTS)
    return least
