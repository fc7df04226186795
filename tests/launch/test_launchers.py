"""The launchers: a dry run prints exactly what a run does, quoting included, and the JobSet follows its schema."""

import contextlib
import copy
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema, of the extra `dev`")

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "launch"
LAUNCHERS = sorted(path.name for path in LAUNCH.glob("*.sh") if os.access(path, os.X_OK))
SCHEMA = json.loads((Path(__file__).parent / "jobset.schema.json").read_text(encoding="utf-8"))

# Arguments that are hard to quote: quotes for gin, a space, a dollar, a backslash.
ARGUMENTS = ["--gin.DATA_DIR='my data'", '--gin.X="$HOME\\n"', "--batch_size", "16"]
WORDS = ["mine.gin", "/runs/a b"]
PADIR = ["padir", "train", "--gin_file=mine.gin", "--run_dir=/runs/a b", *ARGUMENTS]
PLATFORMS = {
    "tpu_vm.sh": {"TPU_NAME": "slice", "ZONE": "us-central2-b"},
    "slurm.sh": {"NODES": "4", "GPUS": "8"},
    "gke.sh": {
        "JOBSET": "ar",
        "IMAGE": "registry/padir:1",
        "ACCELERATOR": "tpu-v6e-slice",
        "TOPOLOGY": "4x4",
        "CLAIM": "c",
    },
}

# Records its arguments and its input in place of the program that it stands in for.
STAND_IN = f"""#!{sys.executable}
import json, os, sys
given = {{"arguments": sys.argv[1:], "input": "" if sys.stdin.isatty() else sys.stdin.read()}}
with open(os.environ["RECORD"], "w") as file:
    json.dump(given, file)
"""


@pytest.fixture
def launch(tmp_path):
    """Returns launch(launcher, *arguments, **variables) -> CompletedProcess; gcloud, sbatch and kubectl only record."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("gcloud", "sbatch", "kubectl"):
        (tools / name).write_text(STAND_IN)
        (tools / name).chmod(0o755)

    def call(launcher, *arguments, **variables):
        environment = {"PATH": f"{tools}:{os.environ['PATH']}", "RECORD": str(tmp_path / "record.json"), **variables}
        command = [LAUNCH / launcher, *arguments]
        return subprocess.run(command, env=environment, input="", capture_output=True, text=True, timeout=60)

    return call


@pytest.fixture
def recorded(tmp_path):
    """Returns what a stand-in was called with."""
    return lambda: json.loads((tmp_path / "record.json").read_text())


def rendered(output: str):
    """The JobSet in what a dry run of gke.sh printed."""
    first, *lines, last = output.splitlines()
    assert (first, last) == ("kubectl create -f - <<'YAML'", "YAML")
    return yaml.safe_load("\n".join(lines))


def examples():
    """Shell commands that README.md and the launchers' own comments show."""
    texts = [(ROOT / "README.md").read_text(encoding="utf-8")]
    texts += [(LAUNCH / name).read_text().replace("\n# ", "\n") for name in LAUNCHERS]
    lines = [line.strip() for text in texts for line in text.replace("\\\n", "").splitlines()]
    shown = [line for line in lines if re.match(r"(\w+=\S* +)*launch/\w+\.sh ", line)]
    return [line for line in shown if "[" not in line]


@pytest.mark.parametrize("line", examples())
def test_examples_are_taken(line):
    command = re.sub(r"(launch/\w+\.sh)", r"\1 --dry-run", line)
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (gin_file,) = re.findall(r" ((?:runs|decode)/\w+\.gin) ", line)
    assert f"--gin_file={gin_file}" in done.stdout


def test_every_launcher_is_here():
    assert len(examples()) >= len(LAUNCHERS)
    assert set(LAUNCHERS) == {"local.sh", *PLATFORMS}


