"""Locks in buckets: one holder at a time, and what becomes of a lost one; locks of folders, which nobody waits for."""

import json
import subprocess
import sys
import threading
import time

import pytest

from padir.errors import PadirError, StorageError
from padir.files.locks import Lease, alone_in, locked
from padir.files.paths import as_path


def test_one_holder_at_a_time(bucket, capsys, monkeypatch):
    monkeypatch.setattr("padir.files.locks._POLL_SECONDS", 0.01)
    inside, most, start = [], [], threading.Barrier(3)

    def work(number):
        start.wait()
        with locked(as_path(f"{bucket}/.lock")):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.05)
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1] and not as_path(f"{bucket}/.lock").exists()
    assert f"{bucket}/.lock: held by " in capsys.readouterr().err


def test_a_lost_lease_is_taken_over_and_a_living_one_is_not(bucket):
    path = as_path(f"{bucket}/.lock")
    path.write_text(json.dumps({"holder": "killed", "token": "t", "seconds": 0.3}))
    with Lease(str(path), 0.3):
        first = path.read_text()
        assert json.loads(first)["holder"] != "killed"
        taken = threading.Event()

        def wait():
            with Lease(str(path), 0.3):
                taken.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        # Renewed every 0.1 seconds, it outlives many times its length.
        assert not taken.wait(1.0)
    waiting.join()
    assert taken.is_set() and not path.exists()


def test_whoever_lost_the_lock_is_told(bucket):
    path = as_path(f"{bucket}/.lock")
    with pytest.raises(StorageError, match="passed to another process") as caught, Lease(str(path), 0.3) as lease:
        path.write_text(json.dumps({"holder": "other", "token": "t", "seconds": 0.3}))
        lease._thread.join()
    assert caught.value.status == 74
    # The other's lease stays.
    assert json.loads(path.read_text())["holder"] == "other"


def test_a_lost_answer_does_not_lose_the_lock(bucket, emulator, monkeypatch):
    path = f"{bucket}/.lock"
    as_path(path).exists()
    lost = []

    def fault(request):
        if request.method == "POST" and not lost:
            lost.append(request)
            return "lose"
        return None

    # The second attempt meets the object that the first one wrote.
    with emulator.faults.happen(fault) as requests, Lease(path):
        assert json.loads(as_path(path).read_text())["holder"]
    assert lost and [request.method for request in requests[:2]] == ["POST", "POST"]
    assert not as_path(path).exists()


HOLD = """
import sys
from padir.files.locks import alone_in
with alone_in(sys.argv[1], "training this run"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_alone_in_a_folder(tmp_path):
    refusal = f"{tmp_path}: another process is training this run; wait until it has ended, or stop it"
    command, piped = [sys.executable, "-c", HOLD, tmp_path], subprocess.PIPE
    with subprocess.Popen(command, stdin=piped, stdout=piped, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(PadirError) as refused, alone_in(tmp_path, "training this run"):
            pass
        assert str(refused.value) == refusal
        other.kill()
    with alone_in(tmp_path, "training this run"), pytest.raises(PadirError), alone_in(tmp_path, "averaging"):
        pass
    # What the block itself raises is not taken for a refusal.
    with pytest.raises(BlockingIOError), alone_in(tmp_path, "training this run"):
        raise BlockingIOError
    assert not list(tmp_path.iterdir())


def test_nobody_is_refused_where_there_are_no_locks(bucket, tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("padir.files.locks.fcntl.flock", unsupported)
    for folder in (bucket, tmp_path):
        with alone_in(folder, "training this run"), alone_in(folder, "training this run"):
            pass
