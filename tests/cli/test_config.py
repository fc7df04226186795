"""Binding names: what gin may set, and one clear line for whatever it may not."""

import inspect
import typing

import pytest

import gin
from padir.cli import config, gin_files
from padir.cli.commands import COMMANDS
from padir.cli.configurables import DATACLASSES
from padir.cli.gin_statements import macros_in
from padir.errors import PadirError


def failure(files=(), bindings=(), **options):
    with pytest.raises(PadirError) as raised:
        config.parse(files, bindings, **options)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_later_bindings_win(tmp_path):
    (tmp_path / "mine.gin").write_text("# Mine.\ninclude 'models/tiny.gin'\nNetworkConfig.mlp_dim = 100\n")
    config.parse([str(tmp_path / "mine.gin")], ["NetworkConfig.mlp_dim = 200", "MAX_LENGTH=20"])
    assert gin.query_parameter("NetworkConfig.mlp_dim") == 200
    assert gin.query_parameter("NetworkConfig.embed_dim") == 128
    assert config._statements()["MAX_LENGTH"] == "20"


def test_each_parse_starts_afresh():
    config.parse([], ["train.seed = 5"])
    config.parse([], [])
    assert config._statements() == {}


def test_statements_are_whole_however_long_they_are():
    options = {f"option_{number}": ["a" * 40, number] for number in range(12)}
    config.parse([], [f"TaskConfig.options = {options!r}", "train.buckets = (8, 16)", "one/System.name = 'x'"])
    statements = config._statements()
    assert eval(statements["TaskConfig.options"]) == options
    assert statements["train.buckets"] == "(8, 16)"
    assert statements["one/System.name"] == "'x'"


def test_search_path(tmp_path):
    (tmp_path / "mine.gin").write_text("# Mine.\ntrain.seed = 7\n")
    config.parse(["mine.gin"], [], [str(tmp_path)])
    assert gin.query_parameter("train.seed") == 7


