"""Every gin file begins with what it claims, parses, and resolves to the objects that it names."""

import dataclasses
import functools
import inspect
import re
from pathlib import Path

import pytest
import snippets

import gin as gin_config
from padir.benchmark.workloads import SourceText
from padir.cli import config, gin_files
from padir.cli.commands import COMMANDS
from padir.decoding.annealing import AnnealedSampling
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.backtracking import Backtracking
from padir.decoding.beam import BeamSearch
from padir.decoding.blocks import Block
from padir.decoding.entropy_bound import RemaskBeyondEntropyBound
from padir.decoding.guided import Guided
from padir.decoding.initial import StartWithRandom
from padir.decoding.order import EasyFirst
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement
from padir.decoding.rejection import BlockBestOf, TokenwiseRejection
from padir.decoding.remasking import RemaskLinear, RemaskNothing
from padir.decoding.replacement import ReplaceWithRandom
from padir.decoding.sampling import Sampling
from padir.decoding.stopping import StopWhenAll, StopWhenCertain, StopWhenStable
from padir.decoding.threshold import RemaskBelowThreshold
from padir.decoding.value_guided import ValueGuided
from padir.decoding.verified import Verified
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.types import TokenIds

FOLDER = gin_files.gin_folder()
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.gin"))
RUNS = [name for name in FILES if name.startswith("runs/") and re.search(r"(_ar|_padir)\.gin$", name)]
DECODES = [name for name in FILES if name.startswith("decode/")]


def head(name):
    """The comment that a file begins with."""
    return re.match(r"(?:#.*\n)+", (FOLDER / name).read_text(encoding="utf-8"))[0]


def commands(name):
    """The commands that the head of a file shows, with their continued lines."""
    found = re.findall(r"^#   (padir (?:.*\\\n)*.*)$", head(name), re.MULTILINE)
    return [command.replace("\n#", "\n") for command in found]


def supply(names):
    """Bindings for whatever a file leaves REQUIRED."""
    return [f"{name}='supplied'" for name in names]


def left_required():
    return [name for name, value in config._statements().items() if value == "%gin.REQUIRED"]


def test_there_are_files():
    assert len(FILES) > 15 and RUNS and DECODES


@pytest.mark.parametrize("name", FILES)
def test_it_opens_with_what_it_claims(name):
    first = (FOLDER / name).read_text(encoding="utf-8").splitlines()[0]
    assert re.match(r"# .{20,}", first), f"{name} begins with {first!r}"


@pytest.mark.parametrize("name", [*RUNS, "runs/demo.gin", "runs/wmt_base.gin"])
def test_a_run_states_hardware_result_and_command(name):
    assert "# Hardware: " in head(name) and "xpected result" in head(name)
    assert commands(name)


@pytest.mark.parametrize("name", FILES)
def test_the_commands_of_its_header_exist(name):
    page = "".join(f"```sh\n{command}\n```\n" for command in commands(name))
    assert snippets.check_commands(page) == []


@pytest.mark.parametrize("name", FILES)
def test_it_parses_with_its_required_names_supplied(name):
    # Files that use MAX_LENGTH are included beside a model, which defines it.
    files = ["models/tiny.gin", name] if "MAX_LENGTH" in (FOLDER / name).read_text() else [name]
    config.parse(files, [])
    config.parse(files, supply(left_required()))
    assert left_required() == []


@pytest.mark.parametrize("name", RUNS)
def test_a_run_names_everything_that_training_needs(name):
    config.parse([name], [])
    missing = config.required("train")
    assert "RUN_DIR" in missing and "DATA_DIR" in missing
    config.parse([name], supply(missing))
    assert config.required("train") == []
    values = {
        parameter: gin_config.query_parameter(f"train.{parameter}")
        for parameter in ("num_steps", "batch_size", "buckets")
    }
    assert values["num_steps"] > values["batch_size"] > 0


