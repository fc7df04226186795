"""`make quality` with stand-ins for its commands: their order, resuming, the systems, and the joined results."""

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import gin
from padir.cli import config
from padir.data.records import PreparedSet
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing
from padir.decoding.verified import Verified
from padir.models import padir_decoding
from padir.models.kinds import DECODE_CONFIGS
from padir.runs.convert import export_checkpoint
from padir.types import TokenIds

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import quality
import quality_models
import quality_report
import quality_speed
from quality_models import MODELS, REFERENCE


class Commands:
    """Stands for `padir`: notes what is called, writes what it would leave; the call numbered `failing` fails."""

    def __init__(self, data, run, clock):
        self.data, self.run, self.clock, self.calls, self.failing = data, run, clock, [], None

    def __call__(self, arguments):
        command, *rest = arguments
        options = [argument.removeprefix("--").partition("=")[::2] for argument in rest]
        self.calls.append((command, dict(options)))
        self.clock.now += 10.0
        if self.failing == len(self.calls):
            return 2
        getattr(self, command)(dict(options))
        return 0

    def prepare(self, options):
        shutil.copytree(self.data, options["gin.DATA_DIR"].strip("'"))

    def train(self, options):
        """Leaves the record of its settings; the script never looks at checkpoints."""
        folder = Path(options["gin.RUN_DIR"].strip("'"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.json").write_text(
            json.dumps({"settings": {"num_steps": int(options["num_steps"])}, "changes": []})
        )
        (folder / "metrics").mkdir(exist_ok=True)
        records = [{"step": 20, "train/step_seconds": 0.5}, {"step": 20, "eval/loss": 1.0}]
        records.append({"step": int(options["num_steps"]), "train/step_seconds": 0.25})
        (folder / "metrics" / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))

    def average(self, options):
        shutil.copytree(self.run, options["output_dir"])

    def distill(self, options):
        shutil.copytree(self.data, options["output_dir"])

    def evaluate(self, options):
        folder = Path(options["output_dir"])
        folder.mkdir(exist_ok=True)
        if "baseline" in options:
            assert Path(options["baseline"]).exists(), "the reference comes first"
        count = len(PreparedSet.open(options["data_dir"]).split("validation"))
        result = {"bleu": 30.0 + len(options["name"]) / 10, "chrf": 50.0, "stutter_per_100_words": 0.0}
        result |= {"length_accuracy": None, "mean_steps_run": 4.0, "run_dir": options["run_dir"]}
        (folder / f"{options['name']}.json").write_text(json.dumps(result))
        (folder / f"{options['name']}.txt").write_text("".join(f"{options['name']} {i}\n" for i in range(count)))

    def names(self):
        return [command for command, _ in self.calls]


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def run(tiny, tmp_path, monkeypatch):
    """Returns run(*arguments): starts the script over stand-ins, `run.commands`; `run.in_turns` is what was timed."""
    clock = Clock()
    commands = Commands(tiny.data, tiny.ar, clock)
    monkeypatch.setattr(quality, "time", clock)
    monkeypatch.setattr(quality, "run_padir", commands)
    monkeypatch.setattr(quality.Comparison, "_measure", lambda self, models: dict.fromkeys(models, 0.5) | {"ar": 0.25})
    times = {"median": 2.0, "p99": 9.0}
    in_turns = []

    def latency(self, data, chosen):
        in_turns.append(chosen)
        return {name: times | {"median": 1.0 + len(name)} for name in chosen}

    monkeypatch.setattr(quality.Comparison, "latency", latency)

    def start(*arguments):
        folders = [f"--work={tmp_path / 'work'}", f"--results={tmp_path / 'results'}"]
        monkeypatch.setattr("sys.argv", ["quality.py", "--data=corpus", *folders, *arguments])
        return quality.main()

    start.commands, start.in_turns = commands, in_turns
    return start


