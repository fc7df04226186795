"""`padir demo`: trains a teacher and two students on the synthetic language pair and compares them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from padir.benchmark.facts import run_facts
from padir.benchmark.latency import Asked
from padir.benchmark.measure import Timing, take_turns
from padir.benchmark.pictures import distributions
from padir.benchmark.systems import Opened
from padir.benchmark.workloads import fitting_requests
from padir.data.manifest import PrepareSettings, TaskConfig
from padir.data.prepare_process import prepare_in_process
from padir.data.records import Example, PreparedSet
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement
from padir.decoding.stopping import StopWhenConfident
from padir.decoding.verified import Verified
from padir.demo.phases import Phases
from padir.evaluation import pictures
from padir.evaluation.evaluate import decode_examples, score
from padir.files.atomic import make_folder, write_text
from padir.files.paths import local_path
from padir.inference import page
from padir.inference.distill import distill
from padir.inference.trace import LENGTHS_SHOWN, traced, watch
from padir.inference.translator import Translation, Translator, load
from padir.metrics.bootstrap import paired_bootstrap
from padir.models.autoregressive import AutoregressiveModel
from padir.models.base import LossConfig
from padir.models.kinds import DecodeConfig
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.objectives.corruption import CorruptionConfig
from padir.training.optimizers import OptimizerConfig
from padir.training.train import Cadence, ModelFactory, train

TEACHER = "AR greedy"
RAW, DISTILLED = "raw", "distilled"
VERIFIED = "teacher verifies distilled"


@dataclass(frozen=True)
class DemoConfig:
    """The settings of the demo; `gin/runs/demo.gin` sets their values.

    Attributes:
      ambiguity: probability, 0 to 1, of a target drawn from all valid translations instead of the canonical one.
      num_train, num_test: number of sentence pairs.
      num_pieces: vocabulary size.
      network: size of all three models. The demo sets its fields for the kind of decoder.
      max_length: maximum length of source and target, in tokens.
      buckets: padded lengths in training and in decoding.
      batch_size: examples per update.
      teacher_steps, student_steps: number of updates.
      teacher_optimizer, student_optimizer: settings of Adafactor.
      corruption, num_stages, length_loss_weight, relative_length: settings of the students' training, which starts
        from the teacher's encoder and decoder.
      distill_sentences: number of training sentences that the teacher translates; None for all.
      refinement_steps: numbers of refinement steps to compare.
      num_hypotheses: lengths tried per sentence.
      confidence: a sentence is finished when every token has at least this probability, or when nothing has changed.
      latency_sentences, latency_repeats: requests timed per system, and how often each is timed.
      seed: random seed of the whole demo.
    """

    ambiguity: float
    num_train: int
    num_test: int
    num_pieces: int
    network: NetworkConfig
    max_length: int
    buckets: tuple[int, ...]
    batch_size: int
    teacher_steps: int
    student_steps: int
    teacher_optimizer: OptimizerConfig
    student_optimizer: OptimizerConfig
    corruption: CorruptionConfig = CorruptionConfig()
    num_stages: int = 2
    length_loss_weight: float = 1.0
    relative_length: bool = True
    distill_sentences: int | None = None
    refinement_steps: tuple[int, ...] = (1, 2, 4, 10)
    num_hypotheses: int = 1
    confidence: float = 0.8
    latency_sentences: int = 100
    latency_repeats: int = 3
    seed: int = 0


def demo(*, output_dir: str, config: DemoConfig, report_dir: str = "report") -> dict[str, Any]:
    """Trains, distils and compares; prints one table and writes a report.

    If the demo is started again after an interruption, it resumes and does not repeat finished phases.

    Args:
      output_dir: the folder for data, runs and checkpoints.
      config: the settings.
      report_dir: the folder for `demo.json`, `report.md` and figures.

    Returns:
      The contents of demo.json: scores and latency of each system, paired bootstrap tests, and facts of the run.

    Raises:
      PadirError: `output_dir` holds a demo with other settings.
    """
    directory = local_path(output_dir)
    make_folder(directory)
    phases = Phases(directory, config)
    folders = {
        "data": str(directory / "data"),
        "distilled": str(directory / "distilled"),
        "teacher": str(directory / "teacher"),
        "raw": str(directory / "student_on_raw_data"),
        "student": str(directory / "student_on_distilled_data"),
    }
    _train_all(phases, config, folders)

    began = time.perf_counter()
    print("[evaluate]", file=sys.stderr)
    data = PreparedSet.open(folders["data"])
    test = data.split("test")
    examples = test.read(range(len(test)))
    systems = _systems(config, folders)
    translations = {
        name: decode_examples(translator, examples, decode, batch_size=64, label=name)
        for name, (translator, decode) in systems.items()
    }
    texts = [example.source_text for example in examples]
    requests = fitting_requests(texts, data.vocabulary(), config.max_length)[: config.latency_sentences]
    latencies = take_turns(
        {name: Asked(name, Opened(*system)) for name, system in systems.items()},
        [(request,) for request in requests],
        repeats=config.latency_repeats,
        seed=config.seed,
    )
    result = _result(config, systems, translations, latencies, examples, data.manifest.checker)
    phases.add("evaluate", time.perf_counter() - began)
    result["facts"] = run_facts() | phases.facts() | {"config": dataclasses.asdict(config)}
    drawn = _draw(local_path(report_dir), config, result, systems, latencies, examples, translations)
    table = pictures.comparison_table(result["systems"])
    write_text(
        local_path(report_dir) / "demo.json", json.dumps(result, indent=2, ensure_ascii=False, default=list) + "\n"
    )
    write_text(local_path(report_dir) / "report.md", pictures.demo_page(result, table, drawn))
    print(f"\n{table}\n\nreport: {local_path(report_dir) / 'report.md'}")
    return result


def _train_all(phases: Phases, config: DemoConfig, folders: dict[str, str]) -> None:
    """Prepares the data, trains the teacher, distils, and trains both students."""
    phases.run("prepare", lambda: _prepare(config, folders["data"]))
    phases.run("train teacher", lambda: train_teacher(config, folders["data"], folders["teacher"]))
    phases.run("distill", lambda: _distill(config, folders))
    for data, student in (("data", "raw"), ("distilled", "student")):
        # Both students need the same compiled programs; the second student takes them from the cache.
        phases.run(
            f"train {Path(folders[student]).name}",
            lambda data=data, student=student: train_student(
                config, folders[data], folders[student], folders["teacher"]
            ),
        )


def _prepare(config: DemoConfig, data_dir: str) -> None:
    options = {
        "num_train": config.num_train,
        "num_validation": 500,
        "num_test": config.num_test,
        "ambiguity": config.ambiguity,
        "seed": config.seed,
    }
    settings = PrepareSettings(
        num_pieces=config.num_pieces,
        # The lexicon is so small that whole words can be pieces; only BPE, not unigram, makes them so.
        model_type="bpe",
        max_source_length=config.max_length,
        max_target_length=config.max_length,
    )
    prepare_in_process(TaskConfig("tasks.synthetic", "synthetic", options), data_dir, settings)


def train_teacher(config: DemoConfig, data_dir: str, run_dir: str) -> None:
    """Trains an autoregressive model as the demo does, or goes on where its run ended.

    Args:
      config: the demo's settings.
      data_dir: a prepared set.
      run_dir: the run directory to write.
    """
    network = dataclasses.replace(config.network, causal=True, positional_attention=False)
    _train(
        config,
        data_dir,
        run_dir,
        lambda ids: AutoregressiveModel(ids, network, config.max_length, config.max_length),
        config.teacher_steps,
        config.teacher_optimizer,
    )


def train_student(config: DemoConfig, data_dir: str, run_dir: str, teacher_dir: str, **options: bool) -> None:
    """Trains a PaDIR model as the demo does, or goes on where its run ended.

    Args:
      config: the demo's settings.
      data_dir: a prepared or distilled set.
      run_dir: the run directory to write.
      teacher_dir: run directory of the autoregressive model that it starts from.
      **options: what else `PadirModel` learns, such as `causal_stage`.
    """
    with _compilation_cache(Path(run_dir).parent / "compiled"):
        _train(
            config,
            data_dir,
            run_dir,
            lambda ids: PadirModel(
                ids,
                config.network,
                config.max_length,
                config.max_length,
                loss=LossConfig(length_loss_weight=config.length_loss_weight),
                corruption=config.corruption,
                num_stages=config.num_stages,
                relative_length=config.relative_length,
                **options,
            ),
            config.student_steps,
            config.student_optimizer,
            initialize_from=teacher_dir,
        )


@contextlib.contextmanager
def _compilation_cache(folder: Path) -> Iterator[None]:
    """Makes JAX cache compiled programs in `folder`, and restores the setting afterwards."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(folder))
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def _train(
    config: DemoConfig,
    data_dir: str,
    run_dir: str,
    model: ModelFactory,
    num_steps: int,
    optimizer: OptimizerConfig,
    initialize_from: str | None = None,
) -> None:
    train(
        run_dir=run_dir,
        data_dir=data_dir,
        model=model,
        num_steps=num_steps,
        batch_size=config.batch_size,
        buckets=config.buckets,
        optimizer=optimizer,
        cadence=Cadence(log=100, evaluate=0, checkpoint=500, keep=1),
        seed=config.seed,
        initialize_from=initialize_from,
    )