@pytest.mark.parametrize("name", RUNS)
def test_a_runs_model_is_built(name):
    config.parse([name], [])
    config.parse([name], supply(left_required()))
    reference = gin_config.query_parameter("train.model")
    model = reference.scoped_configurable_fn(TokenIds(390))
    kind = AutoregressiveModel if name.endswith("_ar.gin") else PadirModel
    assert type(model) is kind
    assert model.network.causal is (kind is AutoregressiveModel)
    buckets = gin_config.query_parameter("train.buckets")
    assert buckets == tuple(sorted(buckets)) and buckets[-1] == model.max_source_length == model.max_target_length
    for parameter in ("train.optimizer", "train.cadence"):
        gin_config.query_parameter(parameter).scoped_configurable_fn()
    optimizer = gin_config.query_parameter("train.optimizer").scoped_configurable_fn()
    num_steps = gin_config.query_parameter("train.num_steps")
    assert float(optimizer.schedule(num_steps)(optimizer.warmup_steps)) == pytest.approx(optimizer.peak_learning_rate)


@functools.cache
def parameters_of(model):
    """Of few models, which many runs and systems share."""
    return model.parameter_count()


PAIRS = {"wmt14": ("de", "en"), "wmt16": ("ro", "en"), "wmt17": ("zh", "en")}
WMT = [f"{name}_{'_'.join(pair[::way])}" for name, pair in PAIRS.items() for way in (1, -1)]


@pytest.mark.parametrize("direction", WMT)
@pytest.mark.parametrize("kind", ["ar", "padir"])
def test_the_papers_runs_have_its_settings(direction, kind):
    """Section 4.2.3, and the task that the file's name says."""
    config.parse([f"runs/{direction}_{kind}.gin"], ["DATA_DIR='x'", "RUN_DIR='y'"])
    values = {name: gin_config.query_parameter(f"train.{name}") for name in ("num_steps", "batch_size", "buckets")}
    assert (values["num_steps"], values["batch_size"]) == (500_000, 2048)
    task, settings = (gin_config.query_parameter(f"train.{of}").scoped_configurable_fn() for of in ("task", "settings"))
    name, *languages = direction.split("_")
    way = -1 if tuple(languages) != PAIRS[name] else 1
    dataset = "_".join((name, *PAIRS[name]))
    assert (task.module, task.name) == ("tasks.wmt", direction)
    assert task.options == {"dataset": dataset, "reverse": way == -1, "data_dir": None}
    assert (settings.num_pieces, settings.max_source_length, settings.max_target_length) == (32_000, 128, 128)
    optimizer = gin_config.query_parameter("train.optimizer").scoped_configurable_fn()
    rates = (optimizer.peak_learning_rate, optimizer.floor_learning_rate, optimizer.warmup_steps)
    assert rates == (3e-3, 1e-5, 10_000)
    model = gin_config.query_parameter("train.model").scoped_configurable_fn(TokenIds(32_000))
    assert model.network.dropout_rate == 0.1
    assert parameters_of(model) == {"ar": 60_506_624, "padir": 66_997_760}[kind]
    if kind == "padir":
        assert (model.num_stages, model.corruption.keep_probability) == (2, 0.15)
        noise = (model.corruption.min_noise_density, model.corruption.max_noise_density)
        assert noise == (1.0, 1.0) and model.corruption.random_probability == 0.0


def test_every_wmt_run_is_one_of_them():
    assert {f"runs/{direction}_{kind}.gin" for direction in WMT for kind in ("ar", "padir")} == {
        name for name in RUNS if name.startswith("runs/wmt")
    }


