"""benchmarks/pretrained.py on tiny runs: what it exports opens, translates, and has a card."""

import json
import sys
from pathlib import Path

import pytest

import padir
from padir.decoding.refinement import Refinement

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import pretrained

MADE = {"commit": "0123456789", "command": "quality.py --data corpus", "kept_as": {"best": "F32", "mean": "BF16"}}
RESULT = {
    "facts": {"cpu": "a CPU", "cpu_count": 2, "commit": "9876543210"},
    "train_pairs": 431,
    "models": {
        "ar": {"updates": 1980, "seconds": 720.0, "device": "cpu"} | MADE,
        "padir": {"updates": 1980, "seconds": 120.0, "device": "NVIDIA H200"} | MADE,
    },
    "systems": {
        "AR, greedy": {"bleu": 41.5, "chrf": 56.0},
        "AR, beam 5": {"bleu": 42.5, "chrf": 57.0},
        "PaDIR, 4 steps": {"bleu": 39.5, "chrf": 54.0},
        "PaDIR, 4 steps, 5 lengths": {"bleu": 40.5, "chrf": 55.0},
    },
}


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    """The folder of the models that the script made."""
    folder = tmp_path_factory.mktemp("pretrained")
    work = folder / "work"
    for kind, name, run in (("best", "ar", tiny.ar), ("mean", "padir", tiny.padir)):
        (work / kind).mkdir(parents=True)
        (work / kind / name).symlink_to(run)
    (work / "data").symlink_to(tiny.data)
    (folder / "result.json").write_text(json.dumps(RESULT))
    # Of a model that was made before.
    stale = folder / "models" / "tiny_ar" / "stale"
    stale.parent.mkdir(parents=True)
    stale.touch()
    options = [
        f"--work={work}",
        f"--result={folder / 'result.json'}",
        f"--output={folder / 'models'}",
        "--student=padir",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pretrained.py", *options])
        patch.setattr(pretrained, "_LANGUAGES", {"": "Synthetic"} | {name: name for name in ("src", "tgt", "de", "en")})
        assert pretrained.main() == 0
    assert not stale.exists()
    return folder / "models"


def test_both_models_translate_as_the_runs_do_up_to_rounding(made, tiny):
    texts = ["Peter helps a big dog.", "Anna sees the old house."]
    assert sorted(path.name for path in made.iterdir()) == ["tiny_ar", "tiny_padir"]
    for name, run in (("tiny_ar", tiny.ar), ("tiny_padir", tiny.padir)):
        small = padir.load(made / name)
        assert small.model == padir.load(run).model
        assert len(small.translate(texts)) == 2
    assert padir.load(made / "tiny_padir").translate(texts, Refinement(num_steps=2))[0].text


def test_the_card_says_what_the_result_and_its_own_evaluation_say(made):
    card = (made / "tiny_padir" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# tiny_padir\n")
    for said in (
        "| these files: 4 steps |",
        "| before rounding to int8, in bfloat16 | 39.50 | 54.00 |",
        "| these files: 4 steps, 5 lengths |",
        "| before rounding to int8, in bfloat16 | 40.50 | 55.00 |",
        "Decoding tries one length by default. `--gin_file=decode/lengths_5.gin` tries five.",
        "The sentences are those of the validation split",
        "431 sentence pairs",
        "CC-BY 2.0 FR",
        "1,980 updates in 2 minutes on one NVIDIA H200, beside other models.",
        "It is the mean of the",
        "`python quality.py --data corpus`, at commit 0123456789.",
        "It started with the parameters of AR.",
        "padir translate --run_dir=tiny_padir",
    ):
        assert said in card, said
    assert "translations of the AR model beside" in card
    card = (made / "tiny_ar" / "README.md").read_text(encoding="utf-8")
    assert "Decoding is greedy by default. `--gin_file=decode/ar_beam5.gin` searches with a beam of five.\n" in card
    assert "| before rounding to int8, in float32 | 41.50 | 56.00 |" in card
    assert "the text itself" in card and "1,980 updates in 12 minutes on 2 cores of a CPU." in card
    assert "The best of its checkpoints" in card


def test_a_joint_models_card_has_both_ways_to_rank():
    names = list(pretrained.shown("joint"))
    main = "joint, 4 steps, 5 lengths"
    assert names == ["joint, 4 steps", main, f"{main}, ranked by itself"]
    measured = {"bleu": 31.5, "chrf": 49.0, "bleu_signature": "tok:13a", "chrf_signature": "nc:6"}
    scores = {
        name: measured | {"bleu": bleu, "parameters": 7, "sentences": 9}
        for name, bleu in zip(names, (29, 31, 34), strict=True)
    }
    result = RESULT | {
        "models": {"joint": RESULT["models"]["padir"]},
        "systems": {name: {"bleu": 30.25, "chrf": 50.0} for name in names},
    }
    card = pretrained.card("both", "joint", result, scores, "de", "en", pretrained.usual("joint"))
    for way, bleu in (("4 steps", 29), ("4 steps, 5 lengths", 31), ("4 steps, 5 lengths, ranked by itself", 34)):
        assert f"| these files: {way} | {bleu}.00 | 49.00 |" in card
    assert card.count("| before rounding to int8, in bfloat16 | 30.25 | 50.00 |") == 3
    assert "tries five, and\n`--gin_file=decode/lengths_5_ranked.gin` lets" in card and "on 9 sentences" in card


def test_the_card_of_a_student_that_went_on():
    """Its figures are those of levers.py, and it says what it learned from and began with."""
    name = "joint, text and translations"
    measured = {"bleu": 46.5, "chrf": 63.0, "bleu_signature": "tok:13a", "chrf_signature": "nc:6"}
    scores = {each: measured | {"parameters": 7, "sentences": 9} for each in pretrained.shown("joint")}
    result = {
        "facts": RESULT["facts"],
        "direction": "de_en",
        "pairs": {"text": 431, "text_and_translations": 800},
        "made": {name: MADE | {"updates": 1980, "seconds": 600.0, "device": "cpu"}},
        "students": {
            name: {
                "one length": {"bleu": 44.5, "chrf": 61.0},
                "five lengths": {"bleu": 46.25, "chrf": 62.0},
                "ranked by itself": {"bleu": 47, "chrf": 64},
            }
        },
    }
    before = "# A card\n\n## Training\n\n* Data: some.\n* Command: one.\n\n## Limits\n\nMany.\n"
    found, history = pretrained.of_lever(name, result, before)
    card = pretrained.card("tatoeba_de_en_padir", "joint", found, scores, "de", "en", history)
    for said in (
        "| before rounding to int8, in float32 | 44.50 | 61.00 |",
        "| before rounding to int8, in float32 | 46.25 | 62.00 |",
        "| before rounding to int8, in float32 | 47.00 | 64.00 |",
        "431 sentence pairs",
        "The targets are the text itself, and the translations of the AR model beside this one. It started with",
        "of the model of this name at that commit.",
        "It is the last checkpoint.",
        "1,980 updates in 10 minutes on 2 cores of a CPU.",
        "\n\n### The model that it started with\n\n* Data: some.\n* Command: one.\n\n## Limits\n\nIt knows",
    ):
        assert said in card, said
    _, history = pretrained.of_lever(
        "more of the same",
        result | {"made": {"more of the same": MADE}, "students": {"more of the same": result["students"][name]}},
        before,
    )
    assert history.targets == "the text itself"
    more = "joint, more sources, lower learning rate"
    of_more = {"made": {more: MADE}, "students": {more: result["students"][name]}}
    _, history = pretrained.of_lever(more, result | of_more, before)
    assert history.targets.endswith("Further sources are back-translations by the AR model of the other direction")
    assert "ranker" not in history.start
    of_ranker = {"direction": "en_de", "made": {"ranker": MADE}, "students": {"ranker": result["students"][name]}}
    found, history = pretrained.of_lever("ranker", result | of_ranker, before)
    assert "Only its ranker was trained here" in history.start
    assert set(found["systems"]) == set(pretrained.shown("joint"))


def test_a_lever_that_was_not_measured_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "result.json").write_text(json.dumps({"made": {"joint": {}}}))
    options = [f"--work={tmp_path}", f"--result={tmp_path / 'result.json'}", "--lever=three stages"]
    monkeypatch.setattr(sys, "argv", ["pretrained.py", *options])
    with pytest.raises(SystemExit):
        pretrained.main()
    assert "result.json has no 'three stages'; choose from joint" in capsys.readouterr().err
