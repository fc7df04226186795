"""What is said of a compiled program: one JSON object, and the same as text."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from padir.compilation.deviceless import libtpu_version
from padir.compilation.hlo import analyse
from padir.compilation.programs import Compiled, Decode, Refused, Update
from padir.compilation.topologies import Slice

_SHOWN = 12
_MEBI, _GIBI = 2**20, 2**30


def described_slice(topology: Slice) -> dict[str, Any]:
    """Returns the facts of a slice as JSON values."""
    devices = topology.devices()
    return {
        "name": topology.name,
        "num_slices": topology.num_slices,
        "shape": "x".join(map(str, topology.shape)),
        "chips": topology.chips,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "gigahertz": topology.generation.gigahertz,
        "gibibytes": topology.generation.gibibytes,
        "peak_teraflops": None if topology.peak_flops() is None else topology.peak_flops() / 1e12,
    }


def described(
    found: Compiled | Refused,
    topology: Slice,
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
    memory = topology.generation.gibibytes * _GIBI
    if isinstance(found, Refused):
        return {"fits": False, "reason": found.reason, "missing_bytes": found.missing_bytes, "memory_bytes": memory}
    said = analyse(found.text, trips, branch=branch)
    seconds = None
    if topology.generation.gigahertz is not None:
        seconds = said.cycles / (1e9 * topology.generation.gigahertz)
    peak = topology.peak_flops()
    return {
        "fits": True,
        "peak_bytes": found.peak_bytes,
        "memory_bytes": memory,
        "flops": flops,
        "estimated_cycles": said.cycles,
        "estimated_cycles_once": said.once,
        "loops": [dataclasses.asdict(loop) for loop in said.loops],
        "estimated_seconds": seconds,
        "estimated_mfu": None if not seconds or peak is None else flops / devices / peak / seconds,
        "by_source": _largest(said.by_source),
        "by_module": _largest(said.by_module),
        "collectives": [dataclasses.asdict(collective) for collective in said.collectives],
        "opcodes": dict(said.opcodes.most_common(_SHOWN)),
        "host_transfers": said.host_transfers,
        "program_bytes": found.program_bytes,
        "lines": said.lines,
        "compile_seconds": found.seconds,
    }


def _largest(counted: Counter) -> dict[str, int]:
    return dict(counted.most_common(_SHOWN))


def estimate_of_run(update: Update, said: dict[str, Any], topology: Slice) -> dict[str, float | None]:
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
    rows = [f"{name}: fits, {said['peak_bytes'] / _GIBI:.2f} of {memory:.0f} GiB"]
    cycles = f"{said['estimated_cycles'] / 1e6:.3f} M cycles"
    if said["estimated_seconds"]:
        cycles += f", {1e3 * said['estimated_seconds']:.3f} ms"
    for loop in said["loops"]:
        known = "" if loop["known"] else " at most"
        cycles += f"; of these {loop['trips']}{known} x {loop['cycles'] / 1e6:.3f} M in a loop"
    rows.append(f"  time, without collectives: {cycles}")
    mfu = "" if said["estimated_mfu"] is None else f", MFU {100 * said['estimated_mfu']:.1f}%"
    rows.append(f"  work: {said['flops'] / 1e12:.3f} TFLOP over all devices{mfu}")
    run = said.get("run")
    if run and run["hours"] is not None:
        rows.append(
            f"  run: {run['padded_tokens_per_second'] / 1e6:.2f} M tokens/s with padding; {run['hours']:.1f} hours, "
            f"{run['chip_hours']:.0f} chip-hours for {program.num_steps} such updates"
        )
    for each in said["collectives"]:
        where = "between slices" if each["between_slices"] else "within a slice"
        rows.append(f"  {each['kind']}: {each['count']} times, {each['bytes'] / _MEBI:.1f} MiB, {where}")
    rows.append(
        f"  program: {said['program_bytes'] / _MEBI:.1f} MiB, {said['lines']} lines, "
        f"compiled in {said['compile_seconds']:.0f} s, {said['host_transfers']} host transfers"
    )
    rows += [f"  {'share':>6}  dearest modules and lines, of the estimated cycles"]
    for counted in (said["by_module"], said["by_source"]):
        rows += [
            f"  {count / said['estimated_cycles']:6.1%}  {where}"
            for where, count in counted.items()
            if count >= 0.01 * said["estimated_cycles"]
        ]
    return "\n".join(rows)


def credit() -> str:
    """Returns who made the estimates, for every report."""
    return f"estimated by XLA's compiler for TPU (libtpu {libtpu_version()}); nothing was run"
