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
import functools
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from padir.benchmark.facts import run_facts
from padir.benchmark.work import decode_cost, rows_per_source
from padir.compilation import report
from padir.compilation.hlo import analyse
from padir.compilation.programs import Decode, Update, compiled
from padir.compilation.topologies import named
from padir.decoding.annealing import AnnealedSampling
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.guided import Guided
from padir.decoding.order import EasyFirst
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing
from padir.decoding.stopping import StopNever
from padir.decoding.value_guided import ValueGuided
from padir.decoding.verified import Verified
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


# Four steps of easy-first, of a model with a disentangled context.
EASY_FIRST = replace(refinement(1), remask=RemaskNothing(), order=EasyFirst(), drop_repeats=False)


DECODES: dict[str, DecodeConfig] = {
    "PaDIR 4 x 1": refinement(1),
    "PaDIR 4 x 5": refinement(5),
    "AR greedy": Autoregressive(**ROOM),
    "AR beam 5": BeamSearch(beam_size=5, num_hypotheses=1, **ROOM),
}
# What the names of those of `SHORTCUTS` end with that are of a model with a ranker, and one with a layer of its own for
# its causal mode, too.
RANKED, RANKED_BY_BOTH = ", with a ranker", ", with a ranker and a causal decoder"
_DRAWS = replace(refinement(5), parallel_starts=4, sampling=AnnealedSampling(0.4, 0.0))
# What makes decoding cheaper elsewhere, and what a disentangled context costs: (decode, compute type, layers of encoder
# and decoder, steps outside the loop).
SHORTCUTS: dict[str, tuple[DecodeConfig, str | None, tuple[int, int], int]] = {
    "PaDIR 4 x 1, int8": (refinement(1), "int8", (6, 6), 0),
    "PaDIR 4 x 5, int8": (refinement(5), "int8", (6, 6), 0),
    "PaDIR 4 x 5, ranked by itself": (replace(refinement(5), self_rescoring=True), None, (6, 6), 0),
    f"PaDIR 4 x 5{RANKED}": (refinement(5), None, (6, 6), 0),
    f"PaDIR 4 x 5{RANKED_BY_BOTH}": (replace(refinement(5), self_rescoring=True), None, (6, 6), 0),
    f"PaDIR 4 x 5 x 4 draws{RANKED}": (_DRAWS, None, (6, 6), 0),
    f"PaDIR 4 x 5 x 4 draws{RANKED_BY_BOTH}": (replace(_DRAWS, self_rescoring=True), None, (6, 6), 0),
    "AR greedy, int8": (Autoregressive(**ROOM), "int8", (6, 6), 0),
    "PaDIR 9-3, 4 x 1": (refinement(1), None, (9, 3), 0),
    "PaDIR 12-1, 4 x 1": (refinement(1), None, (12, 1), 0),
    "AR 12-1 greedy": (Autoregressive(**ROOM), None, (12, 1), 0),
    "AR 12-1 greedy, int8": (Autoregressive(**ROOM), "int8", (12, 1), 0),
    "PaDIR 4 x 1, 8 candidates": (replace(refinement(1), candidates=8), None, (6, 6), 1),
    "PaDIR 4 x 5, 8 candidates, the best goes on": (
        *(replace(refinement(5), candidates=8, keep_hypotheses=1), None, (6, 6), 1),
    ),
    "PaDIR 4 x 1, 8 active positions": (replace(refinement(1), active_positions=8), None, (6, 6), 0),
    "DisCo 4 x 1": (EASY_FIRST, None, (6, 6), 0),
}
# A draft of one step, verified; later rounds draft one length or three. Name → its configuration.
VERIFIED = {
    f"verified, {beam} draft{'s' if beam > 1 else ''} a round": Verified(
        length_beam=beam, target_buckets=(LENGTH,), **ROOM
    )
    for beam in (1, 3)
}
# Loops under a judge or a constraint: (decode, whether a linear probe judges, states and classes of the table that is
# obeyed). How often a loop turns is not known, so the cycles of one turn are stated.
GUIDED: dict[str, tuple[DecodeConfig, bool, tuple[int, int] | None]] = {
    "backtracking 4, 4": (Guided(**ROOM), True, None),
    "VGB, proposals": (Guided(**ROOM, sampler=ValueGuided(children="proposal")), True, None),
    "AR greedy, constrained": (Autoregressive(**ROOM), False, (512, 512)),
    "backtracking 4, 4, constrained": (Guided(**ROOM), True, (512, 512)),
}
ONE_DEVICE = ("v3-8", "v4-8", "v5e-1", "v5p-8", "v6e-1", "tpu7x-8")
SHORTCUTS_ON = ("v5e-1", "v6e-1")
VERIFIED_ON = ("v3-8", "v5e-1", "v6e-1")
TRAINING_ON = "v3-32"
# Name → (type of activations, layers in a loop, remat).
TRAINING = {
    "float32": ("float32", False, "none"),
    "bfloat16": ("bfloat16", False, "none"),
    "bfloat16, remat": ("bfloat16", False, "layer"),
    "bfloat16, layers in a loop": ("bfloat16", True, "layer"),
}