@pytest.mark.parametrize("name", DECODES)
def test_a_decode_file_is_what_its_name_says(name):
    config.parse([name], [])
    decode = gin_config.query_parameter("translate.decode").scoped_configurable_fn()
    kind, number = re.fullmatch(r"decode/(.+?)_?(\d*)\.gin", name).groups()
    once = {"num_steps": 10, "rewrite_only_remasked": True, "drop_repeats": False}
    adaptive = Refinement(**once, remask=RemaskBelowThreshold(0.8))
    by_entropy = Refinement(**once, remask=RemaskBeyondEntropyBound(2.0))
    expected = {
        # The paper's recipe, which is also the default.
        "padir": lambda: Refinement(num_steps=int(number)),
        "mask_predict": lambda: Refinement(
            num_steps=int(number), remask=RemaskLinear(), rewrite_only_remasked=True, drop_repeats=False
        ),
        "disco": lambda: Refinement(
            num_steps=int(number), remask=RemaskNothing(), order=EasyFirst(), drop_repeats=False
        ),
        "sundae": lambda: Refinement(
            num_steps=int(number),
            start=StartWithRandom(),
            remask=RemaskNothing(),
            sampling=Sampling(0.3),
            drop_repeats=False,
        ),
        "lengths": lambda: Refinement(
            num_hypotheses=int(number), rank=RankByLogProbability(length_weight=0.1), likeliest_first=True
        ),
        "lengths_5_ranked": lambda: Refinement(
            num_hypotheses=5, rank=RankByLogProbability(length_weight=0.1), likeliest_first=True, self_rescoring=True
        ),
        "lengths_5_draws": lambda: Refinement(
            num_hypotheses=5,
            parallel_starts=int(number),
            sampling=AnnealedSampling(0.4, 0.0),
            rank=RankByLogProbability(length_weight=0.1),
        ),
        "ar_greedy": Autoregressive,
        "ar_beam": lambda: BeamSearch(beam_size=int(number), num_hypotheses=1),
        "ar_backtrack_4": lambda: Guided(sampler=Backtracking(quota=4, stride=int(number))),
        "ar_constrained": lambda: Guided(sampler=TokenwiseRejection(max_trials=100)),
        "ar_block_best_of": lambda: Guided(sampler=BlockBestOf(block=Block(size=4), candidates=int(number))),
        "ar_value_guided": lambda: Guided(sampler=ValueGuided(children="proposal")),
        "verified": Verified,
        "adaptive": lambda: adaptive,
        "adaptive_entropy": lambda: by_entropy,
        "adaptive_noise": lambda: dataclasses.replace(
            by_entropy,
            start=StartWithRandom(),
            sampling=AnnealedSampling(0.5, 0.0),
            remask=RemaskBeyondEntropyBound(4.0),
            replace=ReplaceWithRandom(),
            rewrite_only_remasked=False,
            stop=StopWhenAll((StopWhenStable(), StopWhenCertain(0.1))),
        ),
    }
    assert decode == expected[kind]()


@pytest.mark.parametrize("name", DECODES)
def test_a_decode_file_holds_for_every_command_that_decodes(name):
    """None of them runs with its default, without a word, where a file was given."""
    config.parse([name], [])
    decode = gin_config.query_parameter("translate.decode").scoped_configurable_fn()
    decoding = [
        command.configurable
        for command in COMMANDS.values()
        if "decode" in inspect.signature(command.function()).parameters
    ]
    assert len(decoding) == 7
    if not isinstance(decode, Refinement):
        decoding.remove("analyze_attention")  # It analyses nothing else.
    found = [gin_config.query_parameter(f"{each}.decode").scoped_configurable_fn() for each in decoding]
    assert found == [decode] * len(decoding)


@pytest.mark.parametrize("extra, count", [([], 66_997_760), (["models/autoregressive.gin"], 60_506_624)])
def test_the_papers_sizes(extra, count):
    config.parse(["models/paper_base.gin", *extra], [])
    model = gin_config.query_parameter("train.model").scoped_configurable_fn(TokenIds(32_000))
    assert model.parameter_count() == count


def test_the_cpu_preset_goes_on_top_of_either_run():
    for kind in ("ar", "padir"):
        config.parse([f"runs/tatoeba_de_en_{kind}.gin", "runs/preset_cpu.gin"], [])
        config.parse([f"runs/tatoeba_de_en_{kind}.gin", "runs/preset_cpu.gin"], supply(left_required()))
        assert gin_config.query_parameter("train.batch_size") == 64
        model = gin_config.query_parameter("train.model").scoped_configurable_fn(TokenIds(4000))
        assert (model.network.embed_dim, model.network.num_decoder_layers) == (256, 3)


def benchmarked():
    """The systems that a benchmark's gin file names."""
    return [reference.scoped_configurable_fn() for reference in gin_config.query_parameter("SYSTEMS/macro.value")]


def test_benchmarks_of_trained_systems():
    config.parse(["bench/trained.gin"], ["AR_DIR='a'", "PADIR_DIR='p'", "DATA_DIR='d'"])
    assert [system.run_dir for system in benchmarked()] == ["a", "p", "p", "p", "p"]
    assert [system.decode and system.decode.num_steps for system in benchmarked()] == [None, 1, 2, 4, 10]


