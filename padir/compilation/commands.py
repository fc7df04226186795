"""`padir compile`: compiles the programs of another command for TPUs or GPUs, and says whether they fit and cost."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from padir.benchmark.facts import run_facts
from padir.benchmark.latency import latency
from padir.benchmark.systems import System
from padir.benchmark.work import decode_cost, rows_per_source, target_width
from padir.benchmark.workloads import Workload
from padir.checks import whole
from padir.compilation import deviceless, report
from padir.compilation.programs import Compiled, Decode, Refused, Update, compiled
from padir.compilation.topologies import Topology, named
from padir.decoding.guided import Guided
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.files.paths import local_path
from padir.inference.decoder import padded_rows, source_width
from padir.inference.translate import translate_files
from padir.models.kinds import DecodeConfig, Model, decoding_model, default_decode
from padir.models.padir_decoding import target_buckets
from padir.nn import fastest_type
from padir.runs.directory import load_model
from padir.runtime.platforms import tracing_for
from padir.runtime.remat import CHOICES as REMATS
from padir.training.describe import num_pieces
from padir.training.train import train
from padir.types import TokenIds


class DoesNotFit(PadirError):
    """A program needs more memory than a device has."""

    status = 1


def compile_train(
    arguments: Mapping[str, Any],
    *,
    topology: str,
    num_slices: int = 1,
    output: str | None = None,
    save: str | None = None,
    hlo: str | None = None,
    every_bucket: bool = False,
    try_others: bool = True,
) -> dict[str, Any]:
    """Compiles the update of a training run for TPUs or GPUs. Neither these nor data are needed.

    Args:
      arguments: of `padir train`, by name.
      topology: the cloud's name of a slice of TPUs, such as 'v3-32' or 'v5litepod-16'; 'h100-8' for eight GPUs.
      num_slices: the number of such slices.
      output: the JSON file to write; None writes none.
      save: the folder to write the serialised programs to.
      hlo: the folder to write the programs' text to.
      every_bucket: whether to compile the update of every bucket, not only of the longest.
      try_others: whether to look for a `remat`, `layout` or `accumulate` that fits if the given ones do not.

    Returns:
      The contents of the JSON file.

    Raises:
      DoesNotFit: a program needs more memory than there is.
      PadirError: the topology is unknown, or an argument is invalid.
    """
    given = _with_defaults(train, arguments)
    slices = named(topology, num_slices)
    for name in ("num_steps", "batch_size", "accumulate"):
        whole(f"train.{name}", given[name])
    model = given["model"](TokenIds(num_pieces(given["data_dir"], given["settings"])))
    buckets = sorted(given["buckets"])
    updates = {
        f"update, {length} tokens": Update(
            model,
            given["num_steps"],
            given["batch_size"],
            length,
            given["optimizer"],
            given["layout"],
            given["remat"],
            given["accumulate"],
            given["guards"].skip_non_finite,
            given["scan_layers"],
            given["compute_type"],
        )
        for length in (buckets if every_bucket else buckets[-1:])
    }
    job = _Job(slices, output, save, hlo)
    for name, update in updates.items():
        said = job.add(name, update, flops=update.flops(), devices=len(slices.devices()))
        if said["fits"] and slices.platform == "tpu":
            said["run"] = report.estimate_of_run(update, said, slices)
        elif not said["fits"] and try_others:
            said["would_fit"] = _what_fits(update, slices)
        job.tell(name, update)
    return job.finish()


def _compiled(program: Update | Decode, topology: Topology) -> Compiled | Refused:
    """Compiles a program. XLA itself refuses what is too large for a TPU, but not what is too large for a GPU."""
    return compiled(lambda: program.lower(topology), topology.gibibytes if topology.platform == "gpu" else None)


def _what_fits(update: Update, topology: Topology) -> str | None:
    """Tries to compile variants of an update that does not fit; returns the first that does, as gin bindings."""
    tried = [("train.remat = {remat!r}", {"remat": remat}) for remat in REMATS[REMATS.index(update.remat) + 1 :]]
    tried += [
        (
            "Layout.preset = 'fsdp'\ntrain.remat = {remat!r}",
            {"layout": dataclasses.replace(update.layout, preset="fsdp", model=1), "remat": remat},
        )
        for remat in ("none", "layer")
        if update.layout.preset == "data"
    ]
    tried += [
        ("train.accumulate = {accumulate}\ntrain.remat = 'layer'", {"accumulate": ways, "remat": "layer"})
        for ways in (2, 4, 8)
        if ways > update.accumulate
    ]
    for text, options in tried:
        other = dataclasses.replace(update, **options)
        try:
            found = _compiled(other, topology)
        except PadirError:
            continue
        if isinstance(found, Compiled):
            return text.format_map(dataclasses.asdict(other))
    return None


def compile_translate(
    arguments: Mapping[str, Any],
    *,
    topology: str,
    source_length: int | None = None,
    devices: int | None = None,
    output: str | None = None,
    save: str | None = None,
    hlo: str | None = None,
) -> dict[str, Any]:
    """Compiles the decode of a batch for one host with TPUs or GPUs. Checkpoints are not read.

    Args:
      arguments: of `padir translate`, by name.
      topology: the cloud's name of a slice of TPUs, such as 'v5litepod-4'; 'h100-8' for eight GPUs.
      source_length: source tokens of the longest sentence in the batch; the most that the model allows if None.
      devices: how many devices of the host to use; all if None.
      output: the JSON file to write; None writes none.
      save: the folder to write the serialised program to.
      hlo: the folder to write the program's text to.

    Returns:
      The contents of the JSON file.

    Raises:
      DoesNotFit: the program needs more memory than there is.
      PadirError: the topology is unknown, or an argument is invalid.
    """
    given = _with_defaults(translate_files, arguments)
    _refuse_verified(given["decode"], given["verify_with"])
    if isinstance(given["decode"], Guided) or given["verifier"] is not None:
        raise PadirError(
            "padir compile: a compiler cannot know how many tokens generation under a verifier discards; leave out "
            "Guided and verifier"
        )
    if given["constraint"] is not None:
        raise PadirError(
            "padir compile: the program under a constraint depends on the terms of each batch; leave constraint out"
        )
    job = _Job(named(topology), output, save, hlo)
    model, _ = load_model(given["run_dir"])
    decode = given["decode"] or default_decode(model)
    longest = source_length or model.max_source_length
    _add_decode(job, "batch", model, decode, given["batch_size"], longest, longest, devices, given["compute_type"])
    return job.finish()


def compile_latency(
    arguments: Mapping[str, Any],
    *,
    topology: str,
    devices: int | None = None,
    output: str | None = None,
    save: str | None = None,
    hlo: str | None = None,
) -> dict[str, Any]:
    """Compiles the requests of a latency benchmark for one host with TPUs or GPUs.

    The longest request of the workload is compiled for each system.

    Args:
      arguments: of `padir benchmark latency`, by name.
      topology: the cloud's name of a slice of TPUs, such as 'v5litepod-1'; 'h100-1' for one GPU.
      devices: how many devices of the host to use; all if None.
      output: the JSON file to write; None writes none.
      save: the folder to write the serialised programs to.
      hlo: the folder to write the programs' text to.

    Returns:
      The contents of the JSON file.

    Raises:
      DoesNotFit: a program needs more memory than there is.
      PadirError: the topology is unknown, or an argument is invalid.
    """
    given = _with_defaults(latency, arguments)
    for system in given["systems"]:
        _refuse_verified(system.decode, system.verify_with)
    job = _Job(named(topology), output, save, hlo)
    systems = {system.name: (system, _model_of(system, given["num_pieces"])) for system in given["systems"]}
    workload: Workload = given["workload"]
    allowed = min(min(model.max_source_length, model.max_target_length) for _, model in systems.values())
    requests = workload.requests(allowed)
    source = max(len(request.source) for request in requests)
    target = max(request.target_length or len(request.source) for request in requests)
    for name, (system, model) in systems.items():
        decode = system.decode or default_decode(model)
        _add_decode(
            job, name, model, decode, given["batch_size"], source, target, devices, system.compute_type, given=True
        )
    return job.finish()


def _refuse_verified(decode: DecodeConfig | None, verify_with: str | None) -> None:
    if isinstance(decode, Verified) or verify_with is not None:
        raise PadirError(
            "padir compile: a compiler cannot know how many rounds verified decoding takes; leave out Verified and "
            "verify_with. "
            "benchmarks/tpu_programs.py estimates a round"
        )


def _model_of(system: System, pieces: int) -> Model:
    return load_model(system.run_dir)[0] if system.model is None else system.model(TokenIds(pieces))


def _add_decode(
    job: _Job,
    name: str,
    model: Model,
    decode: Any,
    batch_size: int,
    source: int,
    target: int,
    devices: int | None,
    compute_type: str | None,
    *,
    given: bool = False,
) -> None:
    """Compiles the decode of a batch whose longest sentences have so many tokens, and tells of it."""
    there = job.topology.devices()
    of_host = sum(device.process_index == there[0].process_index for device in there)
    used = of_host if devices is None else devices
    if not 1 <= used <= of_host:
        raise PadirError(f"devices: {used} is not between 1 and the {of_host} devices of a host of {job.topology.name}")
    rows, width = padded_rows(batch_size, used), source_width(model, source)
    with tracing_for(job.topology.platform):
        compute_type = fastest_type.resolved("compute_type", compute_type)
    model = decoding_model(model, decode)
    program = Decode(model, decode, rows, width, used, compute_type, given)
    room = target_width(model, decode, width, target)
    steps = decode.num_steps if isinstance(decode, Refinement) else (target if given else room)
    cost = decode_cost(
        model, decode, rows=rows, source=width, target=room, steps=steps, hypotheses=rows_per_source(decode)
    )
    branch = None
    if isinstance(decode, Refinement):
        buckets = target_buckets(model, decode)
        branch = len(buckets), buckets.index(room)
    # With candidates the first step, which finds them, lies before the loop.
    outside = isinstance(decode, Refinement) and decode.candidates is not None
    said = job.add(name, program, trips=steps - outside, branch=branch, flops=cost.flops, devices=used)
    said |= {"rows": rows, "devices": used, "source": width, "target": room, "steps": steps}
    said |= {"decode": repr(decode), "compute_type": compute_type}
    job.tell(name, program)


class _Job:
    """Collects what is said of the programs of one command, and writes it."""

    def __init__(self, topology: Topology, output: str | None, save: str | None, hlo: str | None):
        self.topology = topology
        self.output = output
        self.save, self.hlo = (folder if folder is None else local_path(folder) for folder in (save, hlo))
        self.programs: dict[str, dict[str, Any]] = {}
        deviceless.check(topology.platform)
        self.credit = report.credit(topology.platform)
        print(f"{topology.name}: {self.credit}")

    def add(
        self,
        name: str,
        program: Update | Decode,
        *,
        flops: int,
        devices: int,
        trips: int = 1,
        branch: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        """Compiles a program, writes what was asked for, and returns what is said of it, which may be added to."""
        found = _compiled(program, self.topology)
        said = report.described(found, self.topology, trips=trips, branch=branch, flops=flops, devices=devices)
        self.programs[name] = said
        if isinstance(found, Compiled):
            stem = re.sub(r"\W+", "_", name)
            if self.hlo is not None:
                _in_folder(self.hlo, f"{stem}.txt", found.text.encode())
            if self.save is not None:
                _in_folder(self.save, f"{stem}.bin", found.executable.runtime_executable().serialize())
        return said

    def tell(self, name: str, program: Update | Decode) -> None:
        """Prints what is said of a program."""
        said = self.programs[name]
        print(report.as_text(name, program, said), flush=True)
        if "would_fit" in said:
            found = said["would_fit"]
            print(f"  this fits: {'; '.join(found.splitlines())}" if found else "  no remat, layout or accumulate fits")

    def finish(self) -> dict[str, Any]:
        """Writes the JSON file and returns its contents; raises DoesNotFit if a program does not fit."""
        facts = run_facts()
        package, version = deviceless.compiler(self.topology.platform)
        facts["versions"][package] = version
        del facts["device"], facts["device_count"]
        result = {
            "facts": facts,
            "estimated_by" if self.topology.platform == "tpu" else "compiled_by": self.credit,
            "topology": report.described_topology(self.topology),
            "programs": self.programs,
        }
        if self.output is not None:
            write_text(self.output, json.dumps(result, indent=2) + "\n")
        if too_large := [name for name, said in self.programs.items() if not said["fits"]]:
            raise DoesNotFit(f"{too_large[0]} does not fit into the memory of a device of {self.topology.name}")
        return result


class _Arguments(dict):
    """Arguments by name."""

    def __missing__(self, name: str) -> Any:
        raise PadirError(f"no value for {name}; name a --gin_file that sets it, or give --{name}=…")


def _in_folder(folder: Path, name: str, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def _with_defaults(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a call of `function` would have. A missing one is an error only when it is looked up."""
    parameters: Iterable[inspect.Parameter] = inspect.signature(function).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return _Arguments(defaults | dict(arguments))
