"""What a figure depends on besides the code."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from padir.runtime.cpu import cpu_info, x86_extensions

# What a result depends on: not the results that lie in the checkout, too.
_CODE = ("padir", "gin", "tasks")
# Extensions of x86 that decide how fast matrix products are, by their names in /proc/cpuinfo.
_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")


def run_facts() -> dict[str, Any]:
    """Commit, date, device, versions, load of the machine and command, as JSON values without absolute paths."""
    return {
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "device": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        "cpu": cpu_info("model name"),
        "cpu_features": [name for name in _FEATURES if name in x86_extensions()],
        "cpu_count": os.cpu_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "load_average": list(os.getloadavg()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "command": " ".join(map(portable, sys.argv)),
    }


def portable(text: str) -> str:
    """A text in which absolute paths are relative to the working directory, or only names where they lie outside it."""
    return re.sub(r"(?<![\w.:/-])/(?:[^\s'\",;:()\[\]]+)", lambda found: _relative(found.group()), text)


def _relative(path: str) -> str:
    relative = os.path.relpath(path)
    return os.path.basename(path.rstrip("/")) if relative.startswith("..") else relative


def commit() -> str:
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
