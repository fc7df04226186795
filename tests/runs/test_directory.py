"""A run directory opens without its gin files, and only as the run it is."""

import dataclasses
import json
import re

import pytest

from padir.data import vocabulary as vocabulary_lib
from padir.data.manifest import Manifest, TaskConfig
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.models.autoregressive import AutoregressiveModel
from padir.models.base import LossConfig
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.objectives.corruption import CorruptionConfig
from padir.runs.directory import (
    check_settings,
    differences,
    load_model,
    model_from_dict,
    model_to_dict,
    save_data,
    save_model,
    trained_on,
)
from padir.types import TokenIds

SMALL = NetworkConfig(
    embed_dim=16,
    num_heads=2,
    head_dim=8,
    mlp_dim=24,
    num_encoder_layers=3,
    num_decoder_layers=2,
    mlp_activation="gated-gelu",
    tied_logits=False,
    max_positions=40,
    dropout_rate=0.25,
    dtype="bfloat16",
)
PADIR = PadirModel(
    TokenIds(30, extra_ids=10),
    SMALL,
    max_source_length=20,
    max_target_length=24,
    loss=LossConfig(label_smoothing=0.1, z_loss=1e-4, length_loss_weight=0.3),
    corruption=CorruptionConfig(keep_probability=0.3, random_probability=0.5),
    num_stages=3,
    relative_length=True,
)
AR = AutoregressiveModel(
    TokenIds(30), NetworkConfig(causal=True, positional_attention=False, num_heads=3), 9, 11, LossConfig(z_loss=0.5)
)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    """Two vocabularies that differ."""
    folder = tmp_path_factory.mktemp("vocabularies")
    for name, text in (("one", "ab"), ("two", "cd")):
        vocabulary_lib.train([text] * 20, folder / name, num_pieces=6)
    return Vocabulary.load(folder / "one"), Vocabulary.load(folder / "two")


@pytest.mark.parametrize("model", [PADIR, AR], ids=["padir", "ar"])
def test_a_model_survives_json(model):
    stored = json.loads(json.dumps(model_to_dict(model)))
    again = model_from_dict(stored)
    assert again == model
    assert hash(again) == hash(model)
    assert stored["kind"] == {PadirModel: "padir", AutoregressiveModel: "autoregressive"}[type(model)]


def test_every_option_is_stored():
    stored = model_to_dict(PADIR)
    assert stored["corruption"].items() >= {"keep_probability": 0.3, "random_probability": 0.5}.items()
    assert (stored["num_stages"], stored["relative_length"], stored["network"]["dtype"]) == (3, True, "bfloat16")
    assert stored["network"]["vocab_size"] == 128


def test_save_and_load(tmp_path, vocabularies):
    one, _ = vocabularies
    save_model(tmp_path / "run", PADIR, one)
    model, vocabulary = load_model(tmp_path / "run")
    assert (model, vocabulary.hash) == (PADIR, one.hash)
    assert vocabulary.path.parent == tmp_path / "run"
    save_model(tmp_path / "run", PADIR, one)  # The same again changes nothing.
    assert load_model(tmp_path / "run")[0] == PADIR


def test_another_configuration_is_named(tmp_path, vocabularies):
    one, two = vocabularies
    save_model(tmp_path, PADIR, one)
    other = dataclasses.replace(PADIR, loss=dataclasses.replace(PADIR.loss, z_loss=0.25))
    end = r"\); choose another run_dir, or delete this one$"
    with pytest.raises(
        PadirError, match=rf"another configuration \(model\.loss\.z_loss: 0\.0001 there, 0\.25 now{end}"
    ):
        save_model(tmp_path, other, one)
    with pytest.raises(PadirError, match=r"\(model\.corruption: .* there, None now|model\.kind"):
        save_model(tmp_path, AR, one)
    with pytest.raises(PadirError, match=rf"\(vocabulary_hash: '{one.hash}' there, '{two.hash}' now{end}"):
        save_model(tmp_path, PADIR, two)


def test_another_vocabulary_in_the_run(tmp_path, vocabularies):
    one, two = vocabularies
    save_model(tmp_path, PADIR, one)
    (tmp_path / "vocabulary.model").write_bytes(two.path.read_bytes())
    message = f"vocabulary hash {two.hash[:12]} differs from {one.hash[:12]}, the hash of the vocabulary that the model"
    with pytest.raises(PadirError, match=re.escape(message)):
        load_model(tmp_path)


def test_not_a_run_directory(tmp_path):
    with pytest.raises(PadirError, match=r"model\.json: no such file; is this a run directory of `padir train`\?"):
        load_model(tmp_path / "nowhere")