def test_the_whole_chain(run, tmp_path, capsys):
    assert run("--seconds=100") == 0
    calls, work = run.commands.calls, tmp_path / "work"
    assert run.commands.names()[:6] == ["prepare", "train", "average", "average", "distill", "train"]
    trained = {Path(options["gin.RUN_DIR"].strip("'")).name: options for name, options in calls if name == "train"}
    assert list(trained) == list(MODELS)
    # The same seconds are more updates where one takes less.
    assert (trained["ar"]["num_steps"], trained["padir"]["num_steps"]) == ("400", "200")
    assert trained["ar"]["gin.Cadence.checkpoint"] == "20" and trained["ar"]["gin.Cadence.keep"] == "5"
    assert [trained[name]["gin.OptimizerConfig.warmup_steps"] for name in ("ar", "padir")] == ["40", "20"]
    for name, options in trained.items():
        recipe = MODELS[name]
        assert options["gin.DATA_DIR"] == repr(str(work / ("distilled" if recipe.distilled else "data")))
        assert ("gin.DATA" in options) != recipe.distilled
        assert options.get("initialize_from") == (None if recipe.start is None else str(work / "best" / recipe.start))

    stored = json.loads((tmp_path / "results" / "quality_tiny_cpu.json").read_text())
    evaluated = {options["name"]: options for name, options in calls if name == "evaluate"}
    assert len(evaluated) == len(stored["systems"]) == 3 * 3 + 7 * 10 + 4
    # Each model by itself, with what it is compared with.
    for model, chosen in zip(MODELS, run.in_turns, strict=True):
        assert REFERENCE in chosen and {chosen[name].model for name in chosen if name != REFERENCE} == {model}
    # Each system has its own latency, and those of other checkpoints are not measured.
    for name, system in stored["systems"].items():
        assert ("latency_ms" in system) == (not name.endswith(("averaged", "lowest loss")))
        if "latency_ms" in system:
            assert system["latency_ms"]["median"] == 1.0 + len(name)
            assert system["speed_up"] == (1.0 + len(REFERENCE)) / (1.0 + len(name))
    rescored = evaluated["cmlm_10_steps_5_lengths_rescored"]
    # A student is judged by the mean of its last checkpoints, another model by the checkpoint of the lowest loss.
    assert rescored["rescore_with"] == str(work / "best" / "ar") and rescored["run_dir"] == str(work / "mean" / "cmlm")
    assert evaluated["padir_4_steps_5_lengths_lowest_loss"]["run_dir"] == str(work / "best" / "padir")
    assert evaluated["padir_raw_4_steps"]["run_dir"] == str(work / "best" / "padir_raw")
    assert evaluated["ar_beam_5_last_5_averaged"]["run_dir"] == str(work / "mean" / "ar")
    assert evaluated["ar_verifies_padir"]["verify_with"] == str(work / "best" / "ar")
    assert {name: made["updates"] for name, made in stored["models"].items()} == {
        name: 400 if name == "ar" else 200 for name in MODELS
    }
    assert stored["models"]["padir"]["best_after"] == 120, "that of the stand-in"
    assert stored["models"]["padir"]["seconds"] == 20 * 0.5 + 180 * 0.25
    assert {"commit", "cpu", "device"} <= set(stored["models"]["padir"])
    assert all("no-with_ter" in options for options in evaluated.values())
    assert stored["train_pairs"] == len(PreparedSet.open(work / "data").split("train"))
    assert (tmp_path / "results" / "quality_tiny_cpu.png").read_bytes().startswith(b"\x89PNG")
    assert "padir_4_steps_5_lengths 0" in (tmp_path / "results" / "quality_tiny_cpu.html").read_text()
    assert len(stored["pairs"]) >= len(MODELS) - 1
    assert capsys.readouterr().out.splitlines()[2].startswith("| AR, greedy | 30.90 | 50.00 |")


def test_what_there_is_is_written_before_latencies_are_measured(run, tmp_path, monkeypatch):
    def broken(self, data, chosen):
        raise MemoryError

    monkeypatch.setattr(quality.Comparison, "latency", broken)
    with pytest.raises(MemoryError):
        run("--models=ar")
    stored = json.loads((tmp_path / "work" / "without_latency" / "quality_tiny_cpu.json").read_text())
    assert not (tmp_path / "results").exists(), "a result that is there stays as it is"
    assert list(stored["models"]) == ["ar"] and "latency_ms" not in stored["systems"]["AR, beam 5"]


