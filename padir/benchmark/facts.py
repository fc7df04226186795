"""What a figure depends on besides the code."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

# What a result depends on: not the results that lie in the checkout, too.
_CODE = ("padir", "gin", "tasks")
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")


def run_facts() -> dict[str, Any]:
    """Device, versions, commit, load of the machine and command, as JSON values."""
    return {
        "commit": _commit(),
        "device": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "load_average": list(os.getloadavg()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "command": " ".join(sys.argv),
    }


def _cpu_name() -> str:
    """The processor as Linux calls it; '' elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _commit() -> str:
    """The commit of the checkout this code runs from, '+changes' if its code differs; '' outside a checkout."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", *_CODE) else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
