"""Multi-process jobs: joining the processes, barriers, and work that only the first process does."""

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

# The variables that `srun` sets for a task, and that JAX reads.
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")

# How long an ending process waits for the others, which may still be at work if this one has failed.
_SHUTDOWN_SECONDS = 60

# Long, because the first process may be preparing a large data set while the others wait.
_LONGEST_WAIT_MS = 7 * 24 * 3600 * 1000

# Numbers the barriers, because each needs a unique name. All processes reach the same ones in the same order.
_barriers = itertools.count()


def initialize(*, preemption: bool = False) -> None:
    """Joins this process to its job if the job has several processes. Call it before JAX starts a backend.

    The other processes are found from the first of these that applies:

    1. the environment variables PADIR_COORDINATOR (host:port on which process 0 listens), PADIR_NUM_PROCESSES and
       PADIR_PROCESS_ID (0 … n - 1), as set by `launch/local.sh`;
    2. Slurm, in a step of several tasks: every task is a process and uses one GPU of its node;
    3. the TPU platform: every host of one or several slices is a process.

    Otherwise, and for a single process, it does nothing. Collectives between CPUs use Gloo, the default of JAX.

    Args:
      preemption: let JAX handle SIGTERM, which then no longer ends the process. `Preemption.after_step` must be
        called after every step.

    Raises:
      PadirError: the environment variables are incomplete or contradict each other, or process 0 does not answer.
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
        raise PadirError(
            f"{', '.join(missing)}: not set; set all of {', '.join(names)} for several processes, or none for one"
        )
    count, index = _whole_number(NUM_PROCESSES), _whole_number(PROCESS_ID)
    if index >= count:
        raise PadirError(f"{PROCESS_ID}={index}: must be below {NUM_PROCESSES}, {count}")
    coordinator = os.environ[COORDINATOR]
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise PadirError(f"{COORDINATOR}={coordinator}: give the host and port of process 0, e.g. 127.0.0.1:8476")
    if count == 1:
        return
    try:
        # Without this option JAX would still look for a cluster, to find the GPUs of this process.
        _join(preemption, coordinator, count, index, cluster_detection_method="deactivate")
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise PadirError(f"process {index} of {count} could not join the others at {coordinator}: {reason}") from error


def _initialize_on_tpu(preemption: bool) -> None:
    try:
        _join(preemption)
    except ValueError as error:
        # Outside Compute Engine and GKE, e.g. in a notebook service, JAX finds no cluster: this is the only process.
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
    """Whether this is process 0, which writes files and prints messages. Does not start a JAX backend."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def say(text: str) -> None:
    """Prints to standard error in the first process. A closed pipe is ignored."""
    if is_first():
        with contextlib.suppress(BrokenPipeError):
            print(text, file=sys.stderr)


def wait_for_all() -> None:
    """Waits until all processes of the job have called it.

    All processes must call the functions of this module that wait for each other in the same order.
    """
    if jax.distributed.is_initialized():
        # A barrier of the coordination service may take hours, but a collective between devices would time out.
        multihost.get_barrier_sync_fn()(key=f"padir_{next(_barriers)}", timeout_ms=_LONGEST_WAIT_MS)


def first_decides(answer: int) -> int:
    """Returns the `answer` of the first process, which must fit into 32 bits, in all processes.

    All processes must call it, in the same order.
    """
    if jax.process_count() == 1:
        return answer
    return type(answer)(multihost_utils.broadcast_one_to_all(np.int32(answer)))


def all_say(answer: bool) -> bool:
    """Whether `answer` is true in all processes. All processes must call it, in the same order."""
    return answer if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.int32(answer)).all())


# What a failure of the first process is in the others, the most general kinds first.
_KINDS = (RuntimeError, PadirError, StorageError)


def _told_as(failure: Exception) -> int:
    """The most special of `_KINDS` that a failure belongs to, as its index."""
    kind = kind_of(failure)
    return max((index for index, known in enumerate(_KINDS) if kind is not None and issubclass(kind, known)), default=0)


def first_process(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator: only the first process runs the function, and the others wait for it and fail if it fails.

    All processes must call the decorated function, in the same order. It must not compute on devices.

    Returns:
      A function with the same arguments. In the first process it raises the error of `function`. In the others it
      raises an error that ends the command with the same exit status (see `errors.kind_of`), or a RuntimeError for a
      defect.
    """

    @functools.wraps(function)
    def in_first_process(*args: Any, **kwargs: Any) -> None:
        """Calls the function if this is the first process, and tells the others whether it failed."""
        if not jax.distributed.is_initialized():
            return function(*args, **kwargs)
        failure = None
        if is_first():
            try:
                function(*args, **kwargs)
            except Exception as error:
                failure = error  # Raised below, after the others have been told.
        wait_for_all()
        told = first_decides(-1 if failure is None else _told_as(failure))
        if failure is not None:
            raise failure
        if told >= 0:
            raise _KINDS[told](f"{function.__name__} failed in process 0; see the message of that process")

    return in_first_process
