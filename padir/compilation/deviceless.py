"""Setting up a process that compiles for devices that it does not have. Importing this module does not import JAX."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from padir.errors import PadirError, how_to_install


@dataclass(frozen=True)
class _Compiler:
    """The compiler for one platform.

    Attributes:
      title: what it is.
      packages: the packages that hold it. One of them is enough; the extra brings what else it needs.
      extra: the extra of padir that brings it.
      apart: where a checkout's Makefile puts it: outside the import path, or JAX would look for such a device in every
        process.
    """

    title: str
    packages: tuple[str, ...]
    extra: str
    apart: Path

    @property
    def install(self) -> str:
        """How to get it."""
        return f"{how_to_install(self.extra)}, or make install there"


_TPU = _Compiler("libtpu, the compiler for TPUs", ("libtpu",), "tpu", Path(sys.prefix) / "libtpu")
_GPU = _Compiler(
    "jax-cuda12-pjrt, the compiler for NVIDIA GPUs",
    ("jax-cuda12-pjrt", "jax-cuda13-pjrt"),
    "cuda",
    Path(sys.prefix) / "cuda_compiler",
)
_COMPILERS = {"tpu": _TPU, "gpu": _GPU}


def set_environment() -> None:
    """Sets the environment that JAX and libtpu read when they are imported; call it before importing JAX.

    JAX itself runs on CPU. libtpu is told not to look for a TPU, and to tolerate other processes that use it. For GPUs
    nothing else is needed here: see `load_cuda`.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    # Otherwise libtpu looks for the names of a slice's hosts, and complains that it finds none.
    os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
    os.environ["TPU_ACCELERATOR_TYPE"] = "v3-8"
    if _lies_apart(_TPU):
        os.environ["TPU_LIBRARY_PATH"] = str(_TPU.apart / "libtpu" / "libtpu.so")


@functools.cache
def load_cuda() -> None:
    """Loads the compiler for GPUs into JAX if JAX does not find it by itself."""
    if not _lies_apart(_GPU):
        return
    import jax

    # JAX looks for plugins once. It must have done so before the path leads to this one.
    jax.devices()
    sys.path.append(str(_GPU.apart))
    with _without_messages():
        importlib.import_module("jax_plugins.xla_cuda12").initialize()


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
    """Drops what libraries write to standard error: that there is no GPU, in a format that no setting turns off."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def is_installed(platform: str = "tpu") -> bool:
    """Returns whether there is a compiler for a platform.

    Args:
      platform: 'tpu' or 'gpu'.
    """
    return _found(platform) is not None


def compiler(platform: str) -> tuple[str, str]:
    """Returns the package of the compiler for a platform, and its version.

    Args:
      platform: 'tpu' or 'gpu'.

    Raises:
      PadirError: it is not installed.
    """
    found = _found(platform)
    if found is None:
        raise PadirError(f"padir compile needs {_COMPILERS[platform].title}; {_COMPILERS[platform].install}")
    return found


def libtpu_version() -> str:
    """Returns the version of libtpu; raises PadirError if there is none."""
    return compiler("tpu")[1]


def check(platform: str | None = None) -> None:
    """Checks that there is a compiler, in a version that the installed JAX is made for.

    Args:
      platform: 'tpu' or 'gpu'; None if not known yet, when there must be a compiler for either.

    Raises:
      PadirError: there is none, or its version is another.
    """
    if platform is None:
        if not any(map(is_installed, _COMPILERS)):
            either = "; or ".join(f"{each.title} ({each.install})" for each in _COMPILERS.values())
            raise PadirError(f"padir compile needs {either}")
        return
    (package, found), wanted = compiler(platform), _wanted(platform)
    if wanted is not None and not re.fullmatch(wanted.replace(".", r"\.").replace("*", ".*"), found):
        raise PadirError(
            f"padir compile: {package} {found} is installed, but jax {importlib.metadata.version('jax')} is made for "
            f"{package} {wanted}; {_COMPILERS[platform].install}"
        )


def _found(platform: str) -> tuple[str, str] | None:
    """Package and version of a compiler; None if there is none."""
    chosen = _COMPILERS[platform]
    return _in_path(chosen) or _in_path(chosen, path=[str(chosen.apart)])


def _lies_apart(chosen: _Compiler) -> bool:
    return not _in_path(chosen) and _in_path(chosen, path=[str(chosen.apart)]) is not None


def _in_path(chosen: _Compiler, **search: list[str]) -> tuple[str, str] | None:
    for package in chosen.packages:
        for found in importlib.metadata.distributions(name=package, **search):
            return package, found.version
    return None


def _wanted(platform: str) -> str | None:
    """The version of the compiler that the installed JAX needs, such as '0.0.42.*'; None if it names none."""
    if platform == "gpu":
        return importlib.metadata.version("jaxlib")
    requirements = importlib.metadata.requires("jax") or []
    found = (re.match(r"libtpu\s*==\s*([\w.*]+)", requirement) for requirement in requirements)
    return next((match.group(1) for match in found if match), None)
