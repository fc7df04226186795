"""What `benchmarks/levers.py` trains, and what it says of the outcome."""

import dataclasses
import sys
from pathlib import Path

import pytest

import gin
from padir.cli import config
from padir.types import TokenIds

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import levers
import quality_speed
from levers import LEVERS, PLAIN


def parsed(name, tmp_path):
    """Parses the arguments with which the lever trains; returns the model."""
    trials = levers.Trials(tmp_path, "corpus", "cpu", 60.0, reverse=False)
    config.parse(*quality_speed.parsed([*trials._training(name), "--gin.train.num_steps=1000"]))
    return gin.query_parameter("train.model").scoped_configurable_fn(TokenIds(4000))


def optimizer():
    return gin.query_parameter("train.optimizer").scoped_configurable_fn()


@pytest.mark.parametrize("name", LEVERS)
def test_a_lever_changes_what_it_names_and_nothing_else(name, tmp_path):
    plain = parsed(PLAIN, tmp_path)
    with_plain = optimizer(), gin.query_parameter("train.batch_size")
    changed = {
        "one stage": {"num_stages": 1},
        "three stages": {"num_stages": 3},
        "half random tokens": {"corruption": dataclasses.replace(plain.corruption, random_probability=0.5)},
        "uniform noise": {
            "corruption": dataclasses.replace(plain.corruption, min_noise_density=0.0, keep_probability=0.0)
        },
        "label smoothing": {"loss": dataclasses.replace(plain.loss, label_smoothing=0.1)},
        "length loss 1.0": {"loss": dataclasses.replace(plain.loss, length_loss_weight=1.0)},
        "absolute lengths": {"relative_length": False},
        "no dropout": {"network": dataclasses.replace(plain.network, dropout_rate=0.0)},
        "self-conditioning": {"self_conditioning": True},
        "joint objective": {"causal_stage": True},
    }
    assert parsed(name, tmp_path) == dataclasses.replace(plain, **changed.get(name, {}))
    assert ((optimizer(), gin.query_parameter("train.batch_size")) == with_plain) == ("batch" not in name)
    data = gin.query_parameter("%DATA_DIR")
    assert data == str(tmp_path / ("data" if name == "raw text" else "distilled"))


def test_each_run_has_a_folder_of_its_own(tmp_path):
    folders = set()
    for name in LEVERS:
        parsed(name, tmp_path)
        folders.add(gin.query_parameter("%RUN_DIR"))
    assert len(folders) == len(LEVERS)
    assert folders <= {str(path) for path in [tmp_path / "levers_60" / name.replace(" ", "_") for name in LEVERS]}


def test_seconds_become_updates(tmp_path):
    trials = levers.Trials(tmp_path, "corpus", "cpu", 60.0, reverse=False)
    (tmp_path / "levers_60" / "update_seconds.json").write_text(
        '{"as it is": 0.25, "batch 256": 0.8, "eight times as long": 0.25}'
    )
    names = [PLAIN, "batch 256", "eight times as long"]
    assert trials.updates(names) == dict(zip(names, (240, 75, 1920), strict=True))


def test_levers_are_compared_with_the_plain_student_and_with_the_teacher():
    references = [f"the quick brown fox number {index} jumps high" for index in range(40)]
    worse = [text.replace("quick", "slow") for text in references]
    row = {"bleu": 1.0, "chrf": 2.0, "length_accuracy": 3.0, "mean_steps_run": 4.0, "ter": 5.0}
    found = levers.compared(
        {PLAIN: {"one length": row | {"outputs": references}}, "batch 32": {"one length": row | {"outputs": worse}}},
        {"outputs": references},
        references,
    )
    plain, changed = found[PLAIN]["one length"], found["batch 32"]["one length"]
    equal = plain.pop("from_teacher")
    assert equal["difference"] == 0.0 and equal["bootstrap"] == equal["randomization"] == 1.0
    assert plain == {key: row[key] for key in row if key != "ter"}
    assert changed["from_plain"] == changed["from_teacher"]
    below = changed["from_plain"]
    assert below["difference"] < -10.0 and below["bootstrap"] < 0.01 and below["randomization"] < 0.01


def test_without_a_distilled_corpus_it_says_what_to_do(tmp_path, monkeypatch, capsys):
    arguments = ["--work", str(tmp_path), "--data=d", "--output=o", "--levers=one stage"]
    monkeypatch.setattr(sys, "argv", ["levers.py", *arguments])
    with pytest.raises(SystemExit):
        levers.main()
    assert "has no distilled corpus; run make quality first (--models=ar,padir)" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["levers.py", *arguments[:-1], "--levers=magic"])
    with pytest.raises(SystemExit):
        levers.main()
    assert "--levers: unknown 'magic'; choose from as it is, batch 256" in capsys.readouterr().err
