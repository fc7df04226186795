"""What is said of a compiled program: one JSON object, and the same as text."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from padir.compilation.deviceless import compiler
from padir.compilation.hlo import Analysis, analyse
from padir.compilation.programs import Compiled, Decode, Refused, Update
from padir.compilation.topologies import Topology

_SHOWN = 12
_MEBI, _GIBI = 2**20, 2**30


def described_topology(topology: Topology) -> dict[str, Any]:
    """Returns the facts of a topology as JSON values."""
    devices = topology.devices()
    return {
        "name": topology.name,
        **topology.facts(),
        "chips": topology.chips,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "gibibytes": topology.gibibytes,
        "peak_teraflops": None if topology.peak_flops() is None else topology.peak_flops() / 1e12,
    }


def described(
    found: Compiled | Refused,
    topology: Topology,
    *,
    trips: int,
    branch: tuple[int, int] | None,
    flops: int,
    devices: int,
) -> dict[str, Any]:
    """Returns what the compiler says of a program as JSON values.

    Args:
      found: the program, or the compiler's refusal.
      topology: what it is compiled for.
      trips, branch: as in `hlo.analyse`.
      flops: operations of an execution, over all devices, by our own count.
      devices: how many devices execute it.
    """
    memory = int(topology.gibibytes * _GIBI)
    if isinstance(found, Refused):
        return {"fits": False, "reason": found.reason, "missing_bytes": found.missing_bytes, "memory_bytes": memory}
    said = analyse(found.text, trips, branch=branch)
    peak = topology.peak_flops()
    least = None if peak is None else flops / devices / peak
    of_platform = _estimates(said, found, topology, least) if topology.platform == "tpu" else {"least_seconds": least}
    return {
        "fits": True,
        "peak_bytes": found.peak_bytes,
        "memory_bytes": memory,
        "flops": flops,
        **of_platform,
        "collectives": [dataclasses.asdict(collective) for collective in said.collectives],
        "opcodes": dict(said.opcodes.most_common(_SHOWN)),
        "host_transfers": said.host_transfers,
        "lines": said.lines,
        "compile_seconds": found.seconds,
    }


def _estimates(said: Analysis, found: Compiled, topology: Topology, least: float | None) -> dict[str, Any]:
    """What only the compiler for TPUs says. XLA's models of what GPUs take contradict each other."""
    gigahertz = topology.facts()["gigahertz"]
    seconds = None if gigahertz is None else said.cycles / (1e9 * gigahertz)
    return {
        "estimated_cycles": said.cycles,
        "estimated_cycles_once": said.once,
        "loops": [dataclasses.asdict(loop) for loop in said.loops],
        "estimated_seconds": seconds,
        "estimated_mfu": None if not seconds or least is None else least / seconds,
        "by_source": _largest(said.by_source),
        "by_module": _largest(said.by_module),
        "program_bytes": found.program_bytes,
    }


def _largest(counted: Counter) -> dict[str, int]:
    return dict(counted.most_common(_SHOWN))


def estimate_of_run(update: Update, said: dict[str, Any], topology: Topology) -> dict[str, float | None]:
    """Returns tokens per second, hours and chip-hours of a run if all its updates were as this one."""
    seconds = said.get("estimated_seconds")
    if not seconds:
        return {"padded_tokens_per_second": None, "hours": None, "chip_hours": None}
    hours = seconds * update.num_steps / 3600
    return {
        "padded_tokens_per_second": 2 * update.batch_size * update.length / seconds,
        "hours": hours,
        "chip_hours": hours * topology.chips,
    }


def as_text(name: str, program: Update | Decode, said: dict[str, Any]) -> str:
    """Returns what is printed of a program."""
    memory = said["memory_bytes"] / _GIBI
    if not said["fits"]:
        missing = said["missing_bytes"]
        much = "" if missing is None else f"; {missing / _GIBI:.2f} GiB are missing"
        return f"{name}: does not fit into {memory:.0f} GiB{much}\n  {said['reason']}"
    estimated = "estimated_cycles" in said
    rows = [f"{name}: fits, {said['peak_bytes'] / _GIBI:.2f} of {memory:.0f} GiB"]
    rows += _time(program, said) if estimated else [_work(said)]
    for each in said["collectives"]:
        where = (", between slices" if each["between_slices"] else ", within a slice") if estimated else ""
        rows.append(f"  {each['kind']}: {each['count']} times, {each['bytes'] / _MEBI:.1f} MiB{where}")
    size = f"{said['program_bytes'] / _MEBI:.1f} MiB, " if estimated else ""
    rows.append(
        f"  program: {size}{said['lines']} lines, compiled in {said['compile_seconds']:.0f} s, "
        f"{said['host_transfers']} host transfers"
    )
    return "\n".join([*rows, *(_dearest(said) if estimated else ())])


def _time(program: Update | Decode, said: dict[str, Any]) -> list[str]:
    cycles = f"{said['estimated_cycles'] / 1e6:.3f} M cycles"
    if said["estimated_seconds"]:
        cycles += f", {1e3 * said['estimated_seconds']:.3f} ms"
    for loop in said["loops"]:
        known = "" if loop["known"] else " at most"
        cycles += f"; of these {loop['trips']}{known} x {loop['cycles'] / 1e6:.3f} M in a loop"
    mfu = "" if said["estimated_mfu"] is None else f", MFU {100 * said['estimated_mfu']:.1f}%"
    rows = [f"  time, without collectives: {cycles}", _work(said) + mfu]
    run = said.get("run")
    if run and run["hours"] is not None:
        rows.append(
            f"  run: {run['padded_tokens_per_second'] / 1e6:.2f} M tokens/s with padding; {run['hours']:.1f} hours, "
            f"{run['chip_hours']:.0f} chip-hours for {program.num_steps} such updates"
        )
    return rows


def _work(said: dict[str, Any]) -> str:
    row = f"  work: {said['flops'] / 1e12:.3f} TFLOP over all devices"
    if (least := said.get("least_seconds")) is None:
        return row
    return f"{row}, which take {1e3 * least:.3f} ms at the peak of the matrix units"


def _dearest(said: dict[str, Any]) -> list[str]:
    return [f"  {'share':>6}  dearest modules and lines, of the estimated cycles"] + [
        f"  {count / said['estimated_cycles']:6.1%}  {where}"
        for counted in (said["by_module"], said["by_source"])
        for where, count in counted.items()
        if count >= 0.01 * said["estimated_cycles"]
    ]


def credit(platform: str = "tpu") -> str:
    """Returns who says what is said, for every report.

    Args:
      platform: 'tpu' or 'gpu'.

    Raises:
      PadirError: the compiler for it is not installed.
    """
    package, version = compiler(platform)
    if platform == "tpu":
        return f"estimated by XLA's compiler for TPU ({package} {version}); nothing was run"
    return f"compiled by XLA for GPU, not autotuned; nothing was run, and no time is estimated ({package} {version})"
