"""Self-conditioning on a demo's student: quality, passes and time, with it and without, over several seeds.

    python benchmarks/self_conditioning.py --demo=demo --output=benchmarks/results/self_conditioning_demo_cpu.json

Trains students on the demo's distilled set, plain ones and some with `PadirModel.self_conditioning`, everything else as
the demo's, into the folders <kind>_student_seed_<n> of the demo. Those that are there already are used as they are.
Single sentences are timed with the models of the first seed, systems in turns.
"""

from __future__ import annotations

import dataclasses
import statistics

from demo_systems import Demo, Systems, parser

from padir.decoding.refinement import Refinement
from padir.demo.run import train_student

PLAIN, CONDITIONED, TURNED_OFF = "plain student", "self-conditioned student", "self-conditioned student, turned off"
STEPS = (1, 2, 4, 10)


def _key(name: str, steps: int) -> str:
    return f"{name}, {steps} step{'s' * (steps > 1)}"


def _systems(demo: Demo, seed: int) -> Systems:
    """Trains the two students of a seed, unless they are there, and opens them: the ways of decoding by their names."""
    settings = dataclasses.replace(demo.settings, seed=seed)
    opened = {}
    for kind, conditioned in (("plain", False), ("self_conditioned", True)):
        name = f"{kind}_student_seed_{seed}"
        folders = demo.path("distilled"), demo.path(name), demo.path("teacher")
        train_student(settings, *folders, self_conditioning=conditioned)
        opened[kind] = demo.open(name)
    systems = {}
    for steps in STEPS:
        decode = Refinement(steps, target_buckets=settings.buckets)
        off = dataclasses.replace(decode, self_conditioning=False)
        systems[_key(PLAIN, steps)] = opened["plain"], decode
        systems[_key(CONDITIONED, steps)] = opened["self_conditioned"], decode
        systems[_key(TURNED_OFF, steps)] = opened["self_conditioned"], off
    return systems


def main() -> None:
    """Trains, decodes in every way, scores, prints and writes the result."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=3, help="students of each kind")
    options = options.parse_args()
    demo = Demo(options.demo)
    of_seeds = []
    for seed in range(options.seeds):
        systems = _systems(demo, seed)
        compared = {_key(name, steps): _key(PLAIN, steps) for name in (CONDITIONED, TURNED_OFF) for steps in STEPS}
        of_seeds.append(demo.scored(systems, compared)[0])
    rows = {}
    for name, latency in demo.timed(_systems(demo, 0)).items():
        found = [of_seed[name] for of_seed in of_seeds]
        means = {metric: statistics.mean(row[metric] for row in found) for metric in ("bleu", "mean_steps_run")}
        rows[name] = means | {"bleu_of_seeds": [row["bleu"] for row in found], "latency_ms": latency, "seeds": found}
    demo.write(options.output, rows)


if __name__ == "__main__":
    main()
