"""What the subcommands run, what gin files can make, and where configurations are kept (layer 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from padir import (
    convert,
    demo,
    describe_checkpoint,
    distill,
    evaluate,
    models,
    network,
    optimizers,
    tables,
    train,
    translate,
)
from padir.analysis.attention import attention
from padir.average import average
from padir.benchmark import compare, latency, roofline, systems, throughput, workloads
from padir.corruption import CorruptionConfig
from padir.data.manifest import PrepareSettings, TaskConfig
from padir.data.prepare_process import prepare_in_process, train_vocabulary_in_process
from padir.decoding import (
    autoregressive,
    beam,
    initial,
    ranking,
    refinement,
    remasking,
    replacement,
    sampling,
    stopping,
)
from padir.guards import Guards
from padir.sharding import Layout
from padir.theory.run import theory

# What each subcommand runs.
COMMANDS: dict[str, Callable[..., Any]] = {
    "prepare": prepare_in_process,
    "vocabulary": train_vocabulary_in_process,
    "train": train.train,
    "evaluate": evaluate.evaluate,
    "tables": tables.tables,
    "translate": translate.translate_files,
    "distill": distill.distill,
    "benchmark_latency": latency.latency,
    "benchmark_throughput": throughput.throughput,
    "benchmark_roofline": roofline.roofline,
    "benchmark_compare": compare.compare,
    "analyze_attention": attention,
    "demo": demo.demo,
    "theory": theory,
    "import": convert.import_checkpoint,
    "export": convert.export_checkpoint,
    "checkpoint": describe_checkpoint.describe_checkpoint,
    "average": average,
}

# What gin files can make with @NAME().
DATACLASSES = (
    network.NetworkConfig,
    models.LossConfig,
    models.PadirModel,
    models.AutoregressiveModel,
    CorruptionConfig,
    optimizers.OptimizerConfig,
    train.Cadence,
    Layout,
    Guards,
    TaskConfig,
    PrepareSettings,
    refinement.Refinement,
    autoregressive.Autoregressive,
    beam.BeamSearch,
    sampling.Sampling,
    *initial.POLICIES,
    *remasking.POLICIES,
    *replacement.POLICIES,
    *stopping.POLICIES,
    *ranking.POLICIES,
    distill.DistillFilters,
    systems.System,
    workloads.FixedLengths,
    workloads.ParallelText,
    workloads.PreparedText,
    demo.DemoConfig,
)

# Where each subcommand's operative configuration is kept: beside its result. Translations written to standard output
# have no place beside them: theirs is not kept.
OPERATIVE_FILES: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "prepare": lambda given: f"{given['output_dir']}/prepare.gin",
    "vocabulary": lambda given: f"{given['output']}.gin",
    "train": lambda given: None if given["describe"] else f"{given['run_dir']}/train.gin",
    "evaluate": lambda given: f"{given['output_dir']}/{given['name']}.gin",
    "tables": lambda given: f"{given['output_dir']}/tables.gin",
    # Shards lie in a folder; hosts numbered by hand would all write its file at once.
    "translate": lambda given: (
        None
        if given["output"] == "-" or given["host_index"]
        else f"{given['output']}{'.gin' if given['shards'] is None else '/translate.gin'}"
    ),
    "distill": lambda given: f"{given['output_dir']}/distill.gin",
    "benchmark_latency": lambda given: f"{given['output']}.gin",
    "benchmark_throughput": lambda given: f"{given['output']}.gin",
    "benchmark_roofline": lambda given: f"{given['output']}.gin",
    "benchmark_compare": lambda given: None,
    "analyze_attention": lambda given: f"{given['output_dir']}/attention.gin",
    "demo": lambda given: f"{given['report_dir']}/demo.gin",
    "theory": lambda given: f"{given['output_dir']}/theory.gin",
    "import": lambda given: f"{given['output_dir']}/import.gin",
    "export": lambda given: f"{given['output_dir']}/export.gin",
    "checkpoint": lambda given: None,
    "average": lambda given: f"{given['output_dir']}/average.gin",
}
