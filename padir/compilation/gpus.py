"""Nodes of NVIDIA GPUs by names such as 'h100-8', and as XLA knows them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies

from padir.compilation import deviceless
from padir.errors import PadirError
from padir.runtime import device_peaks

_OF_A_NODE = 8
_NUMBERS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Generation:
    """One kind of GPU, of the Hopper architecture.

    Attributes:
      name: in topologies' names.
      kind: the name that JAX gives the device.
      multiprocessors: how many there are.
      gigahertz: the highest clock.
      gibibytes: memory that a program can have.
      gigabytes_per_second: to and from that memory.
    """

    name: str
    kind: str
    multiprocessors: int
    gigahertz: float
    gibibytes: float
    gigabytes_per_second: float


# SXM modules, as XLA describes them (xla/backends/gpu/target_config/specs/h100_sxm.txtpb and h200.txtpb), but for the
# memory of the H200: XLA's file says 141 GiB, while what users' programs report is 139.7 to 139.8.
_GENERATIONS = {
    each.name: each
    for each in (
        Generation("h100", "NVIDIA H100 80GB HBM3", 132, 1.98, 79.1, 3352.32),
        Generation("h200", "NVIDIA H200", 132, 1.98, 139.7, 4800.0),
    )
}
# stream_executor.GpuTargetConfigProto. What does not differ among Hopper's GPUs is from the same files.
_TARGET = """
gpu_device_info {{
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  core_count: {gpu.multiprocessors}
  clock_rate_ghz: {gpu.gigahertz}
  device_memory_size: {memory}
  memory_bandwidth: {bandwidth}
  l2_cache_size: 52428800
  fpus_per_core: 128
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_core: 233472 shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  device_address_bits: 64
  name: "{gpu.kind}" device_vendor: "NVIDIA Corporation"
  driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
  device_interconnect_info {{ active_links: 18 }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{gpu.kind}"
"""


@dataclass(frozen=True)
class Nodes:
    """One or several nodes of GPUs that are compiled for.

    Attributes:
      name: such as 'h100-8'.
      generation: what GPUs they have.
      chips: GPUs in all.
    """

    name: str
    generation: Generation
    chips: int

    @property
    def platform(self) -> str:
        """What JAX calls them."""
        return "gpu"

    @property
    def nodes(self) -> int:
        """How many nodes there are, of eight GPUs if there are several."""
        return -(-self.chips // _OF_A_NODE)

    @property
    def gibibytes(self) -> float:
        """Memory of a GPU."""
        return self.generation.gibibytes

    def devices(self) -> Sequence[jax.Device]:
        """Returns devices that programs can be compiled for, but that hold no arrays and run nothing.

        Raises:
          PadirError: the installed XLA does not know them.
        """
        deviceless.load_cuda()
        gpu = self.generation
        target = _TARGET.format(
            gpu=gpu, memory=int(gpu.gibibytes * 2**30), bandwidth=int(gpu.gigabytes_per_second * 10**9)
        )
        # The number of fast networks, of their hosts, and of a host's devices.
        shape = f"1x{self.nodes}x{self.chips // self.nodes}"
        try:
            return topologies.get_topology_desc("", "cuda", target_config=target, topology=shape).devices
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0]
            raise PadirError(f"topology {self.name}: XLA for GPU does not know it ({reason})") from error

    def peak_flops(self) -> float | None:
        """Returns the peak bfloat16 operations per second of one GPU."""
        return device_peaks.peak_flops(self.generation.kind)

    def facts(self) -> dict[str, Any]:
        """Returns what only nodes have, as JSON values."""
        return {"nodes": self.nodes}


def named(name: str) -> Nodes | None:
    """Returns the nodes called `name`; None if none is."""
    found = re.fullmatch(r"(\w+)-([1-9]\d*)", name)
    generation = found and _GENERATIONS.get(found.group(1))
    if generation is not None and int(found.group(2)) in _NUMBERS:
        return Nodes(name, generation, int(found.group(2)))
    return None


def names() -> list[str]:
    """Returns the names of all nodes, smallest first within a generation."""
    return [f"{generation}-{number}" for generation in _GENERATIONS for number in _NUMBERS]
