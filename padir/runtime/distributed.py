"""Joining the processes of one job, and what only the first of them does."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from padir.errors import PadirError, StorageError, kind_of

COORDINATOR = "PADIR_COORDINATOR"
NUM_PROCESSES = "PADIR_NUM_PROCESSES"
PROCESS_ID = "PADIR_PROCESS_ID"

# What `srun` tells a task, and JAX reads.
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")

# How long a process that ends waits for the others to end: one that fails leaves them in the middle of something.
_SHUTDOWN_SECONDS = 60

# The first process may be preparing a large data set meanwhile.
_LONGEST_WAIT_MS = 7 * 24 * 3600 * 1000

# Every barrier needs a name of its own; all processes come by the same ones in the same order.
_barriers = itertools.count()


def initialize(*, preemption: bool = False) -> None:
    """Joins this process to its job, where it is one of several; call it before JAX starts a backend.

    Who the others are is taken from the first of these that says so:

      1. PADIR_COORDINATOR (host:port where process 0 listens), PADIR_NUM_PROCESSES and PADIR_PROCESS_ID
         (0 … n - 1), as `launch/local.sh` sets them;
      2. Slurm, in a step of several tasks: every task is a process and takes one GPU of its node;
      3. the platform of a TPU, where every host of one or several slices is a process.

    Anywhere else, and for one process alone, it does nothing. Collectives between CPUs go through Gloo, which is
    JAX's default.

    Args:
      preemption: have JAX take SIGTERM, which then no longer ends the process; `Preemption` must be asked after every
        step.

    Raises:
      PadirError: the variables of 1. are incomplete, contradict each other, or nobody answers at that address.
    """
    if jax.distributed.is_initialized():
        return
    if any(name in os.environ for name in (COORDINATOR, NUM_PROCESSES, PROCESS_ID)):
        _initialize_from_variables(preemption)
    elif all(name in os.environ for name in _SLURM):
        if int(os.environ["SLURM_NTASKS"]) > 1:
            _join(preemption)
    elif (jax.config.jax_platforms or "").startswith("tpu"):  # JAX sets this itself where it finds TPU chips.
        _initialize_on_tpu(preemption)


def _initialize_from_variables(preemption: bool) -> None:
    names = (COORDINATOR, NUM_PROCESSES, PROCESS_ID)
    if missing := [name for name in names if not os.environ.get(name)]:
        raise PadirError(f"{', '.join(missing)}: not set; several processes need all of {', '.join(names)}, one none")
    count, index = _whole_number(NUM_PROCESSES), _whole_number(PROCESS_ID)
    if index >= count:
        raise PadirError(f"{PROCESS_ID}={index}: must be below {NUM_PROCESSES}, {count}")
    coordinator = os.environ[COORDINATOR]
    if not coordinator.rpartition(":")[2].isdigit():
        raise PadirError(f"{COORDINATOR}={coordinator}: name the host and port of process 0, e.g. 127.0.0.1:8476")
    if count == 1:
        return
    try:
        # Detection would look for a cluster all the same, to learn which GPUs this process may use.
        _join(preemption, coordinator, count, index, cluster_detection_method="deactivate")
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise PadirError(f"process {index} of {count} did not meet the others at {coordinator}: {reason}") from error


def _initialize_on_tpu(preemption: bool) -> None:
    try:
        _join(preemption)
    except ValueError as error:
        # Neither Compute Engine nor GKE knows this host, as in a notebook service: it is alone.
        if "coordinator_address" not in str(error):
            raise


def _join(preemption: bool, *given: Any, **named: Any) -> None:
    jax.config.update("jax_enable_preemption_service", preemption)
    jax.distributed.initialize(*given, **named, shutdown_timeout_seconds=_SHUTDOWN_SECONDS)


def _whole_number(name: str) -> int:
    text = os.environ[name]
    if not text.isdigit():
        raise PadirError(f"{name}={text}: is not a whole number")
    return int(text)


def is_first() -> bool:
    """Whether this process is the one that writes files and talks to the user. Starts no backend."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def say(text: str) -> None:
    """Prints to standard error, in the first process. That nobody reads it any more is no reason to stop."""
    if is_first():
        with contextlib.suppress(BrokenPipeError):
            print(text, file=sys.stderr)


def wait_for_all() -> None:
    """Waits until every process of the job has come here; each must, in the same order as to other such places."""
    if jax.distributed.is_initialized():
        # A barrier of the coordination service may take hours; a collective between devices may not.
        multihost.get_barrier_sync_fn()(key=f"padir_{next(_barriers)}", timeout_ms=_LONGEST_WAIT_MS)


def first_decides(answer: int) -> int:
    """The first process's answer, of 32 bits, in all; each must ask, in the same order."""
    if jax.process_count() == 1:
        return answer
    return type(answer)(multihost_utils.broadcast_one_to_all(np.int32(answer)))


def all_say(answer: bool) -> bool:
    """Whether all processes answer yes; each must ask, in the same order."""
    return answer if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.int32(answer)).all())


def first_process(function: Callable[..., None]) -> Callable[..., None]:
    """Makes a function that the first process runs, while the others wait for it and stop if it fails.

    Every process must call it, in the same order as others of its kind; it must not compute on devices.

    Returns:
      A function of the same arguments. It raises what `function` does in the first process; in the others what ends
      them with the same status, see `errors.kind_of`, and a RuntimeError for a defect.
    """

    @functools.wraps(function)
    def in_first_process(*args: Any, **kwargs: Any) -> None:
        """Calls it here if this is the first process, and tells the others how it went."""
        if not jax.distributed.is_initialized():
            return function(*args, **kwargs)
        failure = None
        if is_first():
            try:
                function(*args, **kwargs)
            except Exception as error:
                failure = error  # It goes on its way when the others know.
        wait_for_all()
        kinds = (None, RuntimeError, PadirError, StorageError)
        kind = kinds[first_decides(0 if failure is None else kinds.index(kind_of(failure) or RuntimeError))]
        if failure is not None:
            raise failure
        if kind is not None:
            raise kind(f"{function.__name__} failed in process 0, whose message says why")

    return in_first_process
