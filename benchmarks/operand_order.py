"""What the order of operands does to a decode: `python benchmarks/operand_order.py --embed_dim 512 --layers 6`.

Untrained models, one sentence of `--length` tokens to as many, programs that differ only in how `padir.nn.weights`
multiplies with weights: the activations first, the weight first, the weight first up to 64 rows, and what the code does
(that, but small weights turned, see `padir.nn.for_decoding`). The programs take turns in a random order in one process;
prints the median and the fastest fifth of each, in ms.
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
from padir.nn import weights
from padir.nn.network import NetworkConfig
from padir.types import EOS_ID, TokenIds

# Up to how many rows the weight is first, and how large a weight may be to be turned.
VARIANTS = {
    "activations first": (0, 0),
    "weight first": (2**31, 0),
    f"weight first up to {weights.FEW_ROWS} rows": (weights.FEW_ROWS, 0),
    "as it is": (weights.FEW_ROWS, weights._SMALL_WEIGHT),
}


def main() -> None:
    """Compiles, measures, prints."""
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
    """By name, a model, its parameters, and what `decode` takes after those."""
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
    """A function without arguments that runs the decode, compiled with these limits and run once."""
    model, params, options = system
    # A model remembers what its parameters were prepared like.
    model = dataclasses.replace(model)
    with mock.patch.multiple(weights, FEW_ROWS=few_rows, _SMALL_WEIGHT=small_weight):
        prepared = model.for_decoding(params)
        program = jax.jit(lambda prepared: model.decode(prepared, **options)).lower(prepared).compile()
    program(prepared)
    return functools.partial(program, prepared)


if __name__ == "__main__":
    main()
