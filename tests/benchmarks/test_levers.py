"""What `benchmarks/levers.py` trains, and what it says of the outcome."""

import dataclasses
import gzip
import json
import sys
from pathlib import Path

import pytest

import gin
import padir
from padir.cli import config
from padir.types import TokenIds

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import levers
import quality_speed
from levers import BEFORE, LEVERS, pretrained

PLAIN = "more of the same"


@pytest.fixture
def trials(tmp_path):
    """A work folder whose sets are there."""
    for name in (levers.TEXT, levers.TRANSLATIONS, levers.MORE_SOURCES):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "manifest.json").touch()
    return levers.Trials(tmp_path, "corpus", 60.0)


def parsed(name, trials):
    """Parses the arguments with which the lever trains; returns the model."""
    config.parse(*quality_speed.parsed([*trials.training(name), "--gin.train.num_steps=1000"]))
    return gin.query_parameter("train.model").scoped_configurable_fn(TokenIds(4000))


def optimizer():
    return gin.query_parameter("train.optimizer").scoped_configurable_fn()


@pytest.mark.parametrize("name", LEVERS)
def test_a_lever_changes_what_it_names_and_nothing_else(name, trials, tmp_path):
    plain, usual = parsed(PLAIN, trials), optimizer()
    changed = {
        "three stages": {"num_stages": 3},
        "half random tokens": {"corruption": dataclasses.replace(plain.corruption, random_probability=0.5)},
        "text and translations, higher learning rate, less dropout": {
            "network": dataclasses.replace(plain.network, dropout_rate=0.1)
        },
        "label smoothing": {"loss": dataclasses.replace(plain.loss, label_smoothing=0.1)},
        "ranker": {
            "causal_stage": True,
            "causal_layers": 1,
            "ranker": True,
            "freeze": ("encoder", "decoder", "length_predictor", "causal_decoder"),
        },
        "causal decoder": {
            "causal_stage": True,
            "causal_layers": 1,
            "ranker": True,
            "freeze": ("encoder", "decoder", "length_predictor", "ranker"),
            "network": dataclasses.replace(plain.network, dropout_rate=0.1),
        },
    }
    causal = {"causal_stage": True} if name.startswith("joint") else {}
    assert parsed(name, trials) == dataclasses.replace(plain, **changed.get(name, causal))
    rate = 0.02 if "higher" in name or name in ("ranker", "causal decoder") else 0.001 if "lower" in name else 0.01
    warmup = 400 if name == "causal decoder" else usual.warmup_steps
    assert optimizer() == dataclasses.replace(usual, peak_learning_rate=rate, warmup_steps=warmup)
    data = levers.MORE_SOURCES if "sources" in name else levers.TRANSLATIONS if "translations" in name else levers.TEXT
    assert gin.query_parameter("%DATA_DIR") == str(tmp_path / data)
    # What was distilled is not prepared from the text.
    assert (gin.query_parameter("train.task") is None) == (data != levers.TEXT)
    assert (LEVERS[name].start == "teacher") == name.endswith("from the teacher")


@pytest.mark.parametrize("direction", ["de_en", "en_de"])
def test_they_go_on_with_the_shape_of_the_pretrained_models(trials, tmp_path, direction):
    student, teacher = (padir.load(pretrained(direction, kind)).model for kind in ("padir", "ar"))
    if direction == "en_de":
        trials = levers.Trials(tmp_path, "corpus", 60.0, direction)
    for name in LEVERS:
        model = parsed(name, trials)
        assert dataclasses.replace(model.network, dropout_rate=student.network.dropout_rate) == student.network, name
        assert model.relative_length == student.relative_length
        shared = student.causal_stage and not student.causal_layers
        own = name == "causal decoder" or (name == "ranker" and student.causal_layers)
        assert model.causal_stage == (LEVERS[name].joint or bool(own) or shared)
        assert model.causal_layers == own
        assert model.ranker == (name == "ranker" or (name == "causal decoder" and student.ranker))
        assert levers.is_joint(name, direction) == model.causal_stage
        assert levers.is_joint(BEFORE, direction) == student.causal_stage
        for field in ("embed_dim", "mlp_dim", "num_heads", "num_encoder_layers", "num_decoder_layers"):
            assert getattr(model.network, field) == getattr(teacher.network, field), (name, field)


def test_each_run_has_a_folder_of_its_own(trials, tmp_path):
    folders = set()
    for name in LEVERS:
        parsed(name, trials)
        folders.add(gin.query_parameter("%RUN_DIR"))
    assert len(folders) == len(LEVERS)
    assert {str(Path(folder).parent) for folder in folders} == {str(tmp_path / "for_60_seconds")}
    assert not any("," in folder for folder in folders)


def test_seconds_become_updates(trials, tmp_path):
    (tmp_path / "update_seconds.json").write_text('{"joint": 0.8, "more of the same": 0.25, "three stages": 100}')
    names = [PLAIN, "joint", "three stages"]
    assert trials.updates(names) == dict(zip(names, (240, 75, 5), strict=True))


def test_only_a_student_with_a_causal_mode_ranks_by_itself():
    plain, joint = levers.ways(False), levers.ways(True)
    assert list(plain) == ["one length", "five lengths", "rescored"]
    assert list(joint) == [*plain, "ranked by itself"]
    assert joint["ranked by itself"].bindings == (*joint["five lengths"].bindings, "Refinement.self_rescoring=True")
    assert [way.helper for way in joint.values()] == ["", "", "rescore_with", ""]
    for way in plain:
        assert plain[way].bindings == joint[way].bindings
    assert all("Refinement.num_steps=4" in way.bindings for way in joint.values())


