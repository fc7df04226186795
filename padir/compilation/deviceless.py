"""Setting up a process that compiles for TPUs without having one. Importing this module does not import JAX."""

from __future__ import annotations

import importlib.metadata
import os
import re

from padir.errors import PadirError

_INSTALL = "install it with `pip install 'padir[tpu]'`, or in a checkout with `make ACCELERATOR=tpu test`"


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


def check() -> None:
    """Raises PadirError unless libtpu is installed in a version that the installed JAX is made for."""
    try:
        found = libtpu_version()
    except importlib.metadata.PackageNotFoundError:
        raise PadirError(f"padir compile needs libtpu, the compiler for TPUs; {_INSTALL}") from None
    wanted = _wanted()
    if wanted is not None and not re.fullmatch(wanted.replace(".", r"\.").replace(r"\.*", r"\..*"), found):
        raise PadirError(
            f"padir compile: libtpu {found} is installed, but jax {importlib.metadata.version('jax')} is made for "
            f"libtpu {wanted}; {_INSTALL}"
        )


def libtpu_version() -> str:
    """Returns the version of the installed libtpu; raises PackageNotFoundError if there is none."""
    return importlib.metadata.version("libtpu")


def _wanted() -> str | None:
    """The version of libtpu that the installed JAX asks for, such as '0.0.42.*'; None if it names none."""
    requirements = importlib.metadata.requires("jax") or []
    found = (re.match(r"libtpu\s*==\s*([\w.*]+)", requirement) for requirement in requirements)
    return next((match.group(1) for match in found if match), None)
