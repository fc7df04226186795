"""Effect of `Refinement.logits_block` on memory and time of a batch: `python benchmarks/logits_block.py --batch 64`.

An untrained PaDIR model of the paper's size decodes `--batch` sentences of `--length` source and target tokens in 4
steps, with and without shortcuts (8 candidates, 8 active positions). The programs take turns in a random order in one
process. Prints for each the memory that XLA allocates besides the parameters, in MB, and two throughputs in sentences
per second: that of the median time, and that of the 20th percentile of times (the "fastest fifth").
"""

from __future__ import annotations

import argparse
import functools
import random
import time

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.refinement import Refinement
from padir.decoding.stopping import StopNever
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.types import EOS_ID, TokenIds

SHORTCUTS = {"plain": {}, "8 candidates, 8 active": {"candidates": 8, "active_positions": 8}}
BLOCKS = (None, 512)


def main() -> None:
    """Compiles the programs, measures them and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 64), ("length", 32), ("pieces", 32_000), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    model = PadirModel(TokenIds(options.pieces), NetworkConfig(), options.length, options.length)
    params = jax.jit(model.init)(0)
    programs = {(name, block): _compiled(model, params, name, block, options) for name in SHORTCUTS for block in BLOCKS}
    seconds: dict[tuple[str, int | None], list[float]] = {name: [] for name in programs}
    for _ in range(options.repeats):
        for name in random.sample(list(programs), len(programs)):
            began = time.perf_counter()
            jax.block_until_ready(programs[name][0](params))
            seconds[name].append(time.perf_counter() - began)
    print("| decode | positions at a time | MB | sentences/s: median | fastest fifth |")
    print("|---|---:|---:|---:|---:|")
    for (name, block), (_, megabytes) in programs.items():
        rates = [options.batch / np.percentile(seconds[name, block], share) for share in (50, 20)]
        print(f"| {name} | {block or 'all'} | {megabytes:.0f} | {rates[0]:.1f} | {rates[1]:.1f} |")


def _compiled(model: PadirModel, params: dict, name: str, block: int | None, options: argparse.Namespace) -> tuple:
    """Compiles a function of the parameters that decodes the batch; returns it and its temporary memory in MB."""
    config = Refinement(
        num_steps=4, stop=StopNever(), target_buckets=(options.length,), logits_block=block, **SHORTCUTS[name]
    )
    source = jnp.full((options.batch, options.length), 7, jnp.int32).at[:, -1].set(EOS_ID)
    lengths = jnp.full((options.batch,), options.length, jnp.int32)
    decode = functools.partial(model.decode, source=source, key=jax.random.key(0), config=config, lengths=lengths)
    program = jax.jit(decode).lower(params).compile()
    jax.block_until_ready(program(params))
    return program, program.memory_analysis().temp_size_in_bytes / 1e6


if __name__ == "__main__":
    main()
