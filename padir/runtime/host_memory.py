"""Memory of this process: its size, its maps, and settings of the C library that make CPU programs faster."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import resource
import sys
from pathlib import Path

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
# From mman.h.
_MADV_HUGEPAGE = 14
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_MAPS = Path("/proc/self/maps")
_MAX_MAPS = Path("/proc/sys/vm/max_map_count")
_RESERVED_AT_ONCE = 2**30
_DEVICES = Path("/dev")
# Device files of TPUs (two drivers), NVIDIA GPUs, AMD GPUs, and GPUs in the Windows Subsystem for Linux.
_ACCELERATORS = ("accel[0-9]*", "vfio/[0-9]*", "nvidia[0-9]*", "nvidiactl", "kfd", "dxg")


def keep_freed_before_jax() -> None:
    """Calls `keep_freed` and requests huge pages if JAX will run on CPU. Meant for training, before JAX starts.

    After JAX has started, its threads allocate from memory arenas of their own, which `keep_freed` does not reach. The
    buffers of a large update would then be mapped anew each time, without huge pages. Decoding should not call this
    function: all threads then share one arena, which slows down its many small allocations.

    JAX is expected to run on CPU if JAX_PLATFORMS says so, or if no device file of an accelerator exists. If a machine
    has an accelerator and JAX runs on CPU nevertheless, training calls `keep_freed` after the start of JAX. If an
    accelerator is overlooked, the only cost is that freed host memory is kept.
    """
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms:
        on_cpu = platforms.split(",")[0] == "cpu"
    else:
        on_cpu = not any(next(_DEVICES.glob(name), None) for name in _ACCELERATORS)
    if on_cpu and keep_freed() and _huge_pages_for_the_asking():
        _ask_for_huge_pages()


@functools.cache
def keep_freed() -> bool:
    """Makes this process keep freed memory for reuse instead of returning it to the system.

    XLA allocates the buffers of a program at every call. By default, glibc maps blocks above 32 MB from the system and
    returns them when they are freed, so every call pays for pages filled with zeros. With this setting, the process
    keeps as much memory as it had at its peak.

    Returns:
      Whether the C library accepted the settings. False on systems without glibc, where nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # One arena, because arenas of other threads hold at most 64 MB and always map larger blocks. A trim threshold of -1
    # means that nothing is returned.
    wanted = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, 64 * 2**20))
    taken = [mallopt(parameter, value) for parameter, value in wanted]
    return taken == [1] * len(wanted)


def _huge_pages_for_the_asking() -> bool:
    """Whether Linux gives huge pages on request, and lets a process reserve more addresses than it uses."""
    try:
        given, overcommit = _HUGE_PAGES.read_text(), _OVERCOMMIT.read_text().strip()
    except OSError:
        return False
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    # If malloc is set to fill new blocks, reserving addresses would write to all of them.
    filled = "MALLOC_PERTURB_" in os.environ or "perturb" in os.environ.get("GLIBC_TUNABLES", "")
    unlimited = all(limit == resource.RLIM_INFINITY for limit in limits)
    return "[madvise]" in given and overcommit != "2" and unlimited and not filled


def _ask_for_huge_pages() -> None:
    """Makes malloc use huge pages, for up to half of the machine's memory.

    Huge pages are requested by address, so addresses are reserved first; memory is used only when it is written to.
    Only half, because Linux lets no process fork whose heap is larger than the memory of the machine.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    pieces = os.sysconf("SC_PHYS_PAGES") // 2 * os.sysconf("SC_PAGE_SIZE") // _RESERVED_AT_ONCE
    reserved = list(itertools.takewhile(bool, (libc.malloc(_RESERVED_AT_ONCE) for _ in range(pieces))))
    for address in reserved:
        libc.free(address)
    with contextlib.suppress(OSError):
        for line in _MAPS.read_bytes().splitlines():
            if line.endswith(b"[heap]"):
                begin, end = (int(address, 16) for address in line.split()[0].split(b"-"))
                libc.madvise(begin, end - begin, _MADV_HUGEPAGE)


def allocated_bytes() -> int:
    """Returns the bytes that this process has allocated and written to, in RAM or swapped out.

    Mapped files such as libraries do not count, because the system can drop them at any time. On systems other than
    Linux it returns the peak of the resident memory instead.
    """
    if sys.platform == "linux":
        return _of_status("RssAnon", "VmSwap")
    # On macOS, the other supported system, ru_maxrss is in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peak_resident_bytes() -> int:
    """Returns the largest resident memory, in bytes, of this process and of each child that has ended.

    On Linux a program inherits the peak of the process that started it in `ru_maxrss`, even across `exec`. So this
    process's own peak comes from /proc. A child inherits at most that peak, which does not change the maximum.
    """
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    if sys.platform == "linux":
        # In units of 1,024 bytes.
        return max(_of_status("VmHWM"), 1024 * children)
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, children)


def memory_maps() -> tuple[int, int]:
    """Returns how many memory maps this process has, and how many Linux allows it; (0, 1) on other systems."""
    try:
        return _MAPS.read_bytes().count(b"\n"), int(_MAX_MAPS.read_text())
    except OSError:
        return 0, 1


def _of_status(*names: str) -> int:
    """The sum, in bytes, of fields of Linux's /proc/self/status."""
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if line.endswith(" kB"))
    return 1024 * sum(int(fields[name].split()[0]) for name in names)
