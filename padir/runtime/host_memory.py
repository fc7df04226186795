"""The memory of this process, and how the C library holds it for CPU programs."""

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
_RESERVED_AT_ONCE = 2**30
_DEVICES = Path("/dev")
# Of TPUs, by either of their drivers, of NVIDIA's and AMD's GPUs, and of either under Windows.
_ACCELERATORS = ("accel[0-9]*", "vfio/[0-9]*", "nvidia[0-9]*", "nvidiactl", "kfd", "dxg")


def keep_freed_before_jax() -> None:
    """Calls `keep_freed`, with huge pages, where JAX is going to compute on CPU; for training's large updates.

    Once JAX has started, its threads take memory from places of their own that are not reached: the room of an update
    at paper size is then mapped anew each time, 110,000 page faults, and does not lie in huge pages, 5 to 11% of its
    time. Not for decoding: who asks before shares one place with all threads, and their many small pieces are slower
    there, 4 steps of refinement by a seventh.

    That JAX will find nothing else than a CPU is told by JAX_PLATFORMS or the absence of an accelerator's device file.
    Where it has one and computes on CPU all the same, `keep_freed` comes when JAX has started; an accelerator that is
    not seen costs nothing but memory that is kept.
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
    """Makes this process keep freed memory for its next use instead of giving it back to the system.

    XLA allocates the room of a program anew at every call. By default glibc maps what is over 32 MB from the system and
    gives it back, so that every call pays for zeroed pages: a third of the time of logits [160, 32128] on CPU. Memory
    that the process has had at its peak stays its own.

    Returns:
      Whether the C library took it; False elsewhere than on Linux with glibc, where nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # One arena, because those of other threads hold 64 MB at most and map what is larger whatever they are told. A trim
    # threshold of -1 is none: nothing is given back.
    wanted = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, 64 * 2**20))
    taken = [mallopt(parameter, value) for parameter, value in wanted]
    return taken == [1] * len(wanted)


def _huge_pages_for_the_asking() -> bool:
    """Whether Linux gives them to who asks, and lets a process have more addresses than it uses."""
    try:
        given, overcommit = _HUGE_PAGES.read_text(), _OVERCOMMIT.read_text().strip()
    except OSError:
        return False
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    # Who has malloc fill what it hands out would have all addresses written to.
    filled = "MALLOC_PERTURB_" in os.environ or "perturb" in os.environ.get("GLIBC_TUNABLES", "")
    unlimited = all(limit == resource.RLIM_INFINITY for limit in limits)
    return "[madvise]" in given and overcommit != "2" and unlimited and not filled


def _ask_for_huge_pages() -> None:
    """Has what malloc will hand out lie in huge pages, up to half of the machine's memory.

    They are asked for by address, so addresses are reserved first; memory itself is taken as it is written to. Half,
    because Linux lets no process fork that has more in one piece than the machine. 3% of an update at paper size.
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
    """Memory that this process has and uses, in RAM or swapped out; elsewhere than on Linux, the most it ever had.

    Files that are mapped, such as libraries, do not count: the system drops and reads them as it likes.
    """
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if line.endswith(" kB"))
        return 1024 * sum(int(fields[name].split()[0]) for name in ("RssAnon", "VmSwap"))
    # Bytes on macOS, which is what else there may be.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
