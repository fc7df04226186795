"""How the likeliest tokens of many positions are found: `python benchmarks/logits_block.py --batch 64`.

An untrained PaDIR model of the paper's size decodes `--batch` sentences of `--length` source and target tokens in 4
steps, with `--hypotheses` of each, with and without shortcuts (8 candidates, 8 active positions). The programs differ
in `Refinement.logits_block`, and in where each position's likeliest token is looked for: in its whole row of logits, or
by groups (`platforms.Choices.searches_in_groups`). They take turns in a random order in one process. For each, the JSON
has the memory that XLA allocates besides the parameters and the times of the batch; the table has two throughputs: that
of the median time, and that of the 20th percentile of times (the "fastest fifth").
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from padir.benchmark.facts import run_facts
from padir.benchmark.measure import Timing, take_turns
from padir.decoding.refinement import Refinement
from padir.decoding.stopping import StopNever
from padir.files.atomic import write_text
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.nn.weights import COMPUTE_TYPES
from padir.runtime import host_memory, platforms
from padir.types import EOS_ID, TokenIds

SHORTCUTS = {"plain": {}, "8 candidates, 8 active": {"candidates": 8, "active_positions": 8}}
BLOCKS = (None, 512)
SEARCHED = {"whole rows": False, "groups": True}


def main() -> None:
    """Compiles the programs, measures them, prints a table and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"batch": 64, "hypotheses": 1, "length": 32, "pieces": 32_000, "encoder_layers": 6, "decoder_layers": 6}
    sizes["repeats"] = 5
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--compute_type", choices=COMPUTE_TYPES, help="that the factors of products are rounded to")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    positions = options.batch * options.hypotheses * options.length
    if platforms.current() != "cpu" or positions <= platforms.choices().weight_first_rows:
        parser.error("--batch: rows are searched in another way elsewhere than on a CPU, or with so few positions")
    host_memory.keep_freed()  # As decoding does.
    result = {"facts": run_facts()} | {name: getattr(options, name) for name in (*sizes, "compute_type")}
    result["systems"] = measured(options)
    result["facts"]["load_average_after"] = list(os.getloadavg())
    print("| decode | positions at a time | looked for in | MB | sentences/s: median | fastest fifth |")
    print("|---|---:|---|---:|---:|---:|")
    for row in result["systems"]:
        rates = [f"{options.batch / row['ms'][which] * 1e3:.1f}" for which in ("median", "fifth")]
        parts = row["decode"], row["block"] or "all", row["searched"], f"{row['megabytes']:.0f}", *rates
        print("|", *(f"{part} |" for part in parts))
    if options.output is not None:
        write_text(options.output, json.dumps(result, indent=1) + "\n")


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each program: `decode`, `block`, `searched`, `megabytes` and `ms`, with the 20th percentile `fifth`."""
    layers = {"num_encoder_layers": options.encoder_layers, "num_decoder_layers": options.decoder_layers}
    model = PadirModel(TokenIds(options.pieces), NetworkConfig(**layers), options.length, options.length)
    params = model.for_decoding(jax.jit(model.init)(0), options.compute_type)
    kinds = list(itertools.product(SHORTCUTS, BLOCKS, SEARCHED))
    programs = {kind: _compiled(model, params, *kind, options) for kind in kinds}
    runs = {kind: lambda _, run=run: jax.block_until_ready(run(params)) for kind, run in programs.items()}
    timings: dict[Any, Timing] = take_turns(runs, [None], repeats=options.repeats, untimed=1)
    rows = []
    for kind, program in programs.items():
        ms = timings[kind].to_dict() | {"fifth": float(np.percentile(timings[kind].samples, 20))}
        megabytes = program.memory_analysis().temp_size_in_bytes / 1e6
        rows.append(dict(zip(("decode", "block", "searched"), kind, strict=True)) | {"megabytes": megabytes, "ms": ms})
    return rows


def _compiled(
    model: PadirModel, params: Any, name: str, block: int | None, searched: str, options: argparse.Namespace
) -> jax.stages.Compiled:
    """Compiles a function of the parameters that decodes the batch."""
    config = Refinement(
        num_steps=4,
        num_hypotheses=options.hypotheses,
        stop=StopNever(),
        target_buckets=(options.length,),
        logits_block=block,
        **SHORTCUTS[name],
    )
    source = jnp.full((options.batch, options.length), 7, jnp.int32).at[:, -1].set(EOS_ID)
    # Several hypotheses are of the lengths that are predicted; padded, they are as long as one.
    lengths = jnp.full((options.batch,), options.length, jnp.int32) if options.hypotheses == 1 else None
    decode = functools.partial(model.decode, source=source, key=jax.random.key(0), config=config, lengths=lengths)
    platform = platforms.current()
    how = dataclasses.replace(platforms.OF_PLATFORM[platform], searches_in_groups=SEARCHED[searched])
    with mock.patch.dict(platforms.OF_PLATFORM, {platform: how}):
        return jax.jit(decode).lower(params).compile()


if __name__ == "__main__":
    main()
