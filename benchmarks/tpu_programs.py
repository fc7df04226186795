"""Estimates of XLA's TPU compiler for our standard programs at paper size: nothing is run, and no TPU is needed.

Decoding: one sentence of 32 → 32 tokens on one device. Training: a data-parallel update of 2,048 pairs of 64 → 64
tokens. Run it on a quiet machine and compare with the committed result:

    python benchmarks/tpu_programs.py --output=benchmarks/results/tpu_programs.json
    padir benchmark compare --before=OLD.json --after=benchmarks/results/tpu_programs.json
"""

from __future__ import annotations

# ruff: noqa: E402  The environment must be set before JAX is imported.
from padir.compilation import deviceless

deviceless.set_environment()

import argparse
import json
from pathlib import Path
from typing import Any

from padir.benchmark.facts import run_facts
from padir.benchmark.work import decode_cost, rows_per_source
from padir.compilation import report
from padir.compilation.programs import Decode, Update, compiled
from padir.compilation.topologies import named
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.stopping import StopNever
from padir.files.atomic import write_text
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import DecodeConfig
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.types import TokenIds

RESULTS = Path(__file__).parent / "results"
LENGTH = 32
IDS = TokenIds(32_000)
AR_NETWORK = {"causal": True, "positional_attention": False}
ROOM = {"max_length_ratio": 1.0, "max_length_offset": 0}


def refinement(hypotheses: int) -> Refinement:
    """Four steps."""
    return Refinement(num_steps=4, num_hypotheses=hypotheses, stop=StopNever(), target_buckets=(LENGTH,))


DECODES: dict[str, DecodeConfig] = {
    "PaDIR 4 x 1": refinement(1),
    "PaDIR 4 x 5": refinement(5),
    "AR greedy": Autoregressive(**ROOM),
    "AR beam 5": BeamSearch(beam_size=5, num_hypotheses=1, **ROOM),
}
ONE_DEVICE = ("v3-8", "v4-8", "v5e-1", "v5p-8", "v6e-1", "tpu7x-8")
TRAINING = {"v3-32": ("float32", "bfloat16")}


def decoding_model(decode: DecodeConfig, length: int = LENGTH) -> PadirModel | AutoregressiveModel:
    """The paper's base model of the kind that `decode` is for."""
    if isinstance(decode, Refinement):
        return PadirModel(IDS, NetworkConfig(), length, length)
    return AutoregressiveModel(IDS, NetworkConfig(**AR_NETWORK), length, length)


def decoding(topology: str, name: str, batch: int = 1) -> dict[str, Any]:
    """What the compiler says of one of `DECODES` on one device of `topology`."""
    decode, slices = DECODES[name], named(topology)
    model = decoding_model(decode)
    steps = decode.num_steps if isinstance(decode, Refinement) else LENGTH
    found = compiled(lambda: Decode(model, decode, batch, LENGTH, 1).lower(slices))
    cost = decode_cost(
        model, decode, rows=batch, source=LENGTH, target=LENGTH, steps=steps, hypotheses=rows_per_source(decode)
    )
    return report.described(found, slices, trips=steps, branch=None, flops=cost.flops, devices=1)


def training(topology: str, kind: str, dtype: str) -> dict[str, Any]:
    """What the compiler says of an update on `topology`."""
    slices = named(topology)
    if kind == "PaDIR":
        model = PadirModel(IDS, NetworkConfig(dtype=dtype), 128, 128)
    else:
        model = AutoregressiveModel(IDS, NetworkConfig(dtype=dtype, **AR_NETWORK), 128, 128)
    update = Update(model, 500_000, 2048, 64)
    found = compiled(lambda: update.lower(slices))
    said = report.described(found, slices, trips=1, branch=None, flops=update.flops(), devices=len(slices.devices()))
    return said | {"run": report.estimate_of_run(update, said, slices)}


def main() -> None:
    """Compiles every program, prints its estimate and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="the JSON file to write; programs that it has are kept")
    parser.add_argument("--only", default="", help="compile only programs whose name contains this")
    options = parser.parse_args()
    jobs = {
        f"{name}, batch {batch}, {topology}": lambda name=name, topology=topology, batch=batch: decoding(
            topology, name, batch
        )
        for topology in ONE_DEVICE
        for name in DECODES
        for batch in ((1, 8, 64, 512) if topology == "v5e-1" else (1,))
    }
    jobs |= {
        f"training {kind}, {dtype}, {topology}": lambda topology=topology, kind=kind, dtype=dtype: training(
            topology, kind, dtype
        )
        for topology, dtypes in TRAINING.items()
        for dtype in dtypes
        for kind in ("PaDIR", "AR")
    }
    there = json.loads(Path(options.output).read_text("utf-8"))["programs"] if Path(options.output).exists() else {}
    facts = run_facts()
    facts["versions"]["libtpu"] = deviceless.libtpu_version()
    for name, job in jobs.items():
        if options.only not in name:
            continue
        there[name] = job()
        cycles = there[name].get("estimated_cycles")
        print(f"{name}: {'does not fit' if cycles is None else f'{cycles / 1e6:.3f} M cycles'}", flush=True)
        result = {"facts": facts, "estimated_by": report.credit(), "programs": dict(sorted(there.items()))}
        write_text(options.output, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
