"""Whether the causal mode of a joint model should have positional attention, masked: two models a seed, in both modes.

    python benchmarks/causal_positions.py --demo=demo --output=benchmarks/results/causal_positions_demo_cpu.json

Trains as joint.py does, with and without `PadirModel.causal_positions`, with several seeds.
"""

from __future__ import annotations

import dataclasses

from demo_systems import Demo, parser

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.demo.run import train_student

SEEDS = (0, 1)
KINDS = {"parallel mode only": False, "masked in the causal mode": True}


def main() -> None:
    """Trains, decodes in every way, scores, prints and writes the result."""
    options = parser(__doc__).parse_args()
    demo, systems, compared = Demo(options.demo), {}, {}
    buckets = demo.settings.buckets
    ways = {
        "greedy": Autoregressive(),
        "4 steps": Refinement(4, target_buckets=buckets),
        "verified by itself": Verified(target_buckets=buckets),
    }
    for seed in SEEDS:
        settings = dataclasses.replace(demo.settings, seed=seed)
        for kind, positions in KINDS.items():
            run = demo.path(f"joint_{seed}_{'masked' if positions else 'parallel'}")
            train_student(
                settings,
                demo.path("distilled"),
                run,
                demo.path("teacher"),
                causal_stage=True,
                causal_positions=positions,
            )
            opened = demo.open(run.rpartition("/")[2])
            systems |= {f"{kind}, seed {seed}, {way}": (opened, decode) for way, decode in ways.items()}
        first, second = KINDS
        compared |= {f"{second}, seed {seed}, {way}": f"{first}, seed {seed}, {way}" for way in ("greedy", "4 steps")}
        compared |= {f"{kind}, seed {seed}, verified by itself": f"{kind}, seed {seed}, greedy" for kind in KINDS}
    rows, _ = demo.scored(systems, compared)
    for name, latency in demo.timed({name: each for name, each in systems.items() if "seed 0" in name}).items():
        rows[name]["latency_ms"] = latency
    demo.write(options.output, rows)


if __name__ == "__main__":
    main()
