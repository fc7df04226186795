"""Slices of TPUs by the cloud's names, such as 'v3-32' or 'v5litepod-16', and as the compiler knows them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies

from padir.errors import PadirError
from padir.runtime.device_peaks import peak_flops

# How the cloud arranges so many chips, for generations whose network is a plane and for those where it is a cube.
_PLANES = {1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16)}
_LARGER_PLANES = {512: (16, 32), 1024: (32, 32)}
_CUBES = {
    **{4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4), 64: (4, 4, 4), 128: (4, 4, 8), 256: (4, 8, 8)},
    **{512: (8, 8, 8), 1024: (8, 8, 16), 2048: (8, 16, 16)},
}


@dataclass(frozen=True)
class Generation:
    """One generation of TPUs.

    Attributes:
      name: as the compiler calls it.
      counts_cores: whether the number in a slice's name counts TensorCores, two a chip, or else chips.
      shapes: chips of a slice → their arrangement.
      ring: the smallest length at which an axis of the network closes to a ring.
      megacore: whether the two cores of a chip are one device.
      devices_per_chip: devices that JAX sees of a chip.
      gigahertz: the clock of a core. It is the peak of a chip divided by its operations per cycle. None if unknown.
      gibibytes: memory of a device.
    """

    name: str
    counts_cores: bool
    shapes: dict[int, tuple[int, ...]]
    ring: int
    megacore: bool
    devices_per_chip: int
    gigahertz: float | None
    gibibytes: float


# Clocks and memory as published at cloud.google.com/tpu/docs; a clock that is not is the peak in bfloat16 divided by
# the operations of all matrix units in a cycle (v5e: 4 units of 128², v5p: 8 of 128², v6e: 4 of 256²).
_GENERATIONS = {
    "v2": Generation("v2", True, _PLANES, 16, False, 2, 0.7, 8),
    "v3": Generation("v3", True, _PLANES | _LARGER_PLANES, 32, False, 2, 0.94, 16),
    "v4": Generation("v4", True, _CUBES, 4, True, 1, 1.05, 32),
    "v5e": Generation("v5e", False, _PLANES, 16, False, 1, 1.5, 16),
    "v5p": Generation("v5p", True, _CUBES, 4, True, 1, 1.75, 95),
    "v6e": Generation("v6e", False, _PLANES, 16, False, 1, 1.75, 32),
    "tpu7x": Generation("tpu7x", True, _CUBES, 4, False, 2, None, 96),
}
_ALIASES = {"v5litepod": "v5e", "v5lite": "v5e", "v7x": "tpu7x"}


@dataclass(frozen=True)
class Slice:
    """One or several slices of TPUs that are compiled for.

    Attributes:
      name: the cloud's name of one slice.
      generation: its generation.
      shape: its chips along each axis.
      num_slices: how many of them work together, connected by the data centre's network.
    """

    name: str
    generation: Generation
    shape: tuple[int, ...]
    num_slices: int = 1

    @property
    def platform(self) -> str:
        """What JAX calls them."""
        return "tpu"

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return math.prod(self.shape) * self.num_slices

    @property
    def gibibytes(self) -> float:
        """Memory of a device."""
        return self.generation.gibibytes

    @property
    def hosts(self) -> tuple[int, int, int]:
        """Chips of a host along each axis: four, but all eight of a v5e-8 or v6e-8, and one of a single chip."""
        chips = math.prod(self.shape)
        if chips == 1:
            return 1, 1, 1
        return (2, 4, 1) if chips == 8 and len(self.shape) == 2 else (2, 2, 1)

    @property
    def rings(self) -> tuple[bool, bool, bool]:
        """Which axes of the network close to a ring. Cubes do so only if they are made of whole 4x4x4 blocks."""
        if len(self.shape) == 3:
            closed = all(length % self.generation.ring == 0 for length in self.shape)
            return closed, closed, closed
        return *(length >= self.generation.ring for length in self.shape), False

    def devices(self) -> Sequence[jax.Device]:
        """Returns devices that programs can be compiled for, but that hold no arrays and run nothing.

        Raises:
          PadirError: the installed libtpu does not know them.
        """
        options = {"chips_per_host_bounds": self.hosts, "wrap": self.rings}
        if self.generation.megacore:
            options["chip_config_name"] = "megacore"
        if self.num_slices > 1:
            options["num_slices"] = self.num_slices
        name = f"{self.generation.name}:{'x'.join(map(str, self.shape))}"
        try:
            return topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0]
            raise PadirError(f"topology {self.name}: libtpu does not know it ({reason})") from error

    def peak_flops(self) -> float | None:
        """Returns the peak bfloat16 operations per second of one device; None if unknown."""
        return peak_flops(self.devices()[0].device_kind)

    def facts(self) -> dict[str, Any]:
        """Returns what only slices have, as JSON values."""
        return {
            "num_slices": self.num_slices,
            "shape": "x".join(map(str, self.shape)),
            "gigahertz": self.generation.gigahertz,
        }


def named(name: str, num_slices: int) -> Slice | None:
    """Returns the slices that the cloud calls `name`; None if it calls none so."""
    found = re.fullmatch(r"(\w+)-(\d+)", name)
    generation = found and _GENERATIONS.get(_ALIASES.get(found.group(1), found.group(1)))
    if generation is not None:
        chips, rest = divmod(int(found.group(2)), 2 if generation.counts_cores else 1)
        if not rest and chips in generation.shapes:
            return Slice(name, generation, generation.shapes[chips], num_slices)
    return None


def names() -> list[str]:
    """Returns the names of all slices, smallest first within a generation."""
    return [
        f"{generation.name}-{chips * (2 if generation.counts_cores else 1)}"
        for generation in _GENERATIONS.values()
        for chips in generation.shapes
        if chips > 1 or not generation.counts_cores
    ]
