"""`make quality` with stand-ins for its commands: their order, resuming, and the joined results."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

import gin
from padir.cli import config
from padir.cli import main as cli
from padir.data.records import PreparedSet

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "quality.py"
NAMES = ["AR greedy", "PaDIR, 1 step", "PaDIR, 2 steps", "PaDIR, 4 steps", "PaDIR, 10 steps"]


@pytest.fixture(scope="module")
def quality():
    spec = importlib.util.spec_from_file_location("quality", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Commands:
    """Stands for `padir`: notes what is called, writes what it would leave; the call numbered `failing` fails."""

    def __init__(self, data, clock):
        self.data, self.clock, self.calls, self.failing = data, clock, [], None

    def __call__(self, arguments):
        words = [argument for argument in arguments if not argument.startswith("-")]
        command, rest = "_".join(words), arguments[len(words) :]
        options = dict(argument.removeprefix("--").split("=", 1) for argument in rest)
        self.calls.append((command, options))
        self.clock.now += 10.0
        if self.failing == len(self.calls):
            return 2
        getattr(self, command)(options)
        return 0

    def train(self, options):
        folder = Path(options["gin.DATA_DIR"].strip("'"))
        if "gin.DATA" in options and not folder.exists():
            shutil.copytree(self.data, folder)

    def distill(self, options):
        shutil.copytree(self.data, options["output_dir"], dirs_exist_ok=True)
        path = Path(options["output_dir"], "manifest.json")
        manifest = json.loads(path.read_text())
        manifest["task"]["options"] = {"teacher_step": 30}
        path.write_text(json.dumps(manifest))

    def evaluate(self, options):
        path = Path(options["output_dir"], f"{options['name']}.json")
        path.parent.mkdir(exist_ok=True)
        steps = options["name"].removeprefix("padir_")
        result = {"bleu": 30.0, "chrf": 50.0, "stutter_per_100_words": 0.0, "decode": f"decode {steps}"}
        path.write_text(json.dumps(result))

    def benchmark_latency(self, options):
        # Another order than that of the quality runs.
        systems = {
            name: {
                "decode": f"decode {name.split()[1]}",
                "latency_ms": {"median": len(name) + 0.5, "p99": 9.0},
                "speed_up": 2.0,
            }
            for name in reversed(NAMES)
        }
        systems["AR greedy"]["decode"] = "decode ar_greedy"
        Path(options["output"]).write_text(json.dumps({"systems": systems}))


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def run(quality, tiny, tmp_path, monkeypatch):
    """Returns run(*arguments): starts the script over stand-ins; `run.commands` are those."""
    clock = Clock()
    commands = Commands(tiny.data, clock)
    monkeypatch.setattr(quality, "time", clock)
    monkeypatch.setattr(cli, "main", commands)

    def start(*arguments):
        folders = [f"--work={tmp_path / 'work'}", f"--results={tmp_path / 'results'}"]
        monkeypatch.setattr("sys.argv", ["quality.py", "--data=corpus", *folders, *arguments])
        return quality.main()

    start.commands = commands
    return start


def test_the_whole_chain(run, tmp_path, capsys):
    assert run("--teacher_steps=30", "--student_steps=40") == 0
    calls = run.commands.calls
    assert [command for command, _ in calls] == ["train", "distill", "train", *["evaluate"] * 5, "benchmark_latency"]
    work = tmp_path / "work"
    teacher, student = calls[0][1], calls[2][1]
    assert (teacher["num_steps"], student["num_steps"]) == ("30", "40")
    assert teacher["gin.DATA"] == "'corpus'" and student["initialize_from"] == str(work / "teacher")
    assert student["gin.DATA_DIR"] == repr(str(work / "distilled"))
    assert [options["run_dir"] for _, options in calls[3:8]] == [str(work / "teacher"), *[str(work / "student")] * 4]
    stored = json.loads((tmp_path / "results" / "quality_tiny_cpu.json").read_text())
    assert stored["facts"]["phase_seconds"] == {"teacher": 10.0, "distill": 10.0, "student": 10.0}
    assert stored["updates"] == {"teacher": 30, "student": 40}
    assert stored["train_pairs"] == len(PreparedSet.open(work / "data").split("train"))
    # Each system has its own latency, whatever the order they were measured in.
    assert list(stored["systems"]) == NAMES
    assert [system["latency_ms"]["median"] for system in stored["systems"].values()] == [len(n) + 0.5 for n in NAMES]
    assert (tmp_path / "results" / "quality_tiny_cpu.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.splitlines()[2].startswith("| AR greedy | 30.00 | 50.00 |")


def test_started_again_it_goes_on_and_adds_up_the_seconds(run, tmp_path):
    steps = ("--teacher_steps=30", "--student_steps=40")
    run.commands.failing = 3
    with pytest.raises(SystemExit):
        run(*steps)
    clock = json.loads((tmp_path / "work" / "seconds.json").read_text())
    assert clock == {"teacher": 10.0, "distill": 10.0, "student": 10.0}
    run.commands.failing = None
    assert run(*steps) == 0
    # Training goes on from its checkpoint by itself; a finished distilled set is kept.
    assert [command for command, _ in run.commands.calls[3:6]] == ["train", "train", "evaluate"]
    stored = json.loads((tmp_path / "results" / "quality_tiny_cpu.json").read_text())
    assert stored["facts"]["phase_seconds"] == {"teacher": 20.0, "distill": 10.0, "student": 20.0}


def test_a_set_that_another_teacher_made_is_not_used(run, tmp_path):
    run("--teacher_steps=30", "--student_steps=40")
    with pytest.raises(SystemExit, match="distilled: made at step 30 of the teacher, which is now at 50; delete"):
        run("--teacher_steps=50", "--student_steps=40")
    assert run.commands.calls[-1][0] == "train"


def test_quality_and_latency_of_different_decodes_are_not_joined(quality):
    results = {"AR greedy": {"decode": "a"}}
    with pytest.raises(SystemExit, match="AR greedy: quality is that of a, latency is that of b"):
        quality._add_latency(results, {"AR greedy": {"decode": "b"}})
    with pytest.raises(SystemExit, match=r"AR greedy: quality is that of a, latency is missing in \['AR'\]"):
        quality._add_latency(results, {"AR": {"decode": "a"}})


@pytest.mark.parametrize("steps", [1, 2, 4, 10])
def test_the_gin_files_decode_alike_for_quality_and_latency(steps):
    """What the script would find only at the end."""
    chosen = ["Refinement.num_hypotheses = 3"]
    config.parse([f"decode/padir_{steps}.gin"], chosen)
    for_quality = gin.query_parameter("evaluate.decode").scoped_configurable_fn()
    config.parse(["bench/trained.gin"], [*chosen, "DATA_DIR = 'c'", "AR_DIR = 'a'", "PADIR_DIR = 'b'"])
    systems = [reference.scoped_configurable_fn() for reference in gin.query_parameter("SYSTEMS/macro.value")]
    (for_latency,) = [system.decode for system in systems if system.name == f"PaDIR, {steps} step{'s' * (steps > 1)}"]
    assert repr(for_quality) == repr(for_latency)
    assert [system.name for system in systems] == NAMES
