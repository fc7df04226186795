"""The `padir` command as a user types it: flags, help, exit status, one line for every mistake."""

import errno
import inspect
import json
import os
import re
import subprocess
import sys

import pytest

import gin
from padir import __version__, errors
from padir.cli import config, gin_files
from padir.cli import main as cli
from padir.cli.commands import COMMANDS
from padir.data.manifest import Manifest
from padir.data.vocabulary import Vocabulary
from padir.decoding.refinement import Refinement
from padir.errors import Preempted

pytestmark = pytest.mark.usefixtures("optimised")


@pytest.fixture
def padir(capsys):
    """Returns padir(*arguments) -> (status, standard output, standard error)."""

    def call(*arguments):
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse's own way out
            status = stop.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_evaluate_with_flags_and_a_decode_file(padir, tiny, tmp_path):
    arguments = ["--gin_file=decode/padir_2.gin", "--gin.Refinement.target_buckets=(16,)", f"--run_dir={tiny.padir}"]
    status, out, _ = padir(
        "evaluate",
        *arguments,
        f"--data_dir={tiny.data}",
        f"--output_dir={tmp_path}",
        "--name=two",
        "--batch_size",
        "16",
    )
    assert status == 0
    assert out.startswith(f"two on test of {tiny.data}\nBLEU ")
    stored = json.loads((tmp_path / "two.json").read_text(encoding="utf-8"))
    assert stored["decode"] == repr(Refinement(num_steps=2, target_buckets=(16,)))
    operative = (tmp_path / "two.gin").read_text()
    for line in ("evaluate.batch_size = 16", "evaluate.name = 'two'", "Refinement.num_steps = 2"):
        assert line in operative.splitlines()


def test_a_checkpoints_folder_needs_no_flag(padir, tiny):
    with_flag = padir("checkpoint", f"--path={tiny.ar}")
    assert with_flag[0] == 0 and "step" in with_flag[1]
    assert padir("checkpoint", tiny.ar) == with_flag


def test_benchmark_of_the_gin_file(padir, tiny, tmp_path):
    output = tmp_path / "latency.json"
    arguments = [f"--gin.AR_DIR='{tiny.ar}'", f"--gin.PADIR_DIR='{tiny.padir}'", "--gin.Refinement.target_buckets=()"]
    status, out, _ = padir(
        "benchmark",
        "latency",
        "--gin_file=bench/trained.gin",
        *arguments,
        f"--gin.DATA_DIR='{tiny.data}'",
        "--gin.PreparedText.num_requests=1",
        f"--output={output}",
        "--repeats=2",
    )
    assert status == 0
    systems = json.loads(output.read_text())["systems"]
    assert list(systems) == ["AR greedy", *(f"PaDIR, {n} step{'s' * (n > 1)}" for n in (1, 2, 4, 10))]
    assert [re.search(r"num_steps=(\d+)", s["decode"])[1] for s in list(systems.values())[1:]] == ["1", "2", "4", "10"]
    assert {system["latency_ms"]["n"] for system in systems.values()} == {2}
    assert out.splitlines()[2].startswith("| AR greedy |")
    assert "benchmark_latency.repeats = 2" in (tmp_path / "latency.json.gin").read_text()


def test_benchmark_of_a_text_file(padir, tiny, tmp_path):
    """The gin file of the pretrained models, with others, needs no prepared set."""
    output, text = tmp_path / "latency.json", tmp_path / "text"
    text.write_text("Peter helps a big dog .\n")
    arguments = [f"--gin.AR_DIR='{tiny.ar}'", f"--gin.PADIR_DIR='{tiny.padir}'", f"--gin.SOURCES='{text}'"]
    arguments += ["--gin.SYSTEMS=[@ar/System()]", f"--output={output}", "--repeats=2"]
    status, _, err = padir("benchmark", "latency", "--gin_file=bench/pretrained.gin", *arguments)
    assert status == 0, err
    assert json.loads(output.read_text())["systems"]["AR greedy"]["latency_ms"]["n"] == 2


def test_prepare(padir, tmp_path):
    (tmp_path / "pairs.tsv").write_text("ab\tcd\nba\tdc\na b\tc d\n")
    status, out, err = padir(
        "prepare",
        "--gin.prepare.task=@TaskConfig()",
        "--gin.TaskConfig.module='tasks.text_files'",
        "--gin.TaskConfig.name='pairs'",
        f"--gin.TaskConfig.options={{'train': '{tmp_path / 'pairs.tsv'}', 'format': 'tsv'}}",
        "--gin.prepare.settings=@PrepareSettings()",
        "--gin.PrepareSettings.num_pieces=8",
        f"--output_dir={tmp_path / 'out'}",
    )
    assert status == 0, err
    assert Manifest.load(tmp_path / "out").splits["train"].num_examples == 3
    assert "PrepareSettings.num_pieces = 8" in (tmp_path / "out" / "prepare.gin").read_text()


