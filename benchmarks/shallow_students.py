"""A shallow decoder in a demo: a student whose layers are in the encoder, beside one whose layers are in the decoder.

    python benchmarks/shallow_students.py --demo=demo --output=benchmarks/results/shallow_demo_cpu.json

Trains an autoregressive model and a student with as many layers as the demo's, all but one in the encoder. The first
learns from the demo's data, as the teacher did. The student starts from it and learns from the demo's distilled set, as
the demo's own student did. The folders are teacher_shallow and student_shallow of the demo; a run that is there already
is used as it is. Scores are compared by paired bootstrap. Single sentences are timed, systems in turns.
"""

from __future__ import annotations

import dataclasses

from demo_systems import Demo, parser

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement
from padir.demo.run import train_student, train_teacher

# Each system, and what it is compared with.
COMPARED = {
    "shallow teacher, greedy": "teacher, greedy",
    "student, 4 steps": "teacher, greedy",
    "shallow student, 4 steps": "student, 4 steps",
    "shallow student, 10 steps": "student, 10 steps",
}


def main() -> None:
    """Trains, decodes in every way, scores, prints and writes the result."""
    options = parser(__doc__).parse_args()
    demo = Demo(options.demo)
    deep = demo.settings.network
    layers = deep.num_encoder_layers + deep.num_decoder_layers
    network = dataclasses.replace(deep, num_encoder_layers=layers - 1, num_decoder_layers=1)
    shallow = dataclasses.replace(demo.settings, network=network)
    train_teacher(shallow, demo.path("data"), demo.path("teacher_shallow"))
    train_student(shallow, demo.path("distilled"), demo.path("student_shallow"), demo.path("teacher_shallow"))
    steps = {count: Refinement(count, target_buckets=shallow.buckets) for count in (1, 4, 10)}
    systems = {
        "teacher, greedy": (demo.open("teacher"), Autoregressive()),
        "shallow teacher, greedy": (demo.open("teacher_shallow"), Autoregressive()),
    }
    for name, folder in (("student", "student_on_distilled_data"), ("shallow student", "student_shallow")):
        opened = demo.open(folder)
        systems |= {f"{name}, {count} step{'s' * (count > 1)}": (opened, decode) for count, decode in steps.items()}
    rows, _ = demo.scored(systems, COMPARED)
    for name, latency in demo.timed(systems).items():
        rows[name]["latency_ms"] = latency
    for name in rows:
        shape = network if name.startswith("shallow") else deep
        rows[name]["layers"] = f"{shape.num_encoder_layers}-{shape.num_decoder_layers}"
    demo.write(options.output, rows)


if __name__ == "__main__":
    main()
