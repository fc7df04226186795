"""Effect of the order of operands on decoding time: `python benchmarks/operand_order.py --embed_dim 512 --layers 6`.

Untrained models decode one sentence of `--length` source and target tokens. The programs differ only in how
`padir.nn.weights` multiplies activations with weights:

  "activations first": the activations are the left operand;
  "weight first": the weight is the left operand;
  "weight first up to N rows": the weight is the left operand if there are at most N rows of activations;
  "as it is": as the code does it, that is as before, but with small weights transposed (see `padir.nn.for_decoding`).

The programs take turns in a random order in one process. Prints the median and the 20th percentile of the times of each
(the "fastest fifth"), in ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.stopping import StopNever
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.runtime import platforms
from padir.types import EOS_ID, TokenIds

CHOICES = platforms.OF_PLATFORM["cpu"]
# (Largest number of rows for which the weight is first, largest size of a weight that is transposed.)
VARIANTS = {
    "activations first": (0, 0),
    "weight first": (2**31, 0),
    f"weight first up to {CHOICES.weight_first_rows} rows": (CHOICES.weight_first_rows, 0),
    "as it is": (CHOICES.weight_first_rows, CHOICES.turned_weight_size),
}


def main() -> None:
    """Compiles the programs, measures them and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("embed_dim", 512), ("layers", 6), ("pieces", 32_000), ("length", 32), ("repeats", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    programs = {
        (name, variant): _compiled(system, *limits)
        for variant, limits in VARIANTS.items()
        for name, system in _systems(options).items()
    }
    samples: dict[tuple[str, str], list[float]] = {name: [] for name in programs}
    for _ in range(options.repeats):
        for name in random.sample(list(programs), len(programs)):
            began = time.perf_counter()
            jax.block_until_ready(programs[name]())
            samples[name].append(1e3 * (time.perf_counter() - began))
    print("| system | " + " | ".join(f"{variant}: median (fastest fifth) ms" for variant in VARIANTS) + " |")
    print("|---|" + "---:|" * len(VARIANTS))
    for system in dict.fromkeys(system for system, _ in programs):
        cells = [samples[system, variant] for variant in VARIANTS]
        print(f"| {system} | " + " | ".join(f"{np.median(c):.2f} ({np.percentile(c, 20):.2f})" for c in cells) + " |")


def _systems(options: argparse.Namespace) -> dict:
    """Returns, by name, a model, its parameters and the other arguments of `decode`."""
    size = options.embed_dim
    network = NetworkConfig(
        embed_dim=size,
        num_heads=max(size // 64, 4),
        head_dim=min(size // 4, 64),
        mlp_dim=4 * size,
        num_encoder_layers=options.layers,
        num_decoder_layers=options.layers,
    )
    ids, longest = TokenIds(options.pieces), 2 * options.length
    causal = dataclasses.replace(network, causal=True, positional_attention=False)
    ar, padir = (
        kind(ids, net, longest, longest) for kind, net in ((AutoregressiveModel, causal), (PadirModel, network))
    )
    ar_params, padir_params = jax.jit(ar.init)(0), jax.jit(padir.init)(0)
    source, key = jnp.full((1, options.length), 7, jnp.int32).at[0, -1].set(EOS_ID), jax.random.key(0)
    room = {"max_length_ratio": 0.0, "max_length_offset": options.length}

    def padir_steps(steps: int, hypotheses: int):
        config = Refinement(num_steps=steps, stop=StopNever(), target_buckets=(options.length,))
        lengths = jnp.full((1, hypotheses), options.length)
        return padir, padir_params, {"source": source, "key": key, "config": config, "lengths": lengths}

    def ar_search(config: Autoregressive | BeamSearch):
        return ar, ar_params, {"source": source, "key": key, "config": config}

    return {
        "AR greedy": ar_search(Autoregressive(**room)),
        "AR beam 5": ar_search(BeamSearch(**room, alpha=0.0)),
        "PaDIR, 1 step": padir_steps(1, 1),
        "PaDIR, 4 steps": padir_steps(4, 1),
        "PaDIR, 4 steps x 5": padir_steps(4, 5),
    }


def _compiled(system: tuple, few_rows: int, small_weight: int):
    """Compiles the decode with these limits and runs it once; returns it as a function without arguments."""
    model, params, options = system
    # A model caches how its parameters were prepared, so each program needs a copy of its own.
    model = dataclasses.replace(model)
    how = dataclasses.replace(CHOICES, weight_first_rows=few_rows, turned_weight_size=small_weight)
    with mock.patch.dict(platforms.OF_PLATFORM, {platforms.current(): how}):
        prepared = model.for_decoding(params)
        program = jax.jit(lambda prepared: model.decode(prepared, **options)).lower(prepared).compile()
    program(prepared)
    return functools.partial(program, prepared)


if __name__ == "__main__":
    main()