def test_vocabulary(padir, tmp_path):
    """Made by the settings of a run file, with its configuration beside it, and never made twice."""
    (tmp_path / "pairs.tsv").write_text("ab\tcd\nba\tdc\na b\tc d\n")
    (tmp_path / "mine.gin").write_text(
        "# Mine.\ninclude 'runs/base.gin'\nMAX_LENGTH = 16\n"
        "TaskConfig.module = 'tasks.text_files'\nTaskConfig.name = 'pairs'\n"
        f"TaskConfig.options = {{'train': '{tmp_path / 'pairs.tsv'}', 'format': 'tsv'}}\n"
    )
    output = tmp_path / "made" / "v.model"
    arguments = ["vocabulary", f"--gin_file={tmp_path / 'mine.gin'}", f"--output={output}"]
    # 3 reserved pieces, "▁" and 4 letters are the fewest.
    assert padir(*arguments)[0] == 2
    assert not output.exists()
    status, out, err = padir(*arguments, "--gin.PrepareSettings.num_pieces=8")
    assert (status, out) == (0, ""), err
    assert Vocabulary.load(output).num_pieces == 8
    assert "PrepareSettings.num_pieces = 8" in (tmp_path / "made" / "v.model.gin").read_text().splitlines()
    status, _, err = padir(*arguments, "--gin.PrepareSettings.num_pieces=8")
    assert (status, err) == (2, f"padir vocabulary: {output}: exists already; choose another output or delete it\n")


MISTAKES = {
    "unknown gin file": (["train", "--gin_file=nowhere.gin"], "nowhere.gin"),
    "unknown name": (["train", "--gin.Trian.seed=1"], "Trian"),
    "unknown parameter": (["train", "--gin.train.sed=1"], "sed"),
    "unknown macro": (["train", "--gin_file=runs/synthetic_ar.gin", "--gin.DATADIR='x'"], "uses a macro DATADIR"),
    "unquoted text": (
        ["train", "--gin_file=runs/synthetic_ar.gin", "--gin.DATA_DIR=x"],
        "--gin.DATA_DIR=x: the value is",
    ),
    "no value": (["train", "--gin_file=runs/synthetic_ar.gin", "--gin.DATA_DIR"], "--gin.DATA_DIR: "),
    "no value but =": (["train", "--gin_file=runs/synthetic_ar.gin", "--gin.DATA_DIR="], "--gin.DATA_DIR=: "),
    "value missing": (["train", "--gin_file=runs/synthetic_ar.gin", "--gin.DATA_DIR='x'"], "give a value for RUN_DIR"),
    "a binding that nothing reads": (
        ["translate", "--run_dir=x", "--gin_file=decode/padir_4.gin", "--gin.Sampling.temperature=1.0"],
        "--gin.Sampling.temperature=1.0: changes nothing, since nothing that translate reads here names @Sampling()",
    ),
    "nothing given": (["distill"], "no value for data_dir, output_dir"),
    "no run": (["translate", "--run_dir=nowhere"], "nowhere: no trained model found here; give a run directory"),
    "no set": (["distill", "--run_dir=x", "--data_dir=y", "--output_dir=out"], "no prepared data set here"),
    "a value of another type": (
        ["train", "--gin_file=runs/synthetic_ar.gin", "--gin.train.num_steps='x'"],
        "train.num_steps = 'x': expected int, found str",
    ),
    "no such figure": (
        ["theory", "--output_dir=out", "--figures", "figure_4_1", "figure_9"],
        "theory.figures: no figure_9; there are figure_4_1, figure_4_2, theorems, figure_4_3, learned",
    ),
    "yes and no of another type": (
        ["theory", "--output_dir=out", "--gin.theory.quick='yes'"],
        "theory.quick = 'yes': expected bool, found str",
    ),
    "bad format": (["translate", "--run_dir=x", "--output_format=csv"], "choose lines or jsonl"),
}