def test_a_sitting_takes_some_models_further(run, tmp_path):
    run("--seconds=100", "--models=ar,padir")
    assert run.commands.names().count("train") == 2
    first = json.loads((tmp_path / "results" / "quality_tiny_cpu.json").read_text())
    assert list(first["models"]) == ["ar", "padir"] and len(first["systems"]) == 3 + 11
    before = len(run.commands.calls)
    run("--seconds=100", "--models=disco")
    assert run.commands.names()[before:] == ["train", "average", "average", *["evaluate"] * 10]
    second = json.loads((tmp_path / "results" / "quality_tiny_cpu.json").read_text())
    assert list(second["models"]) == ["ar", "padir", "disco"] and len(second["systems"]) == 3 + 11 + 10


def test_started_again_it_goes_on_and_adds_up_the_seconds(run, tmp_path):
    run.commands.failing = 6
    with pytest.raises(SystemExit):
        run("--models=ar,padir")
    assert run.commands.names() == ["prepare", "train", "average", "average", "distill", "train"]
    run.commands.failing = None
    assert run("--models=ar,padir") == 0
    # Training goes on from its checkpoint by itself; what is finished stays.
    assert run.commands.names()[6:10] == ["train", "average", "average", "evaluate"]
    stored = json.loads((tmp_path / "results" / "quality_tiny_cpu.json").read_text())
    seconds = {"prepare": 10.0, "train ar": 30.0, "distill": 10.0, "train padir": 40.0}
    assert {name: stored["phase_seconds"][name] for name in seconds} == seconds


def test_what_an_interrupted_average_left_is_made_anew(run, tmp_path):
    run("--models=ar")
    (tmp_path / "work" / "facts" / "ar.json").unlink()
    for kept in (tmp_path / "work" / "mean" / "ar" / "checkpoints").iterdir():
        shutil.rmtree(kept)
    before = len(run.commands.calls)
    run("--models=ar")
    assert run.commands.names()[before : before + 2] == ["train", "average"]


def test_trained_on_one_machine_and_evaluated_on_another(run, tmp_path):
    equal = ("--updates=95", "--models=ar,padir")
    run(*equal, "--only=train")
    assert "evaluate" not in run.commands.names() and not (tmp_path / "results").exists()
    # As many updates for all, and as many between any two checkpoints.
    steps = [options["num_steps"] for name, options in run.commands.calls if name == "train"]
    assert steps == ["100", "100"]
    # What the other machine need not have.
    for unneeded in ("runs", "distilled", "mean/ar"):
        shutil.rmtree(tmp_path / "work" / unneeded)
    before = len(run.commands.calls)
    run(*equal, "--only=evaluate")
    assert set(run.commands.names()[before:]) == {"evaluate"}
    stored = json.loads((tmp_path / "results" / "quality_tiny_cpu.json").read_text())
    assert stored["budget_updates"] == 95 and "budget_seconds" not in stored
    assert stored["models"]["padir"]["updates"] == 100
    assert "AR, beam 5" in stored["systems"] and "AR, beam 5, last 5 averaged" not in stored["systems"]


def test_some_systems_are_evaluated_beside_the_reference(run, tmp_path):
    run("--models=ar,padir", "--systems=^AR, greedy$|^PaDIR, 4 steps$")
    stored = json.loads((tmp_path / "results" / "quality_tiny_cpu.json").read_text())
    assert list(stored["systems"]) == ["AR, greedy", "AR, beam 5", "PaDIR, 4 steps"]
    assert list(stored["models"]) == ["ar", "padir"] and stored["pairs"] == []


@pytest.mark.parametrize(
    "options, message",
    [
        (["--seconds=5", "--updates=5"], "argument --updates: not allowed with argument --seconds"),
        (["--updates=0"], "--updates: 0 is not above 0"),
        (["--seconds=-1"], "--seconds: -1.0 is not above 0"),
        (["--systems=("], "--systems: '\\(' is no regular expression: missing"),
    ],
)
def test_mistaken_options_are_refused_before_anything_is_done(run, capsys, options, message):
    with pytest.raises(SystemExit):
        run(*options)
    assert re.search(message, capsys.readouterr().err) and not run.commands.calls