def test_students_are_compared_with_what_they_were_and_with_the_teacher():
    references = [f"the quick brown fox number {index} jumps high" for index in range(40)]
    worse = [text.replace("quick", "slow") for text in references]
    row = {
        "bleu": 1.0,
        "chrf": 2.0,
        "length_accuracy": 3.0,
        "mean_steps_run": 4.0,
        "stutter_per_100_words": 0.5,
        "ter": 5.0,
    }
    good, bad = row | {"outputs": references}, row | {"outputs": worse}
    before = {"one length": bad, "five lengths": good}
    found = levers.compared({"one length": good, "ranked by itself": bad}, before, {"outputs": references}, references)
    assert found["one length"]["bleu"] == 1.0 and "ter" not in found["one length"]
    assert found["one length"]["from_teacher"]["difference"] == 0.0
    assert found["one length"]["from_teacher"]["bootstrap"] == 1.0
    assert found["one length"]["from_before"]["difference"] > 10.0
    # What it could not do before is compared with the best that it could.
    below = found["ranked by itself"]["from_before"]
    assert below == found["ranked by itself"]["from_teacher"]
    assert below["difference"] < -10.0 and below["bootstrap"] < 0.01 and below["randomization"] < 0.01


def test_what_is_done_is_not_done_again(trials, tmp_path, monkeypatch):
    """A lever trains once, and says how it was made; a result and a set that are there stay."""
    asked = []

    def run_padir(arguments):
        asked.append(arguments)
        if arguments[0] == "train":
            metrics = tmp_path / "for_60_seconds" / "joint" / "metrics"
            metrics.mkdir(parents=True)
            (metrics / "metrics.jsonl").write_text('{"step": 20, "train/step_seconds": 0.5}\n')
        return 0

    monkeypatch.setattr(levers, "run_padir", run_padir)
    for _ in range(2):
        assert trials.trained("joint", 20) == tmp_path / "for_60_seconds" / "joint"
    assert [arguments[0] for arguments in asked] == ["train"]
    assert f"--initialize_from={pretrained('de_en', 'padir')}" in asked[0] and "--num_steps=20" in asked[0]
    made = trials.made("joint")
    assert (made["updates"], made["seconds"]) == (20, 10.0) and "commit" in made
    for way in levers.ways(levers.is_joint(BEFORE, "de_en")):
        path = tmp_path / f"{BEFORE}, {way}".replace(",", "").replace(" ", "_")
        path.with_suffix(".json").write_text(json.dumps({"bleu": 7.0}))
        path.with_suffix(".txt").write_text("a\nb\n")
    assert {row["bleu"] for row in trials.scores(BEFORE).values()} == {7.0}
    assert trials.scores(BEFORE)["rescored"]["outputs"] == ["a", "b"]
    assert len(asked) == 1


def test_more_sources_are_written_to_the_text_and_then_translated(tmp_path, monkeypatch):
    """Equal targets are written to once, empty and known pairs are left out, and the vocabulary stays the text's."""
    corpus, work = tmp_path / "corpus", tmp_path / "work"
    corpus.mkdir()
    pairs = {
        "train": [("Hund", "dog"), ("Köter", "dog"), ("Katze", "cat"), ("Maus", "mouse")],
        "valid": [("Kuh", "cow")],
    }
    for split, lines in pairs.items():
        for column, language in enumerate(("de", "en")):
            text = "".join(f"{pair[column]}\n" for pair in lines)
            (corpus / f"{split}.{language}.gz").write_bytes(gzip.compress(text.encode()))
    asked = []

    def run_padir(arguments):
        asked.append(arguments)
        if arguments[0] == "translate":
            assert f"--run_dir={pretrained('en_de', 'ar')}" in arguments
            assert (work / "more_sources" / "distinct.txt").read_text() == "dog\ncat\nmouse\n"
            # Known; new; rejected.
            (work / "more_sources" / "written.txt").write_text("Hund\nKätzchen\n\n")
        return 0

    monkeypatch.setattr(levers, "run_padir", run_padir)
    trials = levers.Trials(work, str(corpus), 60.0)
    (work / levers.TEXT).mkdir()
    (work / levers.TEXT / "manifest.json").touch()
    assert trials.data(levers.MORE_SOURCES) == work / levers.MORE_SOURCES
    assert [arguments[0] for arguments in asked] == ["translate", "prepare", "distill"]
    assert f"--gin.DATA={str(work / 'more_sources')!r}" in asked[1]
    assert f"--gin.PrepareSettings.vocabulary={str(work / 'text' / 'vocabulary.model')!r}" in asked[1]
    assert f"--data_dir={work / 'more_texts'}" in asked[2] and "--with_originals" in asked[2]
    train, valid = (
        [_gunzipped(work / "more_sources" / f"{split}.{each}.gz") for each in ("de", "en")] for split in pairs
    )
    assert list(zip(*train, strict=True)) == [*pairs["train"], ("Kätzchen", "cat")]
    assert list(zip(*valid, strict=True)) == pairs["valid"]


def _gunzipped(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_bad_options_are_named(tmp_path, monkeypatch, capsys):
    required = ["levers.py", f"--work={tmp_path}", "--data=d", "--output=o"]
    for given, said in (
        ("--levers=magic", "--levers: unknown 'magic'; choose from more of the same; higher learning rate"),
        ("--seconds=0", "--seconds: 0.0 is not above 0"),
    ):
        monkeypatch.setattr(sys, "argv", [*required, given])
        with pytest.raises(SystemExit):
            levers.main()
        assert said in capsys.readouterr().err
