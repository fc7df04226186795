"""Freed memory is used again: counted in page faults of programs that need much room."""

import os
import subprocess
import sys

import pytest

from padir.runtime import host_memory

SCRIPT = """
import resource, sys
import jax, jax.numpy as jnp
from padir.runtime import host_memory
if sys.argv[1] == "keep":
    assert host_memory.keep_freed()
def large(x):
    square = jnp.outer(x, x)
    return (square @ square[:, :8]).sum()
program = jax.jit(large)
x = jnp.arange(4096.0)
for _ in range(2):
    program(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(60):
    program(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps memory so")
def test_room_that_was_freed_is_not_asked_for_again():
    """64 MB are 16,384 pages a call; kept, few calls need new ones, until room between small pieces is found."""

    def faults(how):
        command = [sys.executable, "-c", SCRIPT, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") * 3 < faults("default")


HUGE = """
import ctypes, re, sys
from pathlib import Path
from padir.runtime import host_memory
assert host_memory.keep_freed()
if sys.argv[1] == "huge":
    host_memory.keep_freed_before_jax()
before = host_memory.allocated_bytes()
assert before < 1e9, "addresses are reserved, no memory"
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
address = libc.malloc(10**8)
ctypes.memset(address, 1, 10**8)
# Each mapping's flags follow its addresses; `hg` says that huge pages were requested.
for line in Path("/proc/self/smaps").read_text().splitlines():
    if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
        inside = all(int(found[1], 16) <= at < int(found[2], 16) for at in (address, address + 10**8 - 1))
    elif line.startswith("VmFlags:") and inside:
        print("hg" in line.split())
"""


@pytest.mark.skipif(not host_memory._huge_pages_for_the_asking(), reason="huge pages are not for those who ask here")
def test_huge_pages_are_requested_for_what_is_allocated():
    """For all of 100 MB. How much of it Linux then gives depends on what memory the machine has in one piece."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    for how, requested in (("plain", "False"), ("huge", "True")):
        command = [sys.executable, "-c", HUGE, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.split() == [requested], how


LIMITED = """
import resource, sys
from pathlib import Path
from padir.runtime import host_memory
if sys.argv[1] == "addresses":
    resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))
elif sys.argv[1] != "filled":
    host_memory._OVERCOMMIT = Path(sys.argv[1])
host_memory.keep_freed_before_jax()
(size,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize:"))
assert int(size.split()[1]) < 2**20, size
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps memory so")
def test_addresses_are_left_alone_where_they_are_limited_or_count(tmp_path):
    strict = tmp_path / "overcommit_memory"
    strict.write_text("2\n")
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    # Neither is to be read where /proc/sys is hidden from the process.
    for how in ("addresses", str(strict), str(tmp_path / "missing"), str(tmp_path)):
        assert subprocess.run([sys.executable, "-c", LIMITED, how], env=environment).returncode == 0, how
    environment["MALLOC_PERTURB_"] = "1"
    assert subprocess.run([sys.executable, "-c", LIMITED, "filled"], env=environment).returncode == 0


@pytest.mark.parametrize(
    "platforms, device, asked",
    [
        (None, None, True),
        (None, "nvidia0", False),
        (None, "nvidiactl", False),
        (None, "dxg", False),
        (None, "accel0", False),
        (None, "vfio/12", False),
        (None, "vfio/vfio", True),
        (None, "kfd", False),
        ("cpu", "nvidia0", True),
        ("cpu,cuda", "nvidia0", True),
        ("tpu,cpu", None, False),
    ],
)
def test_only_where_jax_will_compute_on_cpu(monkeypatch, tmp_path, platforms, device, asked):
    calls = []
    monkeypatch.setattr(host_memory, "keep_freed", lambda: calls.append(1))  # And takes nothing.
    monkeypatch.setattr(host_memory, "_DEVICES", tmp_path)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if platforms:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    if device:
        (tmp_path / device).parent.mkdir(exist_ok=True)
        (tmp_path / device).touch()
    host_memory.keep_freed_before_jax()
    assert calls == [1] * asked


def test_another_c_library_changes_nothing(monkeypatch):
    host_memory.keep_freed.cache_clear()
    monkeypatch.setattr(host_memory.ctypes, "CDLL", lambda _: object())
    assert host_memory.keep_freed() is False
    host_memory.keep_freed.cache_clear()


# In a process of its own: the threads of a test process allocate and free at any time.
ALLOCATE = """
import mmap
from padir.runtime import host_memory
before = host_memory.allocated_bytes()
block = mmap.mmap(-1, 100_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block.write(bytes(100_000_000))
during = host_memory.allocated_bytes()
block.close()
print(during - before, host_memory.allocated_bytes() - before)
"""


def test_memory_that_is_allocated():
    """100 MB more once they are written to, and less again when they are gone; mapped, so that none is used again."""
    done = subprocess.run([sys.executable, "-c", ALLOCATE], capture_output=True, text=True, check=True)
    during, after = map(int, done.stdout.split())
    assert 99e6 < during < 101e6
    assert abs(after) < 1e6


PEAK = """
import subprocess, sys
from padir.runtime import host_memory
if sys.argv[1:]:
    block = bytearray(b"1") * 400_000_000
    subprocess.run([sys.executable, __file__], check=True)
print(host_memory.peak_resident_bytes())
"""


def test_peak_is_this_processs_own_or_a_childs(tmp_path):
    """400 MB in the process that starts another are not the other's, whatever `ru_maxrss` says there."""
    script = tmp_path / "peak.py"
    script.write_text(PEAK)
    done = subprocess.run([sys.executable, script, "large"], capture_output=True, text=True, check=True)
    small, large = map(int, done.stdout.split())
    assert 5e6 < small < 300e6
    assert 400e6 < large < 700e6


def test_memory_maps(tmp_path, monkeypatch):
    maps, limit = tmp_path / "maps", tmp_path / "max_map_count"
    monkeypatch.setattr(host_memory, "_MAPS", maps)
    monkeypatch.setattr(host_memory, "_MAX_MAPS", limit)
    assert host_memory.memory_maps() == (0, 1)
    maps.write_text("a\nb\nc\n")
    limit.write_text("12\n")
    assert host_memory.memory_maps() == (3, 12)
