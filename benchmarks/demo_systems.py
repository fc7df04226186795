"""What benchmarks of a demo's models share: its settings, test sentences, scores and timings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

import gin as gin_config
from padir.benchmark.facts import run_facts
from padir.benchmark.latency import Asked
from padir.benchmark.measure import take_turns
from padir.benchmark.systems import Opened
from padir.benchmark.workloads import fitting_requests
from padir.cli import config
from padir.data.records import PreparedSet
from padir.decoding.refinement import Refinement
from padir.evaluation.evaluate import decode_examples, score
from padir.files.atomic import write_text
from padir.inference.translator import Translator, load
from padir.metrics.bootstrap import paired_bootstrap
from padir.models.kinds import DecodeConfig

Systems = Mapping[str, tuple[Translator, DecodeConfig]]


def parser(documentation: str) -> argparse.ArgumentParser:
    """A parser of the options that all of them take."""
    found = argparse.ArgumentParser(description=documentation.splitlines()[0])
    found.add_argument("--demo", type=Path, required=True, help="output folder of `padir demo`")
    found.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    return found


class Demo:
    """The output folder of `padir demo`, made with its default settings.

    Attributes:
      settings: of the demo.
      examples, references: the test split.
    """

    def __init__(self, folder: Path):
        # Nothing is compiled twice, however often a benchmark is run; no timing includes compilation.
        jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
        config.parse(["runs/demo.gin"], [])
        self.settings = gin_config.query_parameter("demo.config").scoped_configurable_fn()
        self._folder = folder
        self._data = PreparedSet.open(self.path("data"))
        test = self._data.split("test")
        self.examples = test.read(range(len(test)))
        self.references = [example.target_text for example in self.examples]

    def path(self, name: str) -> str:
        """The folder of a prepared set or run of the demo, or of one that a benchmark adds."""
        return str(self._folder / name)

    def open(self, name: str, **options: Any) -> Translator:
        """A trained model of the demo, opened with options of `padir.load`."""
        return load(self.path(name), **options)

    def scored(self, systems: Systems, compared: Mapping[str, str]) -> tuple[dict[str, dict], dict[str, list[str]]]:
        """Decodes the test sentences with each system.

        Args:
          systems: by name.
          compared: names of systems and of those that they are compared with, by paired bootstrap of BLEU.

        Returns:
          (scores, outputs), both by name. Scores of a system that is compared also have `against`, `p_value` and
          `equal`, the number of equal outputs.
        """
        rows, texts = {}, {}
        for name, (translator, decode) in systems.items():
            translations = decode_examples(translator, self.examples, decode, batch_size=64, label=name)
            texts[name] = [translation.text for translation in translations]
            checker, parallel = self._data.manifest.checker, isinstance(decode, Refinement)
            rows[name] = score(translations, self.examples, checker, predicts_length=parallel, with_ter=False)
            rows[name]["parameters"] = translator.model.parameter_count()
        for name, other in compared.items():
            tests = paired_bootstrap(texts[name], texts[other], self.references)
            equal = sum(a == b for a, b in zip(texts[name], texts[other], strict=True))
            rows[name] |= {"against": other, "p_value": tests["bleu"].to_dict()["p_value"], "equal": equal}
        return rows, texts

    def timed(self, systems: Systems) -> dict[str, dict]:
        """Latency of single sentences in ms, systems in turns, by name."""
        texts = [example.source_text for example in self.examples]
        requests = fitting_requests(texts, self._data.vocabulary(), self.settings.max_length)
        timings = take_turns(
            {name: Asked(name, Opened(*system)) for name, system in systems.items()},
            [(request,) for request in requests[: self.settings.latency_sentences]],
            repeats=self.settings.latency_repeats,
            seed=0,
        )
        return {name: timing.to_dict() for name, timing in timings.items()}

    def write(self, output: Path, rows: dict[str, dict]) -> None:
        """Writes rows with the facts of the run, and prints them."""
        result = {"facts": run_facts(), "sentences": len(self.examples), "rows": rows}
        write_text(output, json.dumps(result, indent=1) + "\n")
        for name, row in rows.items():
            parts = [f"BLEU {row['bleu']:.2f}"]
            if "against" in row:
                parts.append(f"p = {row['p_value']:.3f} against {row['against']}, {row['equal']} equal")
            if "tokens_per_round" in row:
                parts.append(f"{row['tokens_per_round']:.2f} tokens a round")
            print(f"{name}: {', '.join(parts)}")
