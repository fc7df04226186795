"""The sizes that files in gin/models claim in their first lines are those of the models that they make."""

import dataclasses
import re

import pytest

import gin as gin_config
from padir.cli import config, gin_files
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.objectives.corruption import CorruptionConfig
from padir.types import TokenIds

MODELS = gin_files.gin_folder() / "models"
AR = "models/autoregressive.gin"


def built(files, bindings=(), num_pieces=32_000):
    config.parse(list(files), list(bindings))
    return gin_config.query_parameter("train.model").scoped_configurable_fn(TokenIds(num_pieces))


def claims(name):
    """The head of a file, as one line without the comment signs."""
    lines = []
    for line in (MODELS / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def number(name, pattern):
    found = re.search(pattern, claims(name))
    assert found, f"{name} makes no claim like {pattern!r}: {claims(name)}"
    return int(found.group(1).replace(",", ""))


@pytest.mark.parametrize(
    ("name", "kind", "layers", "count"),
    [
        ("paper_base", PadirModel, (6, 6), 66_997_760),
        ("paper_base_ar", AutoregressiveModel, (6, 6), 60_506_624),
        ("ar_12_1", AutoregressiveModel, (12, 1), None),
        ("padir_12_1", PadirModel, (12, 1), None),
        ("padir_9_3", PadirModel, (9, 3), None),
    ],
)
def test_a_model_of_the_papers_size(name, kind, layers, count):
    model = built([f"models/{name}.gin"])
    assert type(model) is kind
    assert (model.network.num_encoder_layers, model.network.num_decoder_layers) == layers
    assert model.parameter_count() == number(f"{name}.gin", r"([\d,]+) parameters with a vocabulary of 32,000 pieces")
    assert count in (None, model.parameter_count())


@pytest.mark.parametrize("name", ["paper_base", "paper_base_ar"])
def test_untied_logits(name):
    model = built([f"models/{name}.gin"], ["NetworkConfig.tied_logits = False"])
    assert model.parameter_count() == number(f"{name}.gin", r"\(untied.*?: ([\d,]+)\)")


@pytest.mark.parametrize(("name", "num_pieces"), [("small", 4000), ("tiny", 900)])
def test_a_small_model_and_its_autoregressive_twin(name, num_pieces):
    stated = rf"vocabulary of ({num_pieces:,}) pieces"
    assert number(f"{name}.gin", stated) == num_pieces
    padir, ar = built([f"models/{name}.gin"], (), num_pieces), built([f"models/{name}.gin", AR], (), num_pieces)
    assert padir.parameter_count() == number(f"{name}.gin", r"([\d,]+) parameters as a PaDIR model")
    assert ar.parameter_count() == number(f"{name}.gin", r"([\d,]+) as an autoregressive one")
    assert padir.relative_length


def test_the_base_spells_out_the_defaults():
    """So that reading it tells what can be set, and that nobody changes a default of the paper by accident."""
    assert built(["models/paper_base.gin"]) == PadirModel(TokenIds(32_000))


@pytest.mark.parametrize(
    ("run", "shape", "kind"),
    [
        ("wmt14_de_en_padir", "padir_12_1", PadirModel),
        ("wmt14_de_en_padir", "padir_9_3", PadirModel),
        ("wmt14_de_en_ar", "ar_12_1", AutoregressiveModel),
    ],
)
def test_another_shape_changes_nothing_else_of_a_run(run, shape, kind):
    """As the shapes' own commands add them, after the file of the run."""
    plain = built([f"runs/{run}.gin"])
    model = built([f"runs/{run}.gin", f"models/{shape}.gin"])
    assert type(model) is kind
    layers = tuple(map(int, shape.split("_")[1:]))
    assert (model.network.num_encoder_layers, model.network.num_decoder_layers) == layers
    same = {"num_encoder_layers": 6, "num_decoder_layers": 6}
    assert dataclasses.replace(model, network=dataclasses.replace(model.network, **same)) == plain
    assert gin_config.query_parameter("train.num_steps") == 500_000


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        (
            "cmlm",
            {"num_stages": 1, "corruption": CorruptionConfig(0.0, min_noise_density=0.0, loss_weighting="noise")},
        ),
        ("sundae", {"hand_over": "sample", "corruption": CorruptionConfig(0.0, 1.0, min_noise_density=0.0)}),
        ("joint", {"causal_stage": True}),
    ],
)
@pytest.mark.parametrize("run", ["text_files_padir", "wmt14_de_en_padir"])
def test_another_kind_changes_only_how_a_run_trains(run, kind, changed):
    """As the kinds' own commands add them, after the file of the run."""
    plain, other = built([f"runs/{run}.gin"]), built([f"runs/{run}.gin", f"models/{kind}.gin"])
    assert other == dataclasses.replace(plain, **changed)


@pytest.mark.parametrize("run", ["text_files_padir", "tatoeba_de_en_padir", "wmt14_de_en_padir"])
def test_a_disentangled_model_has_the_size_of_the_runs_own(run):
    """`models/disentangled.gin` goes after the file of any PaDIR run."""
    plain, disco = (built([f"runs/{run}.gin", *more]) for more in ([], ["models/disentangled.gin"]))
    assert disco.network.disentangled_context and disco.num_stages == 1
    assert disco.parameter_count() == plain.parameter_count()
    network = dataclasses.replace(disco.network, disentangled_context=False)
    assert dataclasses.replace(disco, network=network, num_stages=2) == plain