def test_a_damaged_description_is_named(tmp_path, vocabularies):
    save_model(tmp_path, PADIR, vocabularies[0])
    path = tmp_path / "model.json"
    whole = path.read_text()
    no_object = '{"model": "abc", "vocabulary_hash": "x"}'
    for damaged in (whole[: len(whole) // 2], "{}", whole.replace('"z_loss"', '"zloss"'), no_object):
        path.write_text(damaged)
        with pytest.raises(PadirError, match=rf"^{re.escape(str(path))}: .*damaged"):
            load_model(tmp_path)
        with pytest.raises(PadirError, match=rf"^{re.escape(str(path))}: .*damaged.*; restore this file, or choose"):
            save_model(tmp_path, PADIR, vocabularies[0])


def test_an_option_that_is_newer_than_the_run_has_its_default(tmp_path, vocabularies):
    plain = dataclasses.replace(PADIR, loss=LossConfig())
    save_model(tmp_path, plain, vocabularies[0])
    path = tmp_path / "model.json"
    stored = json.loads(path.read_text())
    del stored["model"]["loss"]["z_loss"]
    path.write_text(json.dumps(stored))
    save_model(tmp_path, plain, vocabularies[0])
    with pytest.raises(PadirError, match=r"\(model\.loss\.z_loss: 0\.0 there, 0\.5 now\)"):
        save_model(tmp_path, dataclasses.replace(PADIR, loss=LossConfig(z_loss=0.5)), vocabularies[0])


def test_differences():
    stored = {"a": 1, "b": {"c": [1, 2], "d": None}, "e": "x"}
    assert differences(stored, {"a": 1, "b": {"c": [1, 2], "d": None}, "e": "x"}) == []
    assert differences(stored, {"a": 2, "b": {"c": [2, 1]}, "f": {"g": 0}}) == [
        "a: 1 there, 2 now",
        "b.c: [1, 2] there, [2, 1] now",
        "e: 'x' there, None now",
        "f: None there, {'g': 0} now",
    ]


def test_settings_of_a_run(tmp_path, capfd):
    def check(step, read_only=False, **settings):
        given = {"seed": 0, "steps": 10} | settings
        check_settings(tmp_path, given, step, may_change={"steps": "longer"}, read_only=read_only)
        return json.loads((tmp_path / "train.json").read_text())

    # Until a checkpoint is there, nothing binds the run.
    assert check(None, seed=5) == {"settings": {"seed": 5, "steps": 10}, "changes": []}
    first = {"settings": {"seed": 0, "steps": 10}, "changes": []}
    assert check(None) == check(4) == first
    assert capfd.readouterr().err == ""
    with pytest.raises(PadirError, match=r"trained to step 4 with other settings \(seed: 0 there, 1 now\)"):
        check(4, seed=1, steps=20)
    assert check(4, read_only=True, steps=3) == first
    changed = {"settings": {"seed": 0, "steps": 20}, "changes": [{"step": 4, "was": {"steps": 10}}]}
    assert check(4, steps=20) == check(6, steps=20) == changed
    assert capfd.readouterr().err.count("changed from step 4 on: steps: 10 there, 20 now (longer): ") == 1
    assert check(8, steps=30)["changes"] == [*changed["changes"], {"step": 8, "was": {"steps": 20}}]


def test_a_run_of_a_version_that_kept_no_settings_gets_them(tmp_path):
    check_settings(tmp_path, {"seed": 3}, 7, may_change={})
    assert json.loads((tmp_path / "train.json").read_text())["settings"] == {"seed": 3}


@pytest.mark.parametrize("text", ['{"settings": {', "[]", "{}"])
def test_damaged_settings_are_named(tmp_path, text):
    (tmp_path / "train.json").write_text(text)
    with pytest.raises(PadirError, match=r"train\.json: damaged, .*; restore this file, or choose another run_dir"):
        check_settings(tmp_path, {"seed": 3}, 7, may_change={})


def test_text_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "text"
    write_text(path, "vorher\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "neu \ud800")
    assert path.read_text(encoding="utf-8") == "vorher\n"
    write_text(path, "Tür\n")
    assert path.read_bytes() == "Tür\n".encode()


def test_what_a_run_was_trained_on(tmp_path):
    assert trained_on(tmp_path) is None  # imported, or of an older padir
    raw = TaskConfig("tasks.synthetic", "toy")
    distilled = TaskConfig("padir.distill", "toy_distilled", {"source_task": dataclasses.asdict(raw)})
    for task, kind in ((raw, "raw"), (distilled, "distilled")):
        save_data(tmp_path, Manifest(task, {}, "0", 9, {}))
        assert trained_on(tmp_path) == kind
        assert json.loads((tmp_path / "data.json").read_text()) == {"task": "toy", "trained_on": kind}
    (tmp_path / "data.json").write_text('{"trained_on": "both"}')
    with pytest.raises(PadirError, match=r"data\.json: damaged, .*trained_on is neither 'raw' nor 'distilled'"):
        trained_on(tmp_path)