@pytest.mark.parametrize("name", [*LAUNCHERS, "common.sh"])
def test_shellcheck(name):
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("needs shellcheck, of the extra `dev`")
    done = subprocess.run([shellcheck, "-x", f"launch/{name}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_dry_run_prints_what_a_run_does(name, launch, recorded, tmp_path):
    said = launch(name, "--dry-run", *WORDS, "--", *ARGUMENTS, **PLATFORMS[name])
    assert (said.returncode, said.stderr) == (0, "")
    assert not (tmp_path / "record.json").exists()
    assert launch(name, *WORDS, "--", *ARGUMENTS, **PLATFORMS[name]).returncode == 0
    if name == "gke.sh":
        assert recorded()["arguments"] == ["create", "-f", "-"]
        assert yaml.safe_load(recorded()["input"]) == rendered(said.stdout)
    else:
        assert shlex.split(said.stdout)[1:] == recorded()["arguments"]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_batch_inference_is_launched_likewise(name, launch):
    given = [*(["2"] if name == "local.sh" else []), "decode/padir_4.gin", "model", "--", "--shards=8"]
    train, translate = (
        launch(name, "--dry-run", *given, **PLATFORMS.get(name, {}), **variables)
        for variables in ({}, {"SUBCOMMAND": "translate"})
    )
    assert (translate.returncode, translate.stderr) == (0, "")
    assert "--shards=8" in translate.stdout and "train" in train.stdout
    assert translate.stdout == re.sub(r"\btrain\b", "translate", train.stdout)
    # Without shards each process would write everything.
    for rest in (given[:-1], [*given[:-1], "--gin.x='--shards'"]):
        alone = launch(name, "--dry-run", *rest, **PLATFORMS.get(name, {}), SUBCOMMAND="translate")
        assert alone.returncode == 2 and "SUBCOMMAND=translate needs --shards=N after --" in alone.stderr
    other = launch(name, "--dry-run", *given, **PLATFORMS.get(name, {}), SUBCOMMAND="prepare")
    assert other.returncode == 2 and "SUBCOMMAND=prepare must be train, translate or distill" in other.stderr


def test_tpu_vm_runs_padir_on_all_hosts_at_once(launch, recorded):
    launch("tpu_vm.sh", *WORDS, "--", *ARGUMENTS, **PLATFORMS["tpu_vm.sh"])
    *ssh, command = recorded()["arguments"]
    # `tpu-vm ssh` has no --batch-size, and goes to all hosts at once.
    assert ssh == ["compute", "tpus", "tpu-vm", "ssh", "slice", "--zone=us-central2-b", "--worker=all"]
    *_, lock, padir, train, gin_file, run_dir = shlex.split(command.removeprefix("--command="))[: -len(ARGUMENTS)]
    assert (lock, [padir, train, gin_file, run_dir]) == (".padir.lock", PADIR[:4])
    assert shlex.split(command)[-len(ARGUMENTS) :] == ARGUMENTS
    launch("tpu_vm.sh", *WORDS, QUEUED_RESOURCE="two-slices", ZONE="z", PADIR="venv/bin/padir")
    *ssh, command = recorded()["arguments"]
    assert ssh[2:7] == ["queued-resources", "ssh", "two-slices", "--node=all", "--batch-size=all"]
    assert shlex.split(command.removeprefix("--command="))[-5:] == [".padir.lock", "venv/bin/padir", *PADIR[1:4]]


def test_tpu_vm_stops_what_holds_the_lock(launch, recorded):
    assert launch("tpu_vm.sh", "--stop", **PLATFORMS["tpu_vm.sh"]).returncode == 0
    assert recorded()["arguments"][-2:] == ["--worker=all", "--command=fuser --kill -TERM .padir.lock"]
    both = launch("tpu_vm.sh", "--stop", *WORDS, **PLATFORMS["tpu_vm.sh"])
    assert both.returncode == 2 and "--stop takes no other arguments" in both.stderr
    other = launch("slurm.sh", "--stop", **PLATFORMS["slurm.sh"])
    assert other.returncode == 2 and "this launcher has no --stop" in other.stderr


def wait_for(condition):
    """Returns when `condition` holds; fails if it does not within a minute."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail(f"{condition} did not hold within a minute")


def test_a_host_at_work_takes_no_second_job_and_stops_when_told(launch, recorded, tmp_path):
    """Runs here the command that the hosts would run; the connection of the first job breaks."""
    for tool in ("flock", "fuser", "tee"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    padir, home = tmp_path / "padir", tmp_path / "home"
    home.mkdir()
    caught = "trap 'echo saving; sleep 0.5; echo saved; exit 75' TERM"
    padir.write_text(f"#!/bin/bash\n{caught}\nwhile echo step >&2; do sleep 0.1; done\nexit 1\n")
    padir.chmod(0o755)

    def remote(*arguments):
        launch("tpu_vm.sh", *arguments, PADIR=str(padir), **PLATFORMS["tpu_vm.sh"])
        return recorded()["arguments"][-1].removeprefix("--command=")

    def steps():
        return (home / "padir.log").read_text().count("step") if (home / "padir.log").exists() else 0

    shell = {"shell": True, "executable": "/bin/bash", "cwd": home}
    first = subprocess.Popen(remote(*WORDS), **shell, stdout=subprocess.PIPE, start_new_session=True)
    try:
        wait_for(lambda: steps() > 2)
        first.stdout.close()
        seen = steps()
        wait_for(lambda: steps() > seen + 3)
        second = subprocess.run(remote(*WORDS), **shell, capture_output=True, text=True, timeout=60)
        assert (second.returncode, second.stdout) == (1, "")
        assert second.stderr == ".padir.lock: locked; a job is already running, see padir.log\n"
        subprocess.run(remote("--stop"), **shell, check=True, capture_output=True, timeout=60)
        assert first.wait(timeout=60) == 75
        assert (home / "padir.log").read_text().endswith("saving\nsaved\n")
        free = subprocess.run(["flock", "--nonblock", home / ".padir.lock", "true"], timeout=60)
        assert free.returncode == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
        first.wait()


@pytest.mark.parametrize("status, requeued", [(75, True), (143, True), (0, False), (1, False), (2, False)])
def test_slurm_gives_every_gpu_a_process_and_goes_on_after_its_limit(status, requeued, launch, recorded, tmp_path):
    launch("slurm.sh", *WORDS, "--", *ARGUMENTS, **PLATFORMS["slurm.sh"])
    *options, script = recorded()["arguments"]
    assert {"--nodes=4", "--ntasks-per-node=8", "--gpus-per-node=8", "--requeue", "--signal=TERM@120"} <= set(options)
    # JAX picks a task's GPU by the task's number on the node, so each task must see all of them.
    assert [option for option in options if "per-task" in option] == ["--cpus-per-task=8"]
    for name, ends in (("srun", f"exit {status}"), ("scontrol", ":")):
        tool = tmp_path / "tools" / name
        tool.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/{name}\n{ends}\n')
        tool.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'tools'}:{os.environ['PATH']}", "SLURM_JOB_ID": "42"}
    done = subprocess.run(["/bin/sh", "-c", script.removeprefix("--wrap=")], env=environment, timeout=60)
    assert done.returncode == status
    assert (tmp_path / "srun").read_text().splitlines() == [
        "--kill-on-bad-exit=0",
        "--wait=120",
        "--cpus-per-task=8",
        *PADIR,
    ]
    assert (tmp_path / "scontrol").exists() == requeued
    if requeued:
        assert (tmp_path / "scontrol").read_text().split() == ["requeue", "42"]


def test_a_name_beyond_ascii_keeps_its_letters_in_any_shell(launch, recorded):
    launch("slurm.sh", "mine.gin", "/runs/für\talle", LC_ALL="C", **PLATFORMS["slurm.sh"])
    script = recorded()["arguments"][-1].removeprefix("--wrap=")
    assert "'--run_dir=/runs/für\talle'" in script


def test_jobset(launch):
    jobset = rendered(launch("gke.sh", "--dry-run", *WORDS, "--", *ARGUMENTS, SLICES="2", **PLATFORMS["gke.sh"]).stdout)
    jsonschema.validate(jobset, SCHEMA)
    assert jobset["metadata"]["name"] == "ar"
    (slices,) = jobset["spec"]["replicatedJobs"]
    job = slices["template"]["spec"]
    assert (slices["replicas"], job["parallelism"], job["completions"], job["backoffLimit"]) == (2, 4, 4, 0)
    # A restart cannot help when padir rejects its arguments (status 2).
    assert jobset["spec"]["failurePolicy"]["rules"] == [
        {"name": "refused", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    ]
    codes = {"containerName": "padir", "operator": "In", "values": [2]}
    assert job["podFailurePolicy"] == {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
    pod = job["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    (container,) = pod["containers"]
    assert container["command"] == PADIR
    assert container["image"] == "registry/padir:1"
    assert container["resources"] == {"limits": {"google.com/tpu": 4}}
    assert container["volumeMounts"] == [{"name": "runs", "mountPath": "/runs"}]
    assert pod["volumes"] == [{"name": "runs", "persistentVolumeClaim": {"claimName": "c"}}]
    assert pod["hostNetwork"] is True and pod["dnsPolicy"] == "ClusterFirstWithHostNet"


@pytest.mark.parametrize("name", LAUNCHERS)
def test_addresses_in_a_bucket_reach_padir_as_they_are(name, launch):
    words = [*(["2"] if name == "local.sh" else []), "mine.gin", "gs://my-bucket/ar"]
    done = launch(name, "--dry-run", *words, "--", "--data_dir=gs://my-bucket/data", **PLATFORMS.get(name, {}))
    assert (done.returncode, done.stderr) == (0, "")
    words = [word for line in done.stdout.splitlines() for word in re.findall(r"--(?:run|data)_dir=[^ ';]*", line)]
    assert words[:2] == ["--run_dir=gs://my-bucket/ar", "--data_dir=gs://my-bucket/data"]


def test_a_job_in_a_bucket_needs_no_volume(launch):
    variables = {name: value for name, value in PLATFORMS["gke.sh"].items() if name != "CLAIM"}
    words = ["--dry-run", "mine.gin", "gs://my-bucket/ar", "--", "--data_dir=gs://my-bucket/data"]
    jobset = rendered(launch("gke.sh", *words, SERVICE_ACCOUNT="trainer", **variables).stdout)
    jsonschema.validate(jobset, SCHEMA)
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][-2:] == ["--run_dir=gs://my-bucket/ar", "--data_dir=gs://my-bucket/data"]
    assert "volumes" not in pod and "volumeMounts" not in container
    # GKE gives the account's rights to no pod on the network of its host.
    assert pod["serviceAccountName"] == "trainer" and not {"hostNetwork", "dnsPolicy"} & set(pod)
    refused = launch("gke.sh", "--dry-run", "mine.gin", "/runs/ar", **variables)
    assert refused.returncode == 2 and "unless RUN_DIR is a gs:// address, set CLAIM" in refused.stderr


@pytest.mark.parametrize(("subcommand", "option"), [("translate", "--output"), ("distill", "--output_dir")])
def test_of_another_job_the_output_must_be_in_a_bucket(launch, subcommand, option):
    """The model may be one that comes with padir."""
    variables = {name: value for name, value in PLATFORMS["gke.sh"].items() if name != "CLAIM"}
    words = ["--dry-run", "mine.gin", "tatoeba_de_en_ar", "--", "--shards=8"]
    for there in ([f"{option}=gs://my-bucket/out"], [option, "gs://my-bucket/out"]):
        done = launch("gke.sh", *words, *there, SUBCOMMAND=subcommand, **variables)
        assert done.returncode == 0 and "gs://my-bucket/out" in done.stdout
    for here in ([f"{option}=/out"], [option, "/out"], []):
        refused = launch("gke.sh", *words, *here, SUBCOMMAND=subcommand, **variables)
        assert refused.returncode == 2 and f"unless {option} is a gs:// address, set CLAIM" in refused.stderr


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips", "hosts"),
    [  # the table of docs/howto/tpu_slices.md
        ("tpu-v3-slice", "4x4", "4", 4),
        ("tpu-v4-podslice", "2x2x4", "4", 4),
        ("tpu-v4-podslice", "4x4x4", "4", 16),
        ("tpu-v5-lite-podslice", "4x4", "4", 4),
        ("tpu-v6e-slice", "16x16", "4", 64),
        ("tpu-v6e-slice", "2x4", "8", 1),
    ],
)
def test_a_slice_has_a_pod_for_every_host(accelerator, topology, chips, hosts, launch):
    variables = PLATFORMS["gke.sh"] | {"ACCELERATOR": accelerator, "TOPOLOGY": topology, "CHIPS": chips}
    jobset = rendered(launch("gke.sh", "--dry-run", *WORDS, **variables).stdout)
    jsonschema.validate(jobset, SCHEMA)
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["parallelism"], job["completions"]) == (hosts, hosts)


def test_the_schema_refuses_what_kubernetes_would(launch):
    good = rendered(launch("gke.sh", "--dry-run", *WORDS, **PLATFORMS["gke.sh"]).stdout)

    def broken(change):
        jobset = copy.deepcopy(good)
        change(jobset, jobset["spec"]["replicatedJobs"][0])
        return jobset

    changes = {
        "another version": lambda jobset, job: jobset.update(apiVersion="jobset.x-k8s.io/v1alpha1"),
        "a name with a capital": lambda jobset, job: jobset["metadata"].update(name="Ar"),
        "no jobs": lambda jobset, job: jobset["spec"].pop("replicatedJobs"),
        "a job without a template": lambda jobset, job: job.pop("template"),
        "a field misspelt": lambda jobset, job: job.update(replica=2),
        "text for a number": lambda jobset, job: job.update(replicas="2"),
        "no image": lambda jobset, job: job["template"]["spec"]["template"]["spec"]["containers"][0].pop("image"),
    }
    for name, change in changes.items():
        assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(broken(change)), name


@pytest.mark.parametrize("name", LAUNCHERS)
def test_what_is_missing_is_named(name, launch):
    words = ["2", *WORDS] if name == "local.sh" else WORDS
    done = launch(name, "--dry-run", *words[:-1], **PLATFORMS.get(name, {}))
    assert done.returncode == 2
    assert f"launch/{name} [--dry-run]" in done.stderr and done.stdout == ""
    done = launch(name, "--batch_size=16", *words, **PLATFORMS.get(name, {}))
    assert done.returncode == 2 and "put arguments for padir after --" in done.stderr
    for variable in PLATFORMS.get(name, {}):
        others = {key: value for key, value in PLATFORMS[name].items() if key != variable}
        done = launch(name, "--dry-run", *words, **others)
        assert done.returncode == 2 and f"set {variable}\n" in done.stderr


@pytest.mark.parametrize("changes", [{"TOPOLOGY": "4by4"}, {"TOPOLOGY": "2x2", "CHIPS": "8"}])
def test_gke_refuses_a_topology_that_hosts_cannot_make_up(changes, launch):
    done = launch("gke.sh", "--dry-run", *WORDS, **PLATFORMS["gke.sh"] | changes)
    assert done.returncode == 2 and f"{changes['TOPOLOGY']}" in done.stderr.splitlines()[0]


def test_local_starts_every_process(launch, tmp_path):
    said = launch("local.sh", "--dry-run", "2", *WORDS, "--", *ARGUMENTS, PORT="9")
    lines = [shlex.split(line) for line in said.stdout.splitlines()]
    assert [line[:5] for line in lines] == [
        ["env", "JAX_PLATFORMS=cpu", "PADIR_COORDINATOR=127.0.0.1:9", "PADIR_NUM_PROCESSES=2", f"PADIR_PROCESS_ID={i}"]
        for i in range(2)
    ]
    assert [line[5:] for line in lines] == [[*PADIR, "&"]] * 2
    padir = tmp_path / "padir"
    padir.write_text('#!/bin/sh\nprintenv | grep ^PADIR_ | sort > "$3.$PADIR_PROCESS_ID"\n')
    padir.chmod(0o755)
    # The third argument of `padir train --gin_file=… --run_dir=…` names the files.
    done = subprocess.run(
        [LAUNCH / "local.sh", "2", "mine.gin", "out"], cwd=tmp_path, env=os.environ | {"PADIR": str(padir), "PORT": "9"}
    )
    assert done.returncode == 0
    for index in range(2):
        assert (tmp_path / f"--run_dir=out.{index}").read_text().split() == [
            "PADIR_COORDINATOR=127.0.0.1:9",
            "PADIR_NUM_PROCESSES=2",
            f"PADIR_PROCESS_ID={index}",
        ]


@pytest.fixture
def local(tmp_path):
    """Returns local(script, processes=2) -> Popen of processes that are that shell script."""

    def start(script, processes=2):
        padir = tmp_path / "padir"
        padir.write_text(f"#!/bin/bash\n{script}\n")
        padir.chmod(0o755)
        return subprocess.Popen(
            [LAUNCH / "local.sh", str(processes), "a.gin", "out"],
            env=os.environ | {"PADIR": str(padir)},
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    return start


def test_local_ends_the_others_when_one_fails(local):
    running = local("[[ $PADIR_PROCESS_ID == 0 ]] && exec sleep 60; exit 3")
    assert running.communicate(timeout=20) == ("", None) and running.returncode == 3


def test_local_stops_what_it_has_started_while_it_starts_more(local):
    """The first process signals it; what went on would hold its output open."""
    running = local("[[ $PADIR_PROCESS_ID != 0 ]] || kill -TERM $PPID; exec sleep 60", processes=40)
    assert running.communicate(timeout=20) == ("", None) and running.returncode == 128 + signal.SIGTERM


def test_local_hands_a_signal_on_and_its_status_back(local):
    running = local("trap 'echo saved; exit $((70 + PADIR_PROCESS_ID))' TERM; echo up; while :; do sleep 0.05; done")
    assert [running.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    time.sleep(0.2)
    os.kill(running.pid, signal.SIGTERM)
    out, _ = running.communicate(timeout=20)
    assert (out, running.returncode) == ("saved\n" * 2, 70)