def _distill(config: DemoConfig, folders: dict[str, str]) -> None:
    distill(
        run_dir=folders["teacher"],
        data_dir=folders["data"],
        output_dir=folders["distilled"],
        # Greedy, because beam search would take minutes.
        decode=Autoregressive(),
        limit=config.distill_sentences,
    )


def _student_name(data: str, steps: int) -> str:
    return f"PaDIR {data}, {steps} step{'s' if steps > 1 else ''}"


def _refinement(config: DemoConfig, steps: int) -> Refinement:
    return Refinement(
        num_steps=steps,
        num_hypotheses=config.num_hypotheses,
        stop=StopWhenConfident(config.confidence),
        target_buckets=config.buckets,
    )


def _systems(config: DemoConfig, folders: dict[str, str]) -> dict[str, tuple[Translator, DecodeConfig]]:
    """The systems of the table, in its order."""
    systems: dict[str, tuple[Translator, DecodeConfig]] = {TEACHER: (load(folders["teacher"]), Autoregressive())}
    for data, folder in ((RAW, "raw"), (DISTILLED, "student")):
        translator = load(folders[folder])
        for steps in config.refinement_steps:
            systems[_student_name(data, steps)] = (translator, _refinement(config, steps))
    verifying = load(folders["student"], verify_with=folders["teacher"])
    return systems | {VERIFIED: (verifying, Verified(target_buckets=config.buckets))}