def test_without_a_teacher_nothing_is_compared(run):
    with pytest.raises(SystemExit, match="has no trained teacher, .*; run --models=ar first"):
        run("--only=evaluate")


def test_a_folder_of_an_earlier_version_is_refused(run, tmp_path):
    run("--models=ar")
    (tmp_path / "work" / "facts" / "ar.json").write_text(json.dumps({"commit": "0123456789"}))
    with pytest.raises(SystemExit, match="ar.json: is of an earlier version of this script; choose another --work"):
        run("--models=ar")


def test_models_may_be_exports(run, tiny, tmp_path):
    run("--models=ar,padir", "--only=train")
    for kind, name, dtype in (("best", "ar", "bfloat16"), ("mean", "padir", "int8")):
        folder = tmp_path / "work" / kind / name
        shutil.rmtree(folder)
        export_checkpoint(run_dir=str(getattr(tiny, name)), output_dir=str(folder), dtype=dtype)
    assert run("--only=evaluate") == 0
    models = json.loads((tmp_path / "results" / "quality_tiny_cpu.json").read_text())["models"]
    assert models["ar"]["kept_as"] == {"best": "BF16", "mean": "F32"}
    assert models["padir"]["kept_as"] == {"best": "F32", "mean": "I8"}
    assert models["ar"]["command"].endswith("--only=train")


def test_a_checkpoint_that_is_alone_is_timed(run, tmp_path):
    run("--models=ar,padir", "--only=train")
    shutil.rmtree(tmp_path / "work" / "mean" / "padir")
    run("--only=evaluate")
    systems = json.loads((tmp_path / "results" / "quality_tiny_cpu.json").read_text())["systems"]
    assert [name for name in systems if "PaDIR" in name] == ["PaDIR, 4 steps, 5 lengths, lowest loss"]
    assert "latency_ms" in systems["PaDIR, 4 steps, 5 lengths, lowest loss"]


def test_another_budget_needs_another_folder(run):
    run("--models=ar", "--seconds=100")
    with pytest.raises(
        SystemExit, match="work: holds a comparison with .*100.0.*, not .*200.0.*; choose another --work"
    ):
        run("--models=ar", "--seconds=200")


def test_unknown_models_are_refused(run, capsys):
    with pytest.raises(SystemExit):
        run("--models=ar,bert")
    assert "--models: unknown 'bert'; choose from ar, padir" in capsys.readouterr().err


def built(name, *, reverse=False):
    """The model that the recipe makes at the size of the preset."""
    bindings = ["DATA_DIR='d'", "RUN_DIR='r'", *([] if MODELS[name].distilled else ["DATA='c'"])]
    files, layers, *_ = quality.PRESETS["cpu"]
    arguments = quality_models.training_arguments(name, files, bindings, reverse=reverse, layers=layers)
    config.parse(*quality_speed.parsed([*arguments, "--gin.train.num_steps=1000"]))
    return gin.query_parameter("train.model").scoped_configurable_fn(TokenIds(4000))


@pytest.mark.parametrize("name", MODELS)
def test_each_model_is_of_its_kind_and_decodes_with_its_systems(name):
    model, recipe = built(name), MODELS[name]
    network = model.network
    assert (network.num_encoder_layers, network.num_decoder_layers) == ((5, 1) if recipe.shallow else (3, 3))
    assert network.embed_dim == 256
    found = quality_models.systems([name])
    assert quality_models.main_system(name) in found
    for system in found.values():
        decode = system.decode()
        if isinstance(decode, Refinement):
            padir_decoding.check(model, decode, has_rescorer=system.helper == "rescore_with", has_lengths=False)
        elif system.helper != "verify_with" and name != "joint":
            assert isinstance(decode, DECODE_CONFIGS[type(model)])