@pytest.mark.parametrize("arguments, part", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_and_status_2(padir, arguments, part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = padir(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"padir {arguments[0]}: ") and err.count("\n") == 1, err
    assert part in err
    assert not list(tmp_path.iterdir())


def test_arguments_that_do_not_exist(padir):
    status, _, err = padir("train", "--batch-size=8")
    assert status == 2
    assert err.splitlines()[-1].endswith(
        "unknown argument '--batch-size=8'; did you mean --batch_size?; see padir train --help"
    )
    status, _, err = padir("train", "--quite")
    assert status == 2 and err.splitlines()[-1].endswith("unknown argument '--quite'; see padir train --help")
    status, _, err = padir("trian")
    assert status == 2 and "invalid choice: 'trian'" in err
    status, _, err = padir()
    assert status == 2 and "COMMAND" in err
    status, _, err = padir("train", "--batch_size=many")
    assert status == 2 and "invalid int value: 'many'" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_help(padir, command):
    status, out, _ = padir(command, "--help")
    assert status == 0
    assert f"example:\n  {COMMANDS[command].example}\n" in out
    for flag in (
        "--gin_file FILE",
        "--gin_search_path DIR",
        "--gin.NAME=VALUE",
        *(f"--{f}" for f in cli.flags_of(COMMANDS[command])),
    ):
        assert flag in out


def test_help_lists_what_gin_sets(padir):
    _, out, _ = padir("vocabulary", "--help")
    text = " ".join(out.split())
    for part in ("TaskConfig: module, name, options", "num_pieces=32000", "byte_fallback=False", "vocabulary_seed=0"):
        assert part in text
    assert "Refinement: num_steps=4," in " ".join(padir("evaluate", "--help")[1].split())


def test_help_says_what_a_gin_file_does_to_the_demo(padir):
    assert "A --gin_file replaces runs/demo.gin" in " ".join(padir("demo", "--help")[1].split())


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["trace", "a b", "--run_dir=r"], ["trace", "--text=a b", "--run_dir=r"]),
        (["trace", "--run_dir=r", "a b"], ["trace", "--run_dir=r", "--text=a b"]),
        (["trace", "--run_dir", "r", "a b"], ["trace", "--run_dir", "r", "--text=a b"]),
        # This may be the value of the flag.
        (["trace", "--run_dir", "r"], ["trace", "--run_dir", "r"]),
        (["trace", "--text", "a b"], ["trace", "--text", "a b"]),
        (["evaluate", "--run_dir=r", "x"], ["evaluate", "--run_dir=r", "x"]),
    ],
)
def test_a_positional_argument_comes_first_or_last(arguments, expected):
    assert cli.joined(arguments) == expected


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_every_command_names_a_function_and_its_own_example(command):
    assert inspect.isfunction(command.function())
    assert f"padir {command.name} " in command.example
    flags = cli.flags_of(command)
    assert command.positional is None or command.positional in flags
    assert all((gin_files.gin_folder() / name).is_file() for name in command.gin_files)


def test_flags_are_the_plain_parameters():
    flags = ["run_dir", "inputs", "input_format", "input_field", "output", "output_format", "rejects"]
    flags += ["shards", "compress", "host_index", "num_hosts", "rescore_with", "verify_with"]
    flags += ["verifier", "constraint", "compute_type", "batch_size", "seed"]
    assert list(cli.flags_of(COMMANDS["translate"])) == flags
    assert "decode" not in cli.flags_of(COMMANDS["evaluate"]) and "limit" in cli.flags_of(COMMANDS["distill"])


def test_a_job_that_was_told_to_stop_says_so_and_exits_with_75(padir, monkeypatch):
    def stop(command):
        raise Preempted("runs/ar: told to stop; saved at step 5 of 12")

    monkeypatch.setattr(config, "run", stop)
    message = "padir translate: runs/ar: told to stop; saved at step 5 of 12; run the same command again to resume\n"
    assert padir("translate", "--run_dir=x") == (75, "", message)


def test_what_gin_adds_to_such_a_message_is_left_out(padir, monkeypatch):
    @gin.configurable("told_to_stop")
    def stop(run_dir=None):
        raise Preempted("saved at step 5")

    monkeypatch.setitem(config._CONFIGURABLES, "translate", stop)
    monkeypatch.setattr(config, "required", lambda command: [])
    said = "padir translate: saved at step 5; run the same command again to resume\n"
    assert padir("translate", "--run_dir=x") == (75, "", said)


def test_several_inputs(padir, monkeypatch):
    seen = {}
    monkeypatch.setattr(config, "run", lambda command: seen.update(config._statements()))
    status, _, _ = padir("translate", "--inputs", "a", "b.gz", "--run_dir=it's")
    assert status == 0
    assert seen["translate.inputs"] == "['a', 'b.gz']"
    assert eval(seen["translate.run_dir"]) == "it's"


def test_a_gin_value_with_spaces_behind_several_inputs(padir, monkeypatch):
    seen = {}
    monkeypatch.setattr(config, "run", lambda command: seen.update(config._statements()))
    status, _, _ = padir("translate", "--inputs", "a", "--gin.translate.run_dir='a folder'")
    assert status == 0
    assert seen["translate.inputs"] == "['a']" and seen["translate.run_dir"] == "'a folder'"


