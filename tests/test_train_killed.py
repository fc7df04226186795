"""`kill -9` at ten random moments of a training run, half of them aimed at a save."""

import json

from padir.metrics.writers import read_metrics

# One interpreter that imports JAX once and forks a process per attempt, before any of JAX's threads are there. A forked
# process tells what it is doing through a pipe: "u" after an update, "s" where it begins to save.
_KILLED_RUNS = """
import hashlib, json, os, random, signal, sys, time, traceback
from pathlib import Path
import jax, numpy as np
import tiny_runs
from padir.checkpoints import Checkpointer
from padir.intervals import MetricWindow
from padir.train import Cadence

data, folder, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
told, tell = os.pipe()
tiny = tiny_runs.Tiny(data, None, None)

def telling(method, letter, first):
    def call(self, *given):
        if first:
            os.write(tell, letter)
        result = method(self, *given)
        if not first:
            os.write(tell, letter)
        return result
    return call

def train(run_dir):
    Checkpointer.save = telling(Checkpointer.save, b"s", True)
    MetricWindow.add = telling(MetricWindow.add, b"u", False)
    state = tiny.train(run_dir, "ar", num_steps=400, cadence=Cadence(log=10, evaluate=0, checkpoint=10))
    leaves = jax.tree.leaves(jax.device_get(state))
    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()
    run_dir.with_suffix(".digest").write_text(digest)

def begin(run_dir):
    attempt = os.fork()
    if attempt == 0:
        try:
            train(run_dir)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os.write(tell, b"x")
            os._exit(1)
    return attempt

def status(attempt):
    return os.waitstatus_to_exitcode(os.waitpid(attempt, 0)[1])

def wait_for(letter, times):
    while times:
        heard = os.read(told, 1)
        assert heard != b"x", "an attempt failed"
        times -= heard == letter

def writing(since):
    "Whether a checkpoint is half written; what former attempts left half written does not count."
    halves = [path for path in (folder / "killed" / "checkpoints").iterdir() if "tmp" in path.name]
    for path in halves:
        try:
            if path.stat().st_ctime >= since:
                return True
        except FileNotFoundError:  # It has just been renamed into place.
            pass
    return False

draw = random.Random(0)
statuses, unfinished = [], 0
for number in range(kills):
    began = time.time()
    attempt = begin(folder / "killed")
    if number % 2:
        wait_for(b"s", 3)  # The first two are whole before the third begins.
        while not writing(began):
            pass
        time.sleep(draw.uniform(0, 0.01))
    else:
        wait_for(b"u", draw.randrange(1, 60))
        time.sleep(draw.uniform(0, 0.01))
    os.kill(attempt, signal.SIGKILL)
    statuses.append(status(attempt))
    os.set_blocking(told, False)
    while True:  # What it had said and nobody heard.
        try:
            os.read(told, 65536)
        except BlockingIOError:
            break
    os.set_blocking(told, True)
    unfinished += writing(began)
finished = [status(begin(folder / name)) for name in ("killed", "straight")]
digests = [(folder / f"{name}.digest").read_text() for name in ("killed", "straight")]
print(json.dumps([statuses, unfinished, finished, digests]))
"""


def test_ten_kills_change_no_bit(tiny, run_python, tmp_path):
    done = run_python(_KILLED_RUNS, tiny.data, tmp_path, 10)
    assert done.returncode == 0, done.stderr.decode()
    statuses, unfinished, finished, (killed, straight) = json.loads(done.stdout.splitlines()[-1])
    assert statuses == [-9] * 10 and finished == [0, 0]
    assert unfinished >= 3, "of the five kills aimed at a save"
    assert killed == straight
    assert done.stderr.decode().count("killed: resuming at step") >= 5
    # The metrics file has every interval once, with the same losses.
    lines = {name: read_metrics(tmp_path / name / "metrics" / "metrics.jsonl") for name in ("killed", "straight")}
    losses = {name: [(line["step"], line["train/loss"]) for line in rows] for name, rows in lines.items()}
    assert losses["killed"] == losses["straight"] and len(losses["straight"]) == 40