def test_the_kinds_differ_as_published():
    padir, cmlm, sundae, disco, joint = map(built, ("padir", "cmlm", "sundae", "disco", "joint"))
    assert built("padir_raw") == padir
    assert (padir.num_stages, cmlm.num_stages, sundae.num_stages, disco.num_stages) == (2, 1, 2, 1)
    assert sundae.hand_over == "sample" and sundae.corruption.random_probability == 1.0
    assert cmlm.corruption.loss_weighting == "noise" and disco.network.disentangled_context
    assert joint == dataclasses.replace(padir, causal_stage=True)


def test_systems_decode_as_they_are_called():
    found = quality_models.systems(["ar", "padir", "cmlm", "sundae", "joint"])
    assert isinstance(found["AR, greedy"].decode(), Autoregressive)
    assert isinstance(found["AR, beam 5"].decode(), BeamSearch)
    assert isinstance(found["AR verifies PaDIR"].decode(), Verified)
    one, five = found["PaDIR, 10 steps"].decode(), found["PaDIR, 10 steps, 5 lengths"].decode()
    assert (one.num_steps, one.num_hypotheses, five.num_steps, five.num_hypotheses) == (10, 1, 10, 5)
    assert five.rank.length_weight == 0.1 and five.likeliest_first and not one.likeliest_first
    # In batches nothing is gained by it.
    assert not any("likeliest_first" in each for each in found["PaDIR, 10 steps, 5 lengths"].bindings)
    by_itself = found["joint, 4 steps, 5 lengths, ranked by itself"].decode()
    assert by_itself == dataclasses.replace(found["joint, 4 steps, 5 lengths"].decode(), self_rescoring=True)
    assert isinstance(found["CMLM, 1 step"].decode().remask, RemaskNothing)
    assert found["CMLM, 4 steps"].decode().rewrite_only_remasked
    assert found["SUNDAE, 4 steps, 5 lengths"].decode().sampling.temperature == 0.3


def test_english_to_german_is_another_task():
    built("ar", reverse=True)
    task = gin.query_parameter("train.task").scoped_configurable_fn()
    assert task.name == "tatoeba_en_de" and task.options["train"] == ("train.en.gz", "train.de.gz")


def rows(**systems):
    return {
        name: {"bleu": bleu, **({} if ms is None else {"latency_ms": {"median": ms}, "speed_up": 1 / ms})}
        for name, (bleu, ms) in systems.items()
    }


def test_the_frontier_is_what_nothing_beats():
    found = rows(fast=(20.0, 1.0), slower_and_worse=(19.0, 2.0), good=(30.0, 3.0), same=(30.0, 4.0), best=(31.0, 9.0))
    assert quality_report.frontier(found | rows(untimed=(99.0, None))) == ["fast", "good", "best"]


def test_pairs_are_compared_in_the_order_of_quality():
    references = [f"the quick brown fox number {index} jumps high" for index in range(40)]
    worse = [text.replace("quick", "slow") for text in references]
    outputs = {"worst": (10.0, ["nothing at all"] * 40), "best": (100.0, references), "middle": (50.0, worse)}
    systems = {name: {"bleu": bleu, "outputs": texts} for name, (bleu, texts) in outputs.items()}
    found = quality_report.compared_pairs(systems, references)
    assert [(pair["better"], pair["worse"]) for pair in found] == [("best", "middle"), ("middle", "worst")]
    assert all(pair["difference"] > 0 and pair["bootstrap"] < 0.01 and pair["randomization"] < 0.01 for pair in found)
    for beside, more in {"best": [("best", "worst")], "middle": [], "worst": [("best", "worst")], "none": []}.items():
        named = quality_report.compared_pairs(systems, references, beside=beside)
        assert [(pair["better"], pair["worse"]) for pair in named[2:]] == more


def test_the_page_of_outputs_escapes_and_marks_what_is_right(tiny):
    examples = PreparedSet.open(tiny.data).split("validation").read(range(4))
    right = [example.target_text for example in examples]
    page = quality_report.outputs_page("<title>", examples, {"a": right, "b": ["<i>x</i>"] * 4})
    assert "&lt;title&gt;" in page and "<i>" not in page and "&lt;i&gt;x&lt;/i&gt;" in page
    # The reference itself and the output that equals it.
    assert page.count("<tr class=right>") == 8 and page.count("<h2>") == 4
