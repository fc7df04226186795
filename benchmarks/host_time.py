"""What Python takes of a request's time: `python benchmarks/host_time.py --run_dir=R --texts=FILE --output=F`.

Single texts are translated, in turns, by two translators of one model. One runs its program; the other is given the
answers that the program has made before, so that only the host's part is left: pieces, padding, the lookup of the
program, and the text of the answer. What JAX takes to start a program is not among it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from padir.benchmark.facts import run_facts
from padir.benchmark.measure import take_turns
from padir.files.atomic import write_text
from padir.files.lines import lines_of
from padir.inference import program
from padir.inference.translator import Translator, load


def with_answers(run_dir: str, texts: list[str]) -> Translator:
    """A translator of the model that knows the answers to these texts, and looks them up instead of computing them."""

    def remembering(*arguments: Any) -> program.Program:
        compute: Callable[..., Any] = program.decode_program(*arguments)
        known: dict[bytes, Any] = {}

        def answer(leaves: list, source: Any, *others: Any, **given: Any) -> Any:
            asked = source.tobytes()
            if asked not in known:
                known[asked] = jax.block_until_ready(compute(leaves, source, *others, **given))
            return known[asked]

        return answer

    with mock.patch("padir.inference.decoder.decode_program", remembering):
        translator = load(run_dir)
        for text in texts:
            translator.translate([text])
    return translator


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run_dir", default="tatoeba_de_en_padir", help="run directory or pretrained model")
    parser.add_argument("--texts", required=True, help="file of texts, one a line")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    facts = run_facts()
    texts = [line.raw.decode() for line in islice(lines_of(options.texts), options.sentences)]
    whole, host = load(options.run_dir), with_answers(options.run_dir, texts)
    if [whole.translate([text]) for text in texts] != [host.translate([text]) for text in texts]:
        raise RuntimeError("the kept answers are not those of the program")
    timings = take_turns(
        {"text to text": lambda text: whole.translate([text]), "host": lambda text: host.translate([text])},
        texts,
        repeats=options.repeats,
    )
    found = {"facts": facts, "run_dir": options.run_dir, "decode": repr(whole.default_decode)}
    found["ms"] = {name: timing.to_dict() for name, timing in timings.items()}
    write_text(options.output, json.dumps(found, indent=1) + "\n")
    for name, timing in timings.items():
        print(f"{name}: median {timing.to_dict()['median']:.3f} ms, p99 {timing.to_dict()['p99']:.3f} ms")


if __name__ == "__main__":
    main()
