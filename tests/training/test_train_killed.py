"""`kill -9` at random moments of a training run, half of them aimed at a save; of one process and of two.

Ten of them with --slow, else four. The run that is killed lies on disk, or in a bucket together with its data; the one
that is not lies on disk.
"""

import json

import pytest

from padir.files.atomic import copy_file
from padir.files.paths import files_below
from padir.metrics.writers import read_metrics

# One interpreter that imports JAX once and forks the processes of each attempt, before any of JAX's threads are there.
# The first of them tells what it is doing through a pipe: "u" after an update, "s" where it begins to save.
_KILLED_RUNS = """
import hashlib, json, os, random, select, signal, socket, sys, time, traceback, urllib.request
from pathlib import Path
import jax, numpy as np
import quick_compilation, tiny_runs
from padir.runtime import distributed
from padir.runs.checkpoints import Checkpointer
from padir.training.intervals import MetricWindow
from padir.training.train import Cadence

local_data, folder, kills, processes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
bucket = sys.argv[5]
told, tell = os.pipe()
# So many steps that the attempts do not come to the end, on a busy machine neither.
RUN = {"num_steps": 30 * kills, "cadence": Cadence(log=10, evaluate=0, checkpoint=10)}

def place(name):
    "Where the run of this name and its data lie."
    if name == "killed" and bucket:
        return f"{bucket}/killed", f"{bucket}/data", {"data_cache": str(folder / "cache")}
    return str(folder / name), local_data, {}

def telling(method, letter, first):
    def call(self, *given):
        if first:
            os.write(tell, letter)
        result = method(self, *given)
        if not first:
            os.write(tell, letter)
        return result
    return call

def train(name, index, port):
    run_dir, data, options = place(name)
    tiny = tiny_runs.Tiny(data, None, None)
    if processes > 1:
        os.environ["XLA_FLAGS"] = quick_compilation.child_flags(devices=1)
        os.environ |= {
            distributed.COORDINATOR: f"127.0.0.1:{port}",
            distributed.NUM_PROCESSES: str(processes),
            distributed.PROCESS_ID: str(index),
        }
        distributed.initialize()
    if index:
        os.close(tell)
        tiny.train(run_dir, "ar", **RUN, **options)
        return
    Checkpointer.save = telling(Checkpointer.save, b"s", True)
    MetricWindow.add = telling(MetricWindow.add, b"u", False)
    state = tiny.train(run_dir, "ar", **RUN, **options)
    leaves = jax.tree.leaves(jax.device_get(state))
    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()
    (folder / f"{name}.digest").write_text(digest)

def begin(name):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    attempt = []
    for index in range(processes):
        attempt.append(os.fork())
        if attempt[-1] == 0:
            try:
                train(name, index, port)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
    return attempt

def statuses_of(attempt):
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in attempt]

def going_on(attempt, until):
    "Fails if the first process has ended, or it is too late; then nothing is left running."
    ended = os.waitid(os.P_PID, attempt[0], os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    if ended or time.monotonic() > until:
        for process in attempt:
            os.kill(process, signal.SIGKILL)
        raise AssertionError("an attempt has ended" if ended else "nothing to interrupt in two minutes")

def wait_for(letter, times, attempt, until):
    while times:
        going_on(attempt, until)
        if select.select([told], [], [], 1)[0]:
            times -= os.read(told, 1) == letter

def writing(since):
    "Whether a checkpoint is half written; what former attempts left half written does not count."
    if bucket:
        return bool(unfinished_steps(since))
    halves = [path for path in (folder / "killed" / "checkpoints").iterdir() if "tmp" in path.name]
    for path in halves:
        try:
            if path.stat().st_ctime >= since:
                return True
        except FileNotFoundError:  # It has just been renamed into place.
            pass
    return False

def unfinished_steps(since):
    "The steps in the bucket, begun since, without Orbax's last file."
    # Asked by hand: threads of a client would not survive the forks.
    name, _, prefix = bucket.removeprefix("gs://").partition("/")
    address = f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/{name}/o?prefix={prefix}/killed/checkpoints/"
    with urllib.request.urlopen(address) as answer:
        items = json.load(answer)["items"]
    found = {item["name"].removeprefix(f"{prefix}/killed/checkpoints/"): item["timeCreated"] for item in items}
    begun = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since))
    steps = {name.split("/")[0] for name, created in found.items() if created > begun}
    return {step for step in steps if step.isdigit() and f"{step}/commit_success.txt" not in found}

draw = random.Random(0)
statuses, unfinished = [], 0
for number in range(kills):
    began = time.time()
    attempt, until = begin("killed"), time.monotonic() + 120
    if number % 2:
        wait_for(b"s", 2, attempt, until)  # The first is whole before the second begins.
        while not writing(began):
            going_on(attempt, until)
        time.sleep(draw.uniform(0, 0.01))
    else:
        wait_for(b"u", draw.randrange(1, 30), attempt, until)
        time.sleep(draw.uniform(0, 0.01))
    # Of two, one may go on for a moment without the other.
    for process in draw.sample(attempt, processes):
        os.kill(process, signal.SIGKILL)
        time.sleep(draw.uniform(0, 0.005) if processes > 1 else 0)
    statuses += statuses_of(attempt)
    os.set_blocking(told, False)
    while True:  # What it had said and nobody heard.
        try:
            os.read(told, 65536)
        except BlockingIOError:
            break
    os.set_blocking(told, True)
    unfinished += writing(began)
finished = [statuses_of(begin(name)) for name in ("killed", "straight")]
digests = [(folder / f"{name}.digest").read_text() for name in ("killed", "straight")]
print(json.dumps([statuses, unfinished, finished, digests]))
"""


@pytest.mark.parametrize(
    ("kills", "processes", "where"),
    [
        *((4, 1, "disk"), (4, 2, "bucket")),
        *(pytest.param(10, *each, marks=pytest.mark.slow) for each in ((2, "bucket"), (1, "disk"), (2, "disk"))),
    ],
)
def test_kills_change_no_bit(tiny, run_python, tmp_path, kills, processes, where, request):
    place = ""
    if where == "bucket":
        place = f"{request.getfixturevalue('emulator').root}/kills_{kills}"
        for name in files_below(tiny.data):
            copy_file(tiny.data / name, f"{place}/data/{name}")
    done = run_python(_KILLED_RUNS, tiny.data, tmp_path, kills, processes, place)
    assert done.returncode == 0, done.stderr.decode()
    statuses, unfinished, finished, (killed, straight) = json.loads(done.stdout.splitlines()[-1])
    assert statuses == [-9] * kills * processes and finished == [[0] * processes] * 2
    assert unfinished >= kills // 3, "of those aimed at a save, which are half of them"
    assert killed == straight
    assert done.stderr.decode().count("killed: resuming at step") >= kills // 2
    # The metrics file has every interval once, with the same losses.
    places = {"killed": f"{place}/killed" if place else tmp_path / "killed", "straight": tmp_path / "straight"}
    lines = {name: read_metrics(f"{folder}/metrics/metrics.jsonl") for name, folder in places.items()}
    losses = {name: [(line["step"], line["train/loss"]) for line in rows] for name, rows in lines.items()}
    assert losses["killed"] == losses["straight"] and len(losses["straight"]) == 3 * kills