def decoding_model(decode: DecodeConfig, layers: tuple[int, int] = (6, 6)) -> PadirModel | AutoregressiveModel:
    """The paper's base model of the kind that `decode` is for, with so many layers of encoder and decoder."""
    sizes = {"num_encoder_layers": layers[0], "num_decoder_layers": layers[1]}
    if isinstance(decode, Refinement) and decode.order is not None:
        return PadirModel(IDS, NetworkConfig(**sizes, disentangled_context=True), LENGTH, LENGTH, num_stages=1)
    if isinstance(decode, Refinement | Verified):
        ranks_itself = isinstance(decode, Refinement) and decode.self_rescoring
        return PadirModel(IDS, NetworkConfig(**sizes), LENGTH, LENGTH, causal_stage=ranks_itself)
    return AutoregressiveModel(IDS, NetworkConfig(**sizes, **AR_NETWORK), LENGTH, LENGTH)


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


def shortcut(topology: str, name: str) -> dict[str, Any]:
    """The estimated cycles of one of `SHORTCUTS` for one sentence on one device of `topology`."""
    decode, compute_type, layers, outside = SHORTCUTS[name]
    steps = decode.num_steps if isinstance(decode, Refinement) else LENGTH
    model = decoding_model(decode, layers)
    if name.endswith((RANKED, RANKED_BY_BOTH)):
        model = replace(model, ranker=True, causal_layers=int(name.endswith(RANKED_BY_BOTH)))
    found = compiled(lambda: Decode(model, decode, 1, LENGTH, 1, compute_type).lower(named(topology)))
    if isinstance(decode, Refinement) and decode.active_positions:
        # One half of the steps takes one branch of the loop, the other half the other.
        halves = [analyse(found.text, steps // 2, branch=(2, index)) for index in range(2)]
        cycles = sum(half.cycles for half in halves) - halves[0].once
    else:
        cycles = analyse(found.text, steps - outside).cycles
    return {"fits": True, "estimated_cycles": cycles}


def guided(topology: str, name: str) -> dict[str, Any]:
    """The estimated cycles of one of `GUIDED` for one sentence: outside its loop, and of one turn of that."""
    decode, judged, constraint = GUIDED[name]
    program = Decode(decoding_model(decode), decode, 1, LENGTH, 1, judged=judged, constraint=constraint)
    found = analyse(compiled(lambda: program.lower(named(topology))).text, 1)
    of_turn = max(loop.cycles for loop in found.loops)
    return {
        "fits": True,
        "tokens": LENGTH,
        "estimated_cycles": found.once + LENGTH * of_turn,
        "cycles_outside": found.once,
        "cycles_of_a_turn": of_turn,
    }


def verified(topology: str, name: str) -> dict[str, Any]:
    """The estimated cycles of one of `VERIFIED` for one sentence: up to the end of the first round, of another."""
    decode = VERIFIED[name]
    program = Decode(decoding_model(decode), decode, 1, LENGTH, 1, verifier=decoding_model(Autoregressive()))
    found = analyse(compiled(lambda: program.lower(named(topology))).text, 1)
    # There are two loops: the rounds, and one that writes the rest of rows that have outgrown their draft.
    of_round = max(loop.cycles for loop in found.loops if not loop.known)
    return {
        "fits": True,
        "tokens": LENGTH,
        "estimated_cycles": found.once,
        "cycles_of_a_later_round": of_round,
    }


def training(name: str, kind: str) -> dict[str, Any]:
    """What the compiler says of an update on `TRAINING_ON`, one of `TRAINING`."""
    slices, (dtype, scan_layers, remat) = named(TRAINING_ON), TRAINING[name]
    if kind == "PaDIR":
        model = PadirModel(IDS, NetworkConfig(dtype=dtype), 128, 128)
    else:
        model = AutoregressiveModel(IDS, NetworkConfig(dtype=dtype, **AR_NETWORK), 128, 128)
    update = Update(model, 500_000, 2048, 64, remat=remat, scan_layers=scan_layers)
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
        f"{name}, batch {batch}, {topology}": functools.partial(decoding, topology, name, batch)
        for topology in ONE_DEVICE
        for name in DECODES
        for batch in ((1, 8, 64, 512) if topology == "v5e-1" else (1,))
    }
    jobs |= {
        f"shortcut {name}, {topology}": functools.partial(shortcut, topology, name)
        for topology, name in itertools.product(SHORTCUTS_ON, SHORTCUTS)
    }
    jobs |= {
        f"{name}, {topology}": functools.partial(verified, topology, name)
        for topology, name in itertools.product(VERIFIED_ON, VERIFIED)
    }
    jobs |= {
        f"{name}, {topology}": functools.partial(guided, topology, name)
        for topology, name in itertools.product(SHORTCUTS_ON, GUIDED)
    }
    jobs |= {
        f"training {kind}, {name}, {TRAINING_ON}": functools.partial(training, name, kind)
        for name, kind in itertools.product(TRAINING, ("PaDIR", "AR"))
    }
    there = json.loads(Path(options.output).read_text("utf-8"))["programs"] if Path(options.output).exists() else {}
    facts = run_facts()
    facts["versions"]["libtpu"] = deviceless.libtpu_version()
    for name, job in jobs.items():
        if options.only not in name:
            continue
        there[name] = job() | {"commit": facts["commit"]}
        cycles = there[name].get("estimated_cycles")
        print(f"{name}: {'does not fit' if cycles is None else f'{cycles / 1e6:.3f} M cycles'}", flush=True)
        result = {"facts": facts, "estimated_by": report.credit(), "programs": dict(sorted(there.items()))}
        write_text(options.output, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
