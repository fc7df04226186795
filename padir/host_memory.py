"""The memory of this process, and how the C library keeps what a CPU program has freed (layer 0)."""

from __future__ import annotations

import ctypes
import functools
import resource
import sys
from pathlib import Path

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8


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
    # One arena, because those of other threads hold 64 MB at most and map what is larger whatever they are told.
    wanted = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 * 2**20))
    taken = [mallopt(parameter, value) for parameter, value in wanted]
    return taken == [1] * len(wanted)


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