def test_a_search_path_is_forgotten(tmp_path):
    """A name that two folders hold is looked up in those of this parse alone, and bundled files stay within reach."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.gin").write_text(f"# Mine.\ninclude 'runs/base.gin'\ntrain.run_dir = '{folder}'\n")
    for folder in ("one", "two"):
        config.parse(["mine.gin"], [], [str(tmp_path / folder)])
        assert gin.query_parameter("train.run_dir") == folder
    message = failure(["mine.gin"])
    assert message.startswith("gin: Unable to open file: mine.gin. Searched the working directory, ")
    assert str(tmp_path) not in message and str(gin_files.gin_folder()) in message


WRONG_TYPES = {
    "train.num_steps = 'x'": "expected int, found str",
    "train.num_steps = 1e5": "expected int, found float",
    "train.seed = True": "expected int, found bool",
    "train.batch_size = (1, 2)": "expected int, found tuple",
    "train.buckets = 8": "expected Sequence[int], found int",
    "train.buckets = ('8',)": "expected Sequence[int], found tuple",
    "train.data_dir = 1": "expected str, found int",
    "train.initialize_from = 3": "expected str | None, found int",
    "NetworkConfig.embed_dim = 1.5": "expected int, found float",
    "NetworkConfig.causal = 1": "expected bool, found int",
    "OptimizerConfig.peak_learning_rate = '1'": "expected float, found str",
    "one/System.name = 3": "expected str | None, found int",
    "TaskConfig.options = 3": "expected Mapping[str, Any], found int",
    "PrepareSettings.splits = 'train'": "expected tuple[str, ...] | None, found str",
    "train.optimizer = 3": "expected @OptimizerConfig(), found int",
    "train.optimizer = @Cadence()": "expected @OptimizerConfig()",
    "train.optimizer = @OptimizerConfig": "write @OptimizerConfig(), with the parentheses",
    "train.model = @PadirModel()": "write @PadirModel, without the parentheses",
    "benchmark_latency.systems = [@System(), @Cadence()]": "expected @System(), found list",
}


@pytest.mark.parametrize("binding, reason", WRONG_TYPES.items(), ids=WRONG_TYPES)
def test_a_value_of_another_type_is_refused_by_name(binding, reason):
    name, value = binding.split(" = ")
    shown = str(float(value)) if value == "1e5" else value
    assert failure([], [binding]) == f"{name} = {shown}: {reason}"


def test_a_policy_of_another_kind_lists_the_right_ones():
    for value, found in (("'mask'", ", found str"), ("@RemaskStutter()", "")):
        message = failure([], [f"Refinement.start = {value}"])
        choices = message.removeprefix(f"Refinement.start = {value}: expected ").removesuffix(found).split(" or ")
        assert set(choices) == {"@StartWithMask()", "@StartWithMaskRange()", "@StartWithRandom()"}


def test_an_unknown_policy_lists_the_known_ones(tmp_path):
    """Wherever it stands; where no policy is meant, the name alone is told."""
    file = tmp_path / "decode.gin"
    file.write_text("Refinement.stop = @StopSoon()\n")
    names = ("Unchanged", "Confident", "Stable", "Certain", "All")
    known = "choose " + " or ".join([*(f"@StopWhen{name}()" for name in names), "@StopNever()"])
    for message in (failure([], ["Refinement.stop=@StopSoon()"]), failure([str(file)], [])):
        assert "'@StopSoon()'" in message and message.endswith(f"; {known}")
    assert "choose" not in failure([], ["train.run_dir=@StopSoon()"])


def test_a_value_of_another_type_is_seen_through_macros(tmp_path):
    (tmp_path / "mine.gin").write_text("# Mine.\nWIDTH = 'x'\nAGAIN = %WIDTH\nNetworkConfig.embed_dim = %AGAIN\n")
    assert failure([str(tmp_path / "mine.gin")]) == "NetworkConfig.embed_dim = %AGAIN ('x'): expected int, found str"
    (tmp_path / "mine.gin").write_text("# Mine.\nONE = %TWO\nTWO = %ONE\nNetworkConfig.embed_dim = %ONE\n")
    assert failure([str(tmp_path / "mine.gin")]) == "gin: macro %ONE stands for itself"


@pytest.mark.parametrize(
    "binding",
    [
        "OptimizerConfig.peak_learning_rate = 1",
        "train.initialize_from = None",
        "train.buckets = [8, 16]",
        "train.seed = %gin.REQUIRED",
        "translate.decode = @Refinement()",
        "Refinement.start = @StartWithRandom()",
        "benchmark_latency.systems = [@System(), @one/System()]",
        "TaskConfig.options = {'a': 1}",
        "vocabulary.output = 'x'",
    ],
)
def test_values_that_fit(binding):
    config.parse([], [binding])
    assert config._statements()


def test_everything_configurable_has_annotations_that_resolve():
    for configurable in (*DATACLASSES, *(command.function() for command in COMMANDS.values())):
        hints = typing.get_type_hints(configurable)
        assert set(inspect.signature(configurable).parameters) <= set(hints), configurable


def test_unknown_names_and_bad_values(tmp_path):
    assert "nowhere.gin" in failure(["nowhere.gin"])
    assert "Trian" in failure([], ["Trian.seed = 1"])
    assert failure(["runs/tatoeba_de_en_padri.gin"]).endswith("; did you mean runs/tatoeba_de_en_padir.gin?")
    assert failure([], ["trian.seed = 1"]).endswith("; did you mean train?")
    message = failure([], ["train.sed = 1"])
    assert "train" in message and message.endswith("; did you mean seed?")
    unquoted = failure([], ["train.seed = text"])
    assert unquoted.startswith("--gin.train.seed = text: the value is not in gin's syntax; text needs quotes")
    (tmp_path / "bad.gin").write_text("# Bad.\ntrain.seed = 1\ntrain.num_steps = = 2\n")
    message = failure([str(tmp_path / "bad.gin")])
    assert "bad.gin" in message and "3" in message
    (tmp_path / "unknown.gin").write_text("# Unknown.\n\nNetworkConfig.width = 1\n")
    message = failure([str(tmp_path / "unknown.gin")])
    assert "width" in message and "unknown.gin" in message and "line 3" in message


def test_a_misspelt_macro_names_the_macros_there_are():
    message = failure(["runs/base.gin"], ["DATADIR='x'"])
    assert message == "--gin.DATADIR='x': no gin file uses a macro DATADIR; macros there: DATA_DIR, MAX_LENGTH, RUN_DIR"
    assert failure([], ["X=1"]) == "--gin.X=1: no gin file uses a macro X; macros there: none"


def test_required_names_only_what_the_command_reads():
    config.parse(["runs/tatoeba_de_en_padir.gin"], [])
    assert config.required("train") == ["DATA", "DATA_DIR", "RUN_DIR"]
    assert config.required("evaluate") == ["DATA_DIR", "RUN_DIR"]
    assert config.required("translate") == ["RUN_DIR"]
    config.parse(["runs/tatoeba_de_en_padir.gin", "runs/distilled.gin"], ["RUN_DIR='y'"])
    assert config.required("train") == ["DATA_DIR"]
    config.parse(["bench/trained.gin"], ["AR_DIR='x'"])
    assert config.required("benchmark_roofline") == ["PADIR_DIR"]
    assert config.required("benchmark_latency") == ["DATA_DIR", "PADIR_DIR"]


def test_a_macro_that_nobody_sets_is_required(tmp_path):
    config.parse(["runs/base.gin"], ["DATA_DIR='x'"])
    assert config.required("prepare") == ["MAX_LENGTH"]
    config.parse(["runs/base.gin"], ["DATA_DIR='100%MAX'", "MAX_LENGTH=8"])
    assert config.required("prepare") == []


def test_macros_of_a_value():
    assert macros_in("(%A, {'%C': %B}, \"%D\", 'it\\'s %E', %gin.REQUIRED, @Name())") == {"A", "B"}


def run_failure(command):
    with pytest.raises(PadirError) as raised:
        config.run(command)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_values_still_required_are_named():
    config.parse(["runs/synthetic_ar.gin"], [])
    assert run_failure("train") == "give a value for DATA_DIR, RUN_DIR (--gin.DATA_DIR=… --gin.RUN_DIR=…)"


def test_parameters_that_nobody_bound_are_named():
    config.parse([], ["evaluate.run_dir = 'x'"])
    message = run_failure("evaluate")
    assert message.startswith("no value for output_dir, name; name a --gin_file that sets it, or give")
    assert "--gin.evaluate.output_dir=…" in message


def test_fields_of_a_dataclass_that_nobody_bound_are_named(tmp_path):
    config.parse([], [f"prepare.output_dir = '{tmp_path}'", "prepare.task = @TaskConfig()", "TaskConfig.name = 'x'"])
    assert run_failure("prepare") == "no value for TaskConfig.module; bind it in a gin file or with --gin.NAME=VALUE"


def test_errors_of_a_dataclass_lose_gins_appendix(tmp_path):
    bindings = [
        f"train.run_dir = '{tmp_path}'",
        "train.data_dir = 'x'",
        "train.model = @PadirModel",
        "train.num_steps = 1",
    ]
    bindings += ["train.batch_size = 1", "train.buckets = (8,)", "train.optimizer = @OptimizerConfig()"]
    config.parse([], [*bindings, "OptimizerConfig.warmup_steps = -3"])
    assert run_failure("train") == "OptimizerConfig.warmup_steps: -3 is negative"


def test_the_operative_configuration_can_be_read_again(tiny, tmp_path):
    """Evaluating from the file beside a result gives the same result."""
    results = tmp_path / "results"
    given = {"run_dir": tiny.ar, "data_dir": tiny.data, "output_dir": results, "name": "ar", "split": "validation"}
    bindings = [f"evaluate.{name} = '{value}'" for name, value in given.items()]
    config.parse(["decode/ar_greedy.gin"], [*bindings, "Autoregressive.alpha = 0.5"])
    first = config.run("evaluate")
    assert "alpha=0.5" in first["decode"]
    config.parse([str(results / "ar.gin")], [])
    assert config.run("evaluate") == first


def test_each_commands_configuration_lies_beside_its_result():
    given = {"output_dir": "out", "run_dir": "run", "name": "x", "output": "file", "report_dir": "report"}
    given |= {"describe": False, "shards": None, "host_index": None}
    places = {
        command.configurable: command.configuration(given) for command in COMMANDS.values() if not command.compiles
    }
    assert places == {
        "prepare": "out/prepare.gin",
        "vocabulary": "file.gin",
        "train": "run/train.gin",
        "evaluate": "out/x.gin",
        "tables": "out/tables.gin",
        "translate": "file.gin",
        "serve": None,
        "trace": None,
        "distill": "out/distill.gin",
        "benchmark_latency": "file.gin",
        "benchmark_throughput": "file.gin",
        "benchmark_roofline": "file.gin",
        "benchmark_serve": "file.gin",
        "benchmark_compare": None,
        "checkpoint": None,
        "theory": "out/theory.gin",
        "demo": "report/demo.gin",
        "dyck": "out/dyck.gin",
        "learn_dyck": "out/learn_dyck.gin",
        "verifier": "out/verifier.gin",
        "import": "out/import.gin",
        "export": "out/export.gin",
        "analyze_attention": "out/attention.gin",
        "analyze_topics": "file.gin",
        "learn_topics": "out/topics.gin",
        "average": "out/average.gin",
    }
    assert COMMANDS["train"].configuration({"run_dir": "run", "describe": True}) is None
    translate = COMMANDS["translate"].configuration
    assert translate({"output": "-", "shards": None, "host_index": None}) is None
    # Of hosts that do not know of one another the first writes.
    sharded = {"output": "folder", "shards": 4}
    assert [translate(sharded | {"host_index": index}) for index in (None, 0, 1)] == ["folder/translate.gin"] * 2 + [
        None
    ]
