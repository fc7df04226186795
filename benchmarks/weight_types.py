"""Time of products with weights of fewer bits: `python benchmarks/weight_types.py`.

Multiplies a few rows of activations with one weight of the paper's size (feed-forward or logits), as XLA compiles it:

  float32;
  `weights.Bfloat16` and `weights.Int8`, which round both factors;
  "int8 weight", which stores only the weight in int8 and converts it to float32 when it is read.

The programs take turns in a random order in one process. Prints medians in microseconds. The effect of rounding on
quality is not measured here; `benchmarks/shortcuts.py` does that.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from padir.nn.weights import COMPUTE_TYPES, for_products, project
from padir.runtime import host_memory
from padir.types import Array

WEIGHTS = {"feed-forward": (2048, 512), "logits": (32_128, 512)}
ROWS = (1, 8, 32, 160)


def main() -> None:
    """Compiles the programs, measures them and prints a table."""
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
    """Returns, by kind, a compiled and warmed-up product of float32 activations [rows, in] and weight [out, in]."""
    weight = jax.random.normal(jax.random.key(0), shape)
    x = jax.random.normal(jax.random.key(1), (rows, shape[1]))
    scale = jnp.abs(weight).max(axis=1) / 127.0
    int8, float32 = jnp.round(weight / scale[:, None]).astype(jnp.int8), jnp.dtype("float32")

    def widened(x: Array, weight: Array, scale: Array) -> Array:
        return project(weight.astype(float32), x, float32) * scale

    def rounded(x: Array, state: nnx.State, graph: nnx.GraphDef) -> Array:
        return nnx.merge(graph, state)(x, float32)

    def compiled(function: Callable[..., Array], *given: Any) -> Callable[[], Array]:
        program = jax.jit(function)
        program(x, *given).block_until_ready()
        return lambda: program(x, *given)

    programs = {
        "float32": compiled(lambda x, weight: project(weight, x, float32), weight),
        "int8 weight": compiled(widened, int8, scale),
    }
    for kind in COMPUTE_TYPES:
        graph, state = nnx.split(for_products(weight, float32, kind))
        programs[kind] = compiled(functools.partial(rounded, graph=graph), state)
    return programs


if __name__ == "__main__":
    main()
