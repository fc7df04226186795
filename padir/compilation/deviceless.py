"""Setting up a process that compiles for TPUs without having one. Importing this module does not import JAX."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path

from padir.errors import PadirError

# Where a checkout's Makefile puts libtpu: outside the import path, or JAX would look for a TPU in every process.
_APART = Path(sys.prefix) / "libtpu"
_INSTALL = "install it with `pip install 'padir[tpu]'`, or in a checkout with `make test`"


def set_environment() -> None:
    """Sets the environment that JAX and libtpu read when they are imported; call it before importing JAX.

    JAX itself runs on CPU. libtpu is told not to look for a TPU, and to tolerate other processes that use it.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    # Otherwise libtpu looks for the names of a slice's hosts, and complains that it finds none.
    os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
    os.environ["TPU_ACCELERATOR_TYPE"] = "v3-8"
    if importlib.util.find_spec("libtpu") is None and is_installed():
        os.environ["TPU_LIBRARY_PATH"] = str(_APART / "libtpu" / "libtpu.so")


def is_installed() -> bool:
    """Returns whether there is a libtpu to compile with."""
    return _version() is not None


def libtpu_version() -> str:
    """Returns the version of libtpu; raises PadirError if there is none."""
    version = _version()
    if version is None:
        raise PadirError(f"padir compile needs libtpu, the compiler for TPUs; {_INSTALL}")
    return version


def check() -> None:
    """Raises PadirError unless libtpu is there, in a version that the installed JAX is made for."""
    found, wanted = libtpu_version(), _wanted()
    if wanted is not None and not re.fullmatch(wanted.replace(".", r"\.").replace("*", ".*"), found):
        raise PadirError(
            f"padir compile: libtpu {found} is installed, but jax {importlib.metadata.version('jax')} is made for "
            f"libtpu {wanted}; {_INSTALL}"
        )


def _version() -> str | None:
    for search in ({}, {"path": [str(_APART)]}):
        for found in importlib.metadata.distributions(name="libtpu", **search):
            return found.version
    return None


def _wanted() -> str | None:
    """The version of libtpu that the installed JAX asks for, such as '0.0.42.*'; None if it names none."""
    requirements = importlib.metadata.requires("jax") or []
    found = (re.match(r"libtpu\s*==\s*([\w.*]+)", requirement) for requirement in requirements)
    return next((match.group(1) for match in found if match), None)
