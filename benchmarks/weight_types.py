"""Whether weights of fewer bits gain anything on this device: `python benchmarks/weight_types.py`.

A product of a few rows of activations with one weight of paper size, feed-forward or logits, as XLA compiles it: both
in float32; both in bfloat16, added up in float32; the weight in int8 with a scale an output, widened where it is read;
both in int8, added up in int32. What rounding costs in quality is not looked at. The programs take turns in a random
order in one process; prints medians in microseconds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from padir import host_memory
from padir.types import Array

WEIGHTS = {"feed-forward": (2048, 512), "logits": (32_128, 512)}
ROWS = (1, 8, 32, 160)


def main() -> None:
    """Compiles, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    host_memory.keep_freed()
    programs = {
        (weight, rows, kind): program
        for weight, shape in WEIGHTS.items()
        for rows in ROWS
        for kind, program in _programs(shape, rows).items()
    }
    samples: dict[tuple[str, int, str], list[float]] = {name: [] for name in programs}
    for _ in range(options.repeats):
        for name in random.sample(list(programs), len(programs)):
            began = time.perf_counter()
            programs[name]().block_until_ready()
            samples[name].append(1e6 * (time.perf_counter() - began))
    kinds = list(dict.fromkeys(kind for *_, kind in programs))
    print(f"{jax.devices()[0].device_kind}, n = {options.repeats}, median us")
    print("| weight | rows | " + " | ".join(kinds) + " |")
    print("|---|---:|" + "---:|" * len(kinds))
    for weight in WEIGHTS:
        for rows in ROWS:
            cells = [f"{statistics.median(samples[weight, rows, kind]):.0f}" for kind in kinds]
            print(f"| {weight} | {rows} | " + " | ".join(cells) + " |")


def _programs(shape: tuple[int, int], rows: int) -> dict[str, Callable[[], Array]]:
    """By kind, a compiled and warmed-up product of activations [rows, in] with a weight [out, in]."""
    weight = jax.random.normal(jax.random.key(0), shape)
    x = jax.random.normal(jax.random.key(1), (rows, shape[1]))
    scale = jnp.abs(weight).max(axis=1) / 127.0
    int8 = jnp.round(weight / scale[:, None]).astype(jnp.int8)

    def product(x: Array, weight: Array, dtype: str = "float32") -> Array:
        return jnp.einsum("ri,oi->ro", x, weight, preferred_element_type=jnp.dtype(dtype))

    def widened(x: Array, weight: Array, scale: Array) -> Array:
        return product(x, weight.astype(jnp.float32)) * scale

    def integers(x: Array, weight: Array, scale: Array) -> Array:
        step = jnp.abs(x).max(axis=1, keepdims=True) / 127.0
        return product(jnp.round(x / step).astype(jnp.int8), weight, "int32") * step * scale

    def compiled(function: Callable[..., Array], *given: Array) -> Callable[[], Array]:
        program = jax.jit(function)
        program(*given).block_until_ready()
        return lambda: program(*given)

    return {
        "float32": compiled(product, x, weight),
        "bfloat16": compiled(product, x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)),
        "int8 weight": compiled(widened, x, int8, scale),
        "int8 both": compiled(integers, x, int8, scale),
    }


if __name__ == "__main__":
    main()
