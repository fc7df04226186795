"""What programs are compiled for: slices of TPUs and nodes of GPUs, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax

from padir.compilation import gpus, tpus
from padir.errors import PadirError


class Topology(Protocol):
    """Devices that programs are compiled for. Nobody need have them.

    Attributes:
      name: as in `named`.
    """

    name: str

    @property
    def platform(self) -> str:
        """What JAX calls them: 'tpu' or 'gpu'."""
        ...

    @property
    def chips(self) -> int:
        """Chips or GPUs in all."""
        ...

    @property
    def gibibytes(self) -> float:
        """Memory of a device."""
        ...

    def devices(self) -> Sequence[jax.Device]:
        """Returns devices that programs can be compiled for, but that hold no arrays and run nothing.

        Raises:
          PadirError: the installed compiler does not know them.
        """
        ...

    def peak_flops(self) -> float | None:
        """Returns the peak bfloat16 operations per second of one device; None if unknown."""
        ...

    def facts(self) -> dict[str, Any]:
        """Returns what only this kind of topology has, as JSON values."""
        ...


def named(name: str, num_slices: int = 1) -> Topology:
    """Returns the slices of TPUs or the nodes of GPUs that are called `name`.

    Args:
      name: such as 'v3-32', 'v4-32', 'v5litepod-16' or 'v5e-16', 'v5p-8', 'v6e-16' as the cloud says; 'h100-8' for
        eight GPUs.
      num_slices: how many such slices of TPUs; 1 for GPUs.

    Raises:
      PadirError: there is no such topology (lists the names there are), or `num_slices` is not possible.
    """
    if num_slices < 1:
        raise PadirError(f"num_slices: {num_slices} is not at least 1")
    if found := tpus.named(name, num_slices):
        return found
    if found := gpus.named(name):
        if num_slices > 1:
            raise PadirError(f"num_slices: {num_slices} slices of GPUs do not exist; name more GPUs, such as h100-16")
        return found
    raise PadirError(f"topology: unknown {name!r}; choose one of {', '.join(names())}")


def names() -> list[str]:
    """Returns the names of all topologies, smallest first within a generation."""
    return [*tpus.names(), *gpus.names()]
