"""`padir dyck`: trains a language model of brackets and a verifier of it, and compares samplers under the verifier."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from padir import rng
from padir.benchmark.facts import run_facts
from padir.data.dyck import is_complete
from padir.decoding.verifiers import Probe
from padir.demo.phases import Phases
from padir.dyck import inducing, language_model, laws, pictures, report, unseen
from padir.dyck.claims import all_claims
from padir.dyck.generator import Generator, Prefixes, nucleus, plain
from padir.dyck.judges import ActionHead, labelled, train_value, train_verifiers
from padir.dyck.mistakes import collect
from padir.dyck.settings import DyckConfig
from padir.files.atomic import make_folder, write_text
from padir.files.paths import local_path

MODEL, VERIFIER, VALUE = "language_model", "verifier", "value"


def dyck(*, output_dir: str, config: DyckConfig, quick: bool = False) -> dict[str, Any]:
    """Trains, collects errors, trains the verifier and compares samplers; prints the claims and writes a report.

    If it is started again after an interruption, it resumes and does not repeat finished phases.

    Args:
      output_dir: the folder for parameters, results of phases, `dyck.json`, `report.md` and pictures.
      config: the settings.
      quick: whether to use a small model and few prompts, which takes a few minutes. Its numbers mean little.

    Returns:
      The contents of dyck.json: results of each phase, claims, and facts of the run.

    Raises:
      PadirError: `output_dir` holds a run with other settings, or the language model makes too few errors.
    """
    config = config.quick() if quick else config
    experiment = _Experiment(local_path(output_dir), config)
    results = {name: experiment.result(name, work) for name, work in experiment.phases().items()}
    results["quick"] = quick
    results["claims"] = [claim.to_dict() for claim in all_claims(results)]
    results["facts"] = run_facts() | experiment.record.facts() | {"config": dataclasses.asdict(config)}
    drawn = pictures.draw_all(experiment.folder, results)
    write_text(experiment.folder / "dyck.json", json.dumps(results, indent=2) + "\n")
    write_text(experiment.folder / "report.md", report.page(results, drawn))
    for title, _, table in report.tables(results):
        print(f"\n{title}\n\n{table}")
    passed = [claim["passed"] for claim in results["claims"]]
    print("\n" + "\n".join(claim["line"] for claim in results["claims"]))
    print(f"{sum(passed)} of {len(passed)} claims passed\nreport: {experiment.folder / 'report.md'}")
    return results


class _Experiment:
    """The phases, and what they leave for one another in the output folder."""

    def __init__(self, folder: Path, config: DyckConfig):
        make_folder(folder)
        self.folder, self.config, self.record = folder, config, Phases(folder, config)

    def phases(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """What each phase does, by name, in order."""
        return {
            MODEL: self._train_model,
            VERIFIER: self._train_verifier,
            "inducing": self._complete_inducing,
            "unseen": lambda: unseen.unseen_errors(self._generator, self._probe),
            "diversity": lambda: unseen.diversity(self._generator, self._probe),
            VALUE: self._train_value,
            "laws": lambda: laws.compare(self._generator, self._probe, self._head),
        }

    def result(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of a phase, which runs unless it is finished already."""
        path = self.folder / f"{name}.json"
        self.record.run(name, lambda: write_text(path, json.dumps(work()) + "\n"))
        return json.loads(path.read_text(encoding="utf-8"))

    def _arrays(self, name: str) -> Path:
        return self.folder / f"{name}.npz"

    @cached_property
    def _generator(self) -> Generator:
        return Generator(self.config, language_model.load_params(self._arrays(MODEL), self.config))

    @property
    def _probe(self) -> Probe:
        stored = language_model.load_arrays(self._arrays(VERIFIER))
        return Probe(((stored["kernel"], stored["bias"]),), stored["mean"], stored["scale"])

    @property
    def _head(self) -> ActionHead:
        return ActionHead(**language_model.load_arrays(self._arrays(VALUE)))

    def _train_model(self) -> dict[str, Any]:
        """Trains the language model, and sees how well it knows the grammar."""
        config, grammar = self.config, self.config.grammar
        params, history = language_model.train_language_model(config)
        language_model.save_params(self._arrays(MODEL), params)
        key = rng.stream(config.seed, "dyck/validation")
        words = np.asarray(jax.jit(language_model.words_of, static_argnums=(0, 2))(grammar, key, config.num_samples))
        generator = Generator(config, params)
        nothing = np.zeros((config.num_samples, config.room), np.int32)
        empty = Prefixes(nothing, nothing[:, 0])
        samples = generator.complete(empty, plain(nucleus(1.0)), stream="samples").outputs
        log_probs = generator.read(Prefixes(words, np.full(len(words), config.room)))[1]
        return {
            "parameters": language_model.model_of(config).parameter_count(),
            "words": config.steps * config.batch_size,
            "closing_accuracy": language_model.closing_accuracy(config, params, words),
            "validity": float(is_complete(*samples, grammar).mean()),
            "loss": float(-log_probs.mean()),
            "entropy": float(-grammar.log_probability(words[:, :-1]).mean() / config.room),
            "history": history,
        }

    def _train_verifier(self) -> dict[str, Any]:
        """Collects errors and trains the linear verifier; the first repetition's is used from there on."""
        mistakes = collect(self._generator, "verifier")
        features, labels = labelled(self._generator, mistakes)
        trained = train_verifiers(self.config, features, labels)
        first = trained[0].probe
        ((kernel, bias),) = first.layers
        arrays = {"kernel": kernel, "bias": bias, "mean": first.mean, "scale": first.scale}
        language_model.save_arrays(self._arrays(VERIFIER), arrays)
        accuracies = [each.accuracy for each in trained]
        return {
            "tried": mistakes.tried,
            "accuracies": accuracies,
            "mean": float(np.mean(accuracies)),
            "spread": float(np.std(accuracies)),
            "points": np.round(pictures.principal_plane(features), 3).tolist(),
            "labels": labels.tolist(),
        }

    def _complete_inducing(self) -> dict[str, Any]:
        """Completes prefixes behind which the model went wrong."""
        generator, probe = self._generator, self._probe
        prefixes = collect(generator, "inducing").inducing
        return {
            "forced": inducing.forced_backtracks(generator, prefixes),
            "grid": inducing.verifiers_backtracks(generator, prefixes, probe),
        }

    def _train_value(self) -> dict[str, Any]:
        head, result = train_value(self._generator)
        arrays = {field.name: np.asarray(getattr(head, field.name)) for field in dataclasses.fields(head)}
        language_model.save_arrays(self._arrays(VALUE), arrays)
        return result
