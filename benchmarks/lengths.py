"""Several target lengths with a demo's student: what ranking and `likeliest_first` do to quality and time.

    python benchmarks/lengths.py --demo=demo --output=benchmarks/results/lengths_demo_cpu.json

Decodes the test set with one length and with five, ranked with several weights of the lengths' own probability, all at
once and likeliest first. Scores are compared by paired bootstrap. Single sentences are timed, systems in turns.
"""

from __future__ import annotations

from demo_systems import Demo, Systems, parser

from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement

STEPS, LENGTHS = 4, 5
WEIGHTS = (0.0, 0.05, 0.1, 0.5)
ONE, FIRST = "1 length", ", likeliest first"


def _ways(buckets: tuple[int, ...]) -> dict[str, Refinement]:
    """Ways of decoding by their names."""
    ways = {ONE: Refinement(STEPS, target_buckets=buckets)}
    for weight in WEIGHTS:
        name, rank = f"{LENGTHS} lengths, weight {weight}", RankByLogProbability(length_weight=weight)
        several = {"num_hypotheses": LENGTHS, "rank": rank, "target_buckets": buckets}
        ways[name] = Refinement(STEPS, **several)
        if weight:
            ways[name + FIRST] = Refinement(STEPS, **several, likeliest_first=True)
    return ways


def main() -> None:
    """Decodes in every way, scores, times, prints and writes the result."""
    options = parser(__doc__).parse_args()
    demo = Demo(options.demo)
    student = demo.open("student_on_distilled_data")

    def systems(buckets: tuple[int, ...]) -> Systems:
        return {name: (student, decode) for name, decode in _ways(buckets).items()}

    # One bucket, so that there is less to compile; translations are the same.
    one_bucket = systems(demo.settings.buckets[-1:])
    names = [name for name in one_bucket if name != ONE]
    rows, _ = demo.scored(one_bucket, {name: name.removesuffix(FIRST) if FIRST in name else ONE for name in names})
    sources = [student.tokenize(example.source_text) for example in demo.examples]
    for name, (_, decode) in one_bucket.items():
        if decode.likeliest_first:
            # Alone, a sentence takes as many passes as its best hypothesis, unless others were decoded too.
            alone = [student.decode_ids([source], decode) for source in sources]
            more = sum(int(found.batch_steps) > int(found.steps_run[0, 0]) for found in alone)
            rows[name]["others_decoded"] = more / len(sources)
    for name, latency in demo.timed(systems(demo.settings.buckets)).items():
        rows[name]["latency_ms"] = latency
    demo.write(options.output, rows)


if __name__ == "__main__":
    main()
