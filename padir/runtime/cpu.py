"""What Linux says of the processor."""

from __future__ import annotations

from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def cpu_info(field: str) -> str:
    """A field of the first processor, such as 'model name'; '' where Linux does not tell it, or on other systems."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() == field), "")


def x86_extensions() -> frozenset[str]:
    """The processor's extensions by their names in /proc/cpuinfo, e.g. 'amx_int8'; empty where they are not told."""
    return frozenset(cpu_info("flags").split())