@pytest.mark.parametrize("flag, bound", [(["--quick"], "True"), (["--no-quick"], "False"), ([], None)])
def test_yes_and_no(padir, monkeypatch, flag, bound):
    seen = {}
    monkeypatch.setattr(config, "run", lambda command: seen.update(config._statements()))
    assert padir("theory", "--output_dir=x", *flag)[0] == 0
    assert seen.get("theory.quick") == bound


def test_version_and_overview(padir):
    assert padir("--version") == (0, f"padir {__version__}\n", "")
    status, out, _ = padir("--help")
    assert status == 0
    for command in COMMANDS.values():
        assert f" {command.name} {command.summary} " in f"{' '.join(out.split())} "


def test_interrupt(padir, monkeypatch):
    def interrupt(command):
        raise KeyboardInterrupt

    monkeypatch.setattr(config, "run", interrupt)
    assert padir("translate") == (130, "", "padir translate: interrupted\n")


def test_a_defect_keeps_its_traceback(padir, monkeypatch):
    def crash(command):
        raise ZeroDivisionError

    monkeypatch.setattr(config, "run", crash)
    with pytest.raises(ZeroDivisionError):
        padir("translate")


def test_import_padir_and_its_help_start_no_jax(run_python):
    done = run_python(
        "import sys, padir\nassert not {'jax', 'numpy', 'flax'} & set(sys.modules), 'import'\n"
        "from padir.cli import main as cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert 'jax' not in sys.modules, 'help'"
    )
    assert done.returncode == 0, done.stderr.decode()


def test_no_command_waits_for_what_only_another_one_needs(run_python):
    """Every command imports the functions of all, but not these libraries, which take long to import."""
    heavy = ["gcsfs", "scipy.stats", "seqio", "sklearn", "starlette", "tensorflow", "torch", "transformers"]
    done = run_python(f"import sys, padir.cli.config\nprint([name for name in {heavy} if name in sys.modules])")
    assert (done.stdout, done.returncode) == (b"[]\n", 0), done.stderr.decode()


MEMORY = """
import sys
from jax._src import xla_bridge
from padir.cli import main as cli
from padir.cli import config
from padir.runtime import host_memory
host_memory.keep_freed_before_jax = lambda: print("asked", xla_bridge.backends_are_initialized())
config.run = lambda name: print("ran", name)
sys.exit(cli.main(sys.argv[1:]))
"""


def test_training_asks_for_memory_before_jax_starts_and_decoding_does_not(run_python, tmp_path):
    flags = [f"--gin.{name}={str(tmp_path / name)!r}" for name in ("RUN_DIR", "DATA_DIR")]
    done = run_python(MEMORY, "train", "--gin_file=runs/synthetic_ar.gin", *flags)
    assert done.stdout.decode().split() == ["asked", "False", "ran", "train"], done.stderr.decode()
    done = run_python(MEMORY, "translate", "--run_dir=somewhere")
    assert done.stdout.decode().split() == ["ran", "translate"], done.stderr.decode()


def test_the_installed_command_works_from_anywhere(tmp_path):
    """It finds the gin files that come with it, and a gin file in the working directory."""
    (tmp_path / "mine.gin").write_text("# Mine.\ninclude 'runs/synthetic_ar.gin'\nDATA_DIR = 'x'\n")
    padir = os.path.join(os.path.dirname(sys.executable), "padir")
    done = subprocess.run([padir, "train", "--gin_file=mine.gin"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == "padir train: give a value for RUN_DIR (--gin.RUN_DIR=…)\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("doing", "status"),
    [
        ("print('a result', flush=True)", 141),
        ("print('a report', file=sys.stderr, flush=True)", 141),
        ("raise errors.PadirError('what is wrong')", 2),
        ("raise errors.Preempted('told to stop')", errors.PREEMPTED_STATUS),
    ],
)
def test_a_job_that_nobody_listens_to_has_not_succeeded(doing, status):
    """Both streams into a pipe whose reader is gone, as after `2>&1 | head -1`."""
    imports = "import sys\nfrom padir import errors\nfrom padir.cli import main as cli\n"
    code = f"{imports}def run(*_):\n    {doing}\ncli._run = run\n"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        arguments = [sys.executable, "-c", f"{code}sys.exit(cli.main(['checkpoint', 'runs/ar']))"]
        done = subprocess.run(arguments, stdout=writer, stderr=writer, env=os.environ)
    finally:
        os.close(writer)
    assert done.returncode == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.ESTALE, "Stale file handle"), 74),
        (errors.StorageError("gone"), 74),
        (PermissionError(errno.EACCES, "Permission denied"), 2),
    ],
)
def test_storage_that_failed_is_worth_another_try(error, status, tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("padir.runs.describe.open_model", fail)
    assert cli.main(["checkpoint", str(tmp_path)]) == status
    assert capsys.readouterr().err.startswith("padir checkpoint: ")
