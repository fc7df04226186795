"""One network in both modes, beside the teacher and the student of a demo: quality, and how it verifies itself.

    python benchmarks/joint.py --demo=demo --output=benchmarks/results/joint_demo_cpu.json

Trains one more student on the demo's distilled set, with the causal objective as a further stage
(`PadirModel.causal_stage`) and everything else as the demo's, into the folder joint_student of the demo. If it is there
already, it is used as it is. Scores are compared by paired bootstrap. Single sentences are timed, systems in turns.
"""

from __future__ import annotations

from demo_systems import Demo, parser

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.demo.run import train_student

# Each of the joint model's ways, and what it is compared with.
COMPARED = {
    "joint model, greedy": "teacher, greedy",
    "joint model, 4 steps": "student, 4 steps",
    "joint model, verified by itself": "joint model, greedy",
    "student, verified by the teacher": "teacher, greedy",
}


def main() -> None:
    """Trains, decodes in every way, scores, prints and writes the result."""
    options = parser(__doc__).parse_args()
    demo = Demo(options.demo)
    buckets, teacher = demo.settings.buckets, demo.path("teacher")
    train_student(demo.settings, demo.path("distilled"), demo.path("joint_student"), teacher, causal_stage=True)
    verified, refined = Verified(target_buckets=buckets), Refinement(4, target_buckets=buckets)
    teacher, student, both = demo.open("teacher"), demo.open("student_on_distilled_data"), demo.open("joint_student")
    verifying = demo.open("student_on_distilled_data", verify_with=demo.path("teacher"))
    systems = {
        "teacher, greedy": (teacher, Autoregressive()),
        "joint model, greedy": (both, Autoregressive()),
        "student, 4 steps": (student, refined),
        "joint model, 4 steps": (both, refined),
        "student, verified by the teacher": (verifying, verified),
        "joint model, verified by itself": (both, verified),
    }
    rows, _ = demo.scored(systems, COMPARED)
    for name, latency in demo.timed(systems).items():
        rows[name]["latency_ms"] = latency
    demo.write(options.output, rows)


if __name__ == "__main__":
    main()