def test_the_benchmark_of_verified_decoding():
    config.parse(["bench/verified.gin"], ["AR_DIR='a'", "PADIR_DIR='p'", "DATA_DIR='d'"])
    *others, verified = benchmarked()
    assert [(system.run_dir, system.verify_with) for system in others] == [("a", None)] * 2 + [("p", None)] * 2
    assert (verified.run_dir, verified.verify_with, verified.decode) == ("p", "a", Verified())
    shallow = "SYSTEMS=[@shallow/System(), @verified/System()]"
    config.parse(["bench/verified.gin"], ["AR_DIR='a'", "PADIR_DIR='p'", "DATA_DIR='d'", "SHALLOW_DIR='s'", shallow])
    assert [(system.run_dir, system.verify_with) for system in benchmarked()] == [("s", None), ("p", "a")]
    assert benchmarked()[0].decode == Autoregressive()


def test_the_benchmark_of_pretrained_models():
    config.parse(["bench/pretrained.gin"], ["SOURCES='text.de'"])
    ar, beam, one, four, five, itself, draws, twenty, verified = benchmarked()
    assert {ar.run_dir, beam.run_dir, twenty.rescore_with, verified.verify_with} == {"tatoeba_de_en_ar"}
    parallel = one, four, five, itself, draws, twenty, verified
    assert {system.run_dir for system in parallel} == {"tatoeba_de_en_padir"}
    assert itself.rescore_with is None and draws.rescore_with is None
    assert (four.decode.num_steps, four.decode.num_hypotheses) == (4, 1)
    reference = gin_config.query_parameter("benchmark_latency.workload")
    assert reference.scoped_configurable_fn() == SourceText("text.de", "tatoeba_de_en_ar")
    by_itself = "Refinement.self_rescoring=True"
    for system, file, bindings in (
        (five, "lengths_5", []),
        (itself, "lengths_5_ranked", []),
        (draws, "lengths_5_draws_4", [by_itself]),
        (twenty, "lengths_5_draws_4", []),
    ):
        config.parse([f"decode/{file}.gin"], bindings)
        assert system.decode == gin_config.query_parameter("translate.decode").scoped_configurable_fn()


@pytest.mark.parametrize(("files", "count"), [(("paper", "fixed_32"), 34), (("paper", "fixed_32", "shallow"), 21)])
def test_benchmarks_at_paper_size(files, count):
    """The models have their published sizes, and each line decodes as its name says."""
    config.parse([f"bench/{file}.gin" for file in files], [])
    systems = benchmarked()
    sizes = {"AR": 60_506_624, "AR 12-1": 58_407_936, "PaDIR": 66_997_760}
    sizes |= {"PaDIR 12-1": 59_653_632, "PaDIR 9-3": 60_703_232}
    for system in systems:
        kind = re.match(r"(AR|PaDIR)( \d+-\d+)?|mask-predict", system.name)[0]
        model = system.model(TokenIds(32_000))
        assert parameters_of(model) == sizes[kind.replace("mask-predict", "PaDIR")], system.name
        rounded = re.search(r", (int8|bfloat16)$", system.name)
        assert system.compute_type == (rounded and rounded[1])
        if isinstance(system.decode, Refinement):
            found = re.search(r"(\d+) steps?", system.name)
            assert system.decode.num_steps == int(found[1])
            assert system.decode.num_hypotheses == (5 if "5 hypotheses" in system.name else 1)
            assert (system.decode.candidates is not None) == ("candidates" in system.name)
            assert (system.decode.keep_hypotheses == 1) == ("kept" in system.name)
            assert system.decode.shared_candidates == ("shared" in system.name)
            assert (system.decode.active_positions == 8) == ("8 active" in system.name)
        else:
            assert isinstance(system.decode, BeamSearch if "beam" in system.name else Autoregressive)
            assert system.decode.max_length(32, 128) == 32
    assert len(systems) == count and len({system.name for system in systems}) == count


def test_the_demo_is_complete():
    config.parse(["runs/demo.gin"], [])
    demo = gin_config.query_parameter("demo.config").scoped_configurable_fn()
    assert demo.buckets[-1] == demo.max_length
    assert demo.refinement_steps == (1, 2, 4, 10)
    assert config.required("demo") == []


def test_no_package_shadows_gin():
    assert not list(Path(FOLDER).rglob("__init__.py"))
