"""Which processes join, told by whom, and what is refused."""

import errno
import signal
import socket
from types import SimpleNamespace

import jax
import pytest

from padir.errors import PadirError, StorageError
from padir.runs.checkpoint_files import DamagedCheckpointError
from padir.runtime import distributed

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
LOCAL = {"PADIR_COORDINATOR": "127.0.0.1:1234", "PADIR_NUM_PROCESSES": "4", "PADIR_PROCESS_ID": "2"}
DETECTED = ((), {"shutdown_timeout_seconds": 60})


@pytest.fixture
def joined(monkeypatch):
    """Returns joined(environment, platforms=None, error=None) -> how JAX was asked to join, or None."""
    for name in (*SLURM, *LOCAL):
        monkeypatch.delenv(name, raising=False)

    def call(environment, platforms=None, error=None, initialized=False):
        calls = []

        def initialize(*args, **kwargs):
            calls.append((args, kwargs))
            if error is not None:
                raise error

        fake = SimpleNamespace(
            config=SimpleNamespace(jax_platforms=platforms, update=lambda name, value: None),
            distributed=SimpleNamespace(initialize=initialize, is_initialized=lambda: initialized),
            errors=jax.errors,
        )
        with monkeypatch.context() as patch:
            patch.setattr(distributed, "jax", fake)
            for name, value in environment.items():
                patch.setenv(name, value)
            distributed.initialize()
        assert len(calls) < 2
        return calls[0] if calls else None

    return call


def test_one_process_joins_nobody(joined):
    assert joined({}) is None
    assert joined({}, platforms="cpu") is None
    assert joined(LOCAL | {"PADIR_NUM_PROCESSES": "1", "PADIR_PROCESS_ID": "0"}) is None
    assert joined(SLURM | {"SLURM_NTASKS": "1"}) is None
    assert joined(LOCAL, initialized=True) is None


def test_our_variables_come_first(joined):
    expected = (("127.0.0.1:1234", 4, 2), {"cluster_detection_method": "deactivate", **DETECTED[1]})
    assert joined(LOCAL) == expected
    assert joined(LOCAL | SLURM, platforms="tpu,cpu") == expected


def test_slurm_in_a_step_only(joined):
    assert joined(SLURM) == DETECTED
    # The script of sbatch itself is no task of a step.
    assert joined({name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"}) is None


def test_tpu(joined):
    assert joined({}, platforms="tpu,cpu") == DETECTED
    alone = ValueError("coordinator_address should be defined.")
    assert joined({}, platforms="tpu", error=alone) == DETECTED
    with pytest.raises(ValueError, match="something else"):
        joined({}, platforms="tpu", error=ValueError("something else"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PADIR_COORDINATOR": None}, "^PADIR_COORDINATOR: not set; set all of PADIR_COORDINATOR, "),
        ({"PADIR_NUM_PROCESSES": None, "PADIR_PROCESS_ID": ""}, "^PADIR_NUM_PROCESSES, PADIR_PROCESS_ID: not set"),
        ({"PADIR_NUM_PROCESSES": "two"}, "PADIR_NUM_PROCESSES=two: is not a whole number"),
        ({"PADIR_PROCESS_ID": "-1"}, "PADIR_PROCESS_ID=-1: is not a whole number"),
        ({"PADIR_PROCESS_ID": "4"}, "PADIR_PROCESS_ID=4: must be below PADIR_NUM_PROCESSES, 4"),
        ({"PADIR_COORDINATOR": "localhost"}, "PADIR_COORDINATOR=localhost: give the host and port of process 0"),
        ({"PADIR_COORDINATOR": "8476"}, "PADIR_COORDINATOR=8476: give the host and port of process 0"),
    ],
)
def test_variables_that_do_not_fit_are_refused(changes, message, joined):
    environment = {name: value for name, value in (LOCAL | changes).items() if value is not None}
    with pytest.raises(PadirError, match=message):
        joined(environment)


def test_sigterm_still_ends_a_process_that_joined(run_python):
    code = """if True:
        import os, signal, sys, time
        from padir.runtime import distributed
        distributed._join(False, sys.argv[1], 1, 0, cluster_detection_method="deactivate")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert run_python(code, address).returncode == -signal.SIGTERM


def test_nobody_answers(joined):
    error = jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: timed out\nmore")
    with pytest.raises(PadirError, match="process 2 of 4 could not join the others at 127.0.0.1:1234: DEADLINE"):
        joined(LOCAL, error=error)


def test_alone_a_process_is_the_first(capsys):
    done = []
    add = distributed.first_process(done.append)
    add(3)
    assert done == [3] and distributed.is_first()
    distributed.say("hello")
    assert capsys.readouterr().err == "hello\n"
    with pytest.raises(ZeroDivisionError):
        distributed.first_process(lambda: 1 / 0)()


@pytest.mark.parametrize(
    ("error", "others"),
    [
        (PadirError("bad"), PadirError),
        (StorageError("gone"), StorageError),
        (OSError(errno.EIO, "Input/output error"), StorageError),
        (FileNotFoundError(errno.ENOENT, "No such file"), PadirError),
        (KeyError("a defect"), RuntimeError),
        (DamagedCheckpointError("broken"), PadirError),
    ],
)
def test_the_others_end_as_the_first_does(error, others, monkeypatch):
    """What is worth another try, for a scheduler that reads statuses, is so for all."""
    told = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "wait_for_all", lambda: None)

    @distributed.first_process
    def fail():
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(distributed, "first_decides", lambda answer: told.append(answer) or answer)
        with pytest.raises(type(error)):
            fail()
    monkeypatch.setattr(distributed, "is_first", lambda: False)
    monkeypatch.setattr(distributed, "first_decides", lambda answer: told[0])
    with pytest.raises(others, match="fail failed in process 0; see the message of that process") as raised:
        fail()
    assert raised.type is others