def _result(
    config: DemoConfig,
    systems: dict[str, tuple[Translator, DecodeConfig]],
    translations: dict[str, list[Translation]],
    latencies: dict[str, Timing],
    examples: list[Example],
    checker: str | None,
) -> dict[str, Any]:
    """Scores, latencies, speed-ups and significance tests, in the form of demo.json."""
    teacher_latency = latencies[TEACHER].to_dict()
    by_system = {}
    for name in systems:
        latency = latencies[name].to_dict()
        by_system[name] = {
            **score(translations[name], examples, checker, with_ter=False),
            "latency_ms": latency,
            "speed_up": teacher_latency["median"] / latency["median"],
        }
    texts = {name: [translation.text for translation in rows] for name, rows in translations.items()}
    references = [example.target_text for example in examples]
    best = _student_name(DISTILLED, _middle_steps(config))
    tests = {}
    for other in (TEACHER, _student_name(RAW, _middle_steps(config))):
        compared = paired_bootstrap(texts[best], texts[other], references)
        tests[f"{best} against {other}"] = {metric: test.to_dict() for metric, test in compared.items()}
    equal = sum(ours == theirs for ours, theirs in zip(texts[VERIFIED], texts[TEACHER], strict=True))
    return {"systems": by_system, "paired_bootstrap": tests, "verified_equal_to_teacher": equal}


def _middle_steps(config: DemoConfig) -> int:
    """The number of steps used for the significance tests: 4 if it is among those compared."""
    return 4 if 4 in config.refinement_steps else config.refinement_steps[-1]


def _draw(
    report_dir: Path,
    config: DemoConfig,
    result: dict[str, Any],
    systems: dict[str, tuple[Translator, DecodeConfig]],
    latencies: dict[str, Timing],
    examples: list[Example],
    translations: dict[str, list[Translation]],
) -> list[tuple[str, str]]:
    """Draws the figures; returns (file name, caption) of each."""
    make_folder(report_dir)
    scores = result["systems"]
    curves = {
        f"PaDIR {data}": {steps: scores[_student_name(data, steps)] for steps in config.refinement_steps}
        for data in (RAW, DISTILLED)
    }
    pictures.quality_by_steps(report_dir / "quality.png", curves, scores[TEACHER], TEACHER)
    shown = [TEACHER, *(_student_name(DISTILLED, steps) for steps in config.refinement_steps), VERIFIED]
    distributions(report_dir / "latency.png", {name: latencies[name].samples for name in shown})

    # The sentence that needed the most steps until it was correct shows refinement best.
    name = _student_name(DISTILLED, max(config.refinement_steps))
    translator = systems[name][0]
    valid = [
        index
        for index, (row, example) in enumerate(zip(translations[name], examples, strict=True))
        if row.text == example.target_text and row.predicted_length <= 16
    ]
    chosen = max(valid or [0], key=lambda index: translations[name][index].steps_run)
    source, text = examples[chosen].source_ids, examples[chosen].source_text
    plain = systems[name][1]
    translation = translator.translate_ids([source], traced(plain), batch_size=1)[0]
    pictures.refinement_steps(
        report_dir / "refinement.png",
        text,
        jax.tree.map(lambda field: field[:, 0], translation.trace),
        translation.steps_run,
        translator.vocabulary.pieces,
        drop_repeats=plain.drop_repeats,
    )
    several = dataclasses.replace(plain, num_hypotheses=LENGTHS_SHOWN)
    told = watch(translator, source, several, name=name, text=text, plain=plain)[1]
    teacher, decode = systems[TEACHER]
    shown_beside = watch(teacher, source, decode, name=TEACHER, text=text)[1]
    write_text(report_dir / pictures.WATCHED, page.standalone([told, shown_beside], title="PaDIR: the demo"))
    return [
        ("quality.png", "Quality against the number of refinement steps; the dashed line is the teacher"),
        ("latency.png", "Latency of single sentences: the share of requests answered within each time"),
        ("refinement.png", "The sentence that needed most steps; the output drops what is written twice"),
    ]
